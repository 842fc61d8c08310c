"""Two groups of runs: the difference, and intervals that cover what they promise."""

from __future__ import annotations

import numpy as np
import pytest

from steppe.errors import RunError
from steppe.runs import Answers, read_answers, write_answers
from steppe.studies.groups import _read_labels
from steppe.studies.versus import Group, bootstrap_mean, compare_groups, mean_interval

LABELS = np.arange(400, dtype=np.int32) % 10


def answers(right: np.ndarray, nll: float = 0.5) -> Answers:
    """Right where it says so, else another class."""
    given = np.where(right, LABELS, (LABELS + 1) % 10).astype(np.int32)
    return Answers(given, LABELS, np.where(right, nll, 3.0).astype(np.float32))


def first(count: int) -> np.ndarray:
    return np.arange(len(LABELS)) < count


def test_two_single_runs():
    found = compare_groups(Group("a", {0: answers(first(300))}), Group("b", {0: answers(first(340))}))
    assert found.accuracy.a == 0.75
    assert found.accuracy.difference == pytest.approx(0.1)
    assert (found.only_a, found.only_b) == (0, 40)
    share = 0.1
    half = 1.96 * np.sqrt(share * (1 - share) / 400)
    assert found.accuracy.images == pytest.approx((0.1 - half, 0.1 + half), abs=0.005)
    assert found.one_seed
    assert found.accuracy.both is None
    assert found.accuracy.shown
    assert found.nll.difference < 0


def test_the_same_runs_show_no_difference():
    group = Group("a", {0: answers(first(300)), 1: answers(first(310))})
    found = compare_groups(group, group)
    assert found.accuracy.difference == 0
    assert not found.accuracy.shown
    assert found.accuracy.both == (0, 0)


def test_seeds_are_paired_where_they_are_the_same():
    a = {0: answers(first(200)), 1: answers(first(260)), 2: answers(first(320))}
    b = {0: answers(first(210)), 1: answers(first(271)), 2: answers(first(329))}
    paired = compare_groups(Group("a", a), Group("b", b)).accuracy
    other = compare_groups(Group("a", a), Group("b", {seed + 5: run for seed, run in b.items()})).accuracy
    assert paired.paired
    assert not other.paired
    assert paired.difference == pytest.approx(other.difference)
    width = [interval[1] - interval[0] for interval in (paired.seeds, other.seeds, paired.both)]
    assert width[0] < 0.02 < 0.3 < width[1]
    assert width[2] > width[0]
    each = np.array([10, 11, 9]) / 400
    assert paired.seeds[1] - paired.difference == pytest.approx(4.3027 * each.std(ddof=1) / np.sqrt(3), rel=1e-3)


def test_the_interval_over_both_covers_the_truth():
    """Models scatter around 70 and 73 %, images are drawn anew: 95 of 100 intervals hold the 3 points."""
    random = np.random.default_rng(0)
    covered, narrow = 0, 0
    for _ in range(300):
        hard = random.normal(size=len(LABELS))  # an image that is hard is so for all
        groups = []
        for mean in (0.70, 0.73):
            runs = {}
            for seed in range(4):
                quality = np.quantile(REFERENCE, mean) + 0.15 * random.normal()
                runs[seed] = answers(hard + random.normal(size=len(hard)) < quality * np.sqrt(2))
            groups.append(Group(str(mean), runs))
        found = compare_groups(*groups, draws=500).accuracy
        covered += found.both[0] <= 0.03 <= found.both[1]
        narrow += found.images[0] <= 0.03 <= found.images[1]
    assert 0.91 < covered / 300 <= 1.0
    assert narrow / 300 < 0.9  # leaving the seeds out promises too much


REFERENCE = np.random.default_rng(1).normal(size=200_000)


def test_the_bootstrap_is_the_plain_one_and_repeats():
    values = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], p=[0.1, 0.7, 0.2], size=300)
    error, interval = bootstrap_mean(values, draws=20_000, seed=3)
    random = np.random.default_rng(7)
    plain = np.array([values[random.integers(0, 300, 300)].mean() for _ in range(4000)])
    assert error == pytest.approx(plain.std(), rel=0.05)
    assert interval == pytest.approx(np.quantile(plain, [0.025, 0.975]), abs=0.01)
    assert (error, interval) == bootstrap_mean(values, draws=20_000, seed=3)
    assert mean_interval(values)[0] == pytest.approx(values.std(ddof=1) / np.sqrt(300))


def test_other_images_are_refused():
    other = Answers(LABELS, (LABELS + 3).astype(np.int32), np.zeros(len(LABELS), np.float32))
    with pytest.raises(ValueError, match="same images"):
        compare_groups(Group("a", {0: answers(first(9))}), Group("b", {0: other}))


def noted(test: str, **more) -> dict:
    """What `data.json` says of a test set with these pixels."""
    return {"examples": {"test": 400}, "stored_size": 8, "splits": {"test": {"pixels": test}}, **more}


def test_other_images_with_the_same_labels_are_refused():
    a = Group("a", {0: answers(first(300))}, {0: noted("x")})
    b = Group("b", {0: answers(first(340))}, {0: noted("y")})
    with pytest.raises(ValueError, match="same images: 400 images each, but other ones"):
        compare_groups(a, b)
    assert compare_groups(a, Group("b", b.runs, {0: noted("x")})).accuracy.difference == pytest.approx(0.1)


def test_images_of_which_nobody_knows_which_they_were_are_refused():
    a = Group("a", {0: answers(first(300))}, {0: noted("x")})
    with pytest.raises(ValueError, match="does not say"):
        compare_groups(a, Group("b", a.runs, {0: {"examples": {"test": 400}}}))


def test_runs_of_one_group_that_were_tested_on_other_images_are_refused():
    runs = {0: answers(first(300)), 1: answers(first(310))}
    mixed = Group("mixed", runs, {0: noted("x"), 1: noted("y")})
    for paired in (True, False):
        with pytest.raises(ValueError, match="the runs of mixed were not tested"):
            compare_groups(mixed, Group("b", runs), paired=paired)


def test_without_pairing_images_and_seeds_are_independent():
    runs = {seed: answers(first(count)) for seed, count in enumerate((200, 260, 320))}
    better = {seed: answers(first(count + 10)) for seed, count in enumerate((200, 260, 320))}
    a, b = (
        Group("a", runs, dict.fromkeys(range(3), noted("x"))),
        Group("b", better, dict.fromkeys(range(3), noted("y"))),
    )
    found = compare_groups(a, b, paired=False)
    assert found.accuracy.difference == pytest.approx(10 / 400)
    assert (found.accuracy.paired, found.by_image, found.alike) == (False, False, False)
    assert (found.only_a, found.only_b) == (None, None)
    means = [np.mean([run.hits for run in group.runs.values()], axis=0) for group in (a, b)]
    error = np.hypot(*(mean.std(ddof=1) / 20 for mean in means))
    assert found.accuracy.images[1] - 10 / 400 == pytest.approx(1.96 * error, rel=1e-3)
    apart = Group("b", {seed + 5: run for seed, run in better.items()})
    assert found.accuracy.seeds == pytest.approx(compare_groups(Group("a", runs), apart).accuracy.seeds)


def test_answers_are_kept_and_damage_is_told(tmp_path):
    assert read_answers(tmp_path) is None
    write_answers(tmp_path, answers(first(123)))
    assert read_answers(tmp_path).hits.sum() == 123
    (tmp_path / "answers.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(RunError, match="damaged"):
        read_answers(tmp_path)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("model=ViT,training=AdamW, 2× epochs", {"model": "ViT", "training": "AdamW, 2× epochs"}),
        ("training=SAM, ρ = 0.05", {"training": "SAM, ρ = 0.05"}),
        ("training='SAM, ρ = 0.05', model = ViT", {"training": "SAM, ρ = 0.05", "model": "ViT"}),
        ('model="a,training=b"', {"model": '"a', "training": 'b"'}),  # a label's name after a comma begins a label
        ("training=", {"training": ""}),
    ],
)
def test_labels_may_hold_commas_and_equal_signs(chosen, expected):
    assert _read_labels(chosen, {"model", "training"}) == expected


@pytest.mark.parametrize("chosen", ["", "ViT", "size=3", "x, model=ViT"])
def test_what_names_no_label_is_refused(chosen):
    with pytest.raises(RunError, match="LABEL=VALUE") as caught:
        _read_labels(chosen, {"model", "training"})
    assert "model, training" in str(caught.value.fix)
