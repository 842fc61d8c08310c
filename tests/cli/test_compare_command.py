"""`steppe compare A B`, on runs that were trained for real."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from steppe.cli.main import app
from steppe.cli.versus import _column, conclude
from steppe.config import RunConfig
from steppe.runs import Answers
from steppe.studies import execute
from steppe.studies.versus import Group, compare_groups


def steppe(*words: str):
    """The command's exit code and what it printed; an error of ours comes back as its text."""
    result = CliRunner().invoke(app, list(words))
    return result, result.output + (str(result.exception) if result.exception else "")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for minimizer, lr in (("base", 2e-3), ("sam", 1e-6)):
        for seed in (0, 1):
            values = {
                "seed": seed,
                "data": {"name": "digits", "fraction": 0.3},
                "model": {"name": "mlp_8"},
                "minimizer": {"name": minimizer},
                "optimizer": {"lr": lr},
                "budget": {"epochs": 3},
            }
            execute(RunConfig.model_validate(values), folder / minimizer / f"s{seed}")
    return folder


def test_groups_and_single_runs(runs, tmp_path):
    out = tmp_path / "found.json"
    _, text = steppe("compare", str(runs / "base"), str(runs / "sam"), "-o", str(out))
    assert "seeds 0, 1" in text
    assert "95 % over seeds, paired" in text
    found = json.loads(out.read_text())
    assert found["accuracy"]["difference"] < 0  # what hardly learned is worse
    assert found["conclusion"] in text.replace("\n", " ")
    _, text = steppe("compare", str(runs / "base/s0"), str(runs / "sam/s1"))
    assert "says nothing of other seeds" in text.replace("\n", " ")
    assert re.search(r"B − A +−\d", text)
    assert not re.search(r"-\d", text.split("on the test set")[1])  # a minus, no hyphen


def test_missing_answers_are_made_from_the_weights(runs, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(runs / "base/s0", copy)
    (copy / "answers.safetensors").unlink()
    _, text = steppe("compare", str(runs / "base/s0"), str(copy))
    assert "making the answers of copy" in text
    assert "0 images are right in A alone, 0 in B alone" in text
    assert "answer every test image alike" in text
    assert "other seeds" not in text
    assert (copy / "answers.safetensors").read_bytes() == (runs / "base/s0/answers.safetensors").read_bytes()


def test_labels_of_a_study_choose(runs, tmp_path):
    folder = tmp_path / "study"
    shutil.copytree(runs, folder)
    labels = {"base": "AdamW, plain", "sam": "SAM"}
    listed = [
        {"run_id": f"s{seed}", "labels": {"training": labels[name]}, "seed": seed}
        for name in ("base",)
        for seed in (0, 1)
    ]
    (folder / "study.json").write_text(json.dumps({"runs": listed}))
    shutil.rmtree(folder / "sam")
    _, text = steppe("compare", f"{folder}:training=AdamW, plain", f"{folder}:training=AdamW, plain")
    assert "answer every test image alike: there is nothing to decide" in text
    _, text = steppe("compare", f"{folder}:training=none", str(runs / "sam"))
    assert "no finished run has training=none" in text
    assert "training=AdamW, plain" in text


def test_wrong_input_gets_one_clear_message(runs, tmp_path):
    for words, what in (
        ((str(runs), str(runs / "sam")), "differ in more than their seed: minimizer.name"),
        ((str(tmp_path / "nothing"), str(runs)), "no such folder"),
        ((f"{runs}:training", str(runs)), "no study whose labels"),
    ):
        result, text = steppe("compare", *words)
        assert result.exit_code != 0
        assert what in text
    config = RunConfig.model_validate({"data": {"split_seed": 1}, "model": {"name": "mlp_8"}, "budget": {"epochs": 1}})
    execute(config, tmp_path / "other")
    _, text = steppe("compare", str(tmp_path / "other"), str(runs / "sam"))
    assert "not tested on the same images" in text


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Runs on two folders of 40 images of two classes each, which show other things."""
    monkeypatch.chdir(tmp_path)
    for name, seed in (("cats", 0), ("cars", 1)):
        random = np.random.default_rng(seed)
        for number in range(80):
            place = tmp_path / name / "ab"[number % 2]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(place / f"{number:02}.png")
        steppe("train", "--data", name, "--model", "mlp_8", "--epochs", "1", "-o", f"run-{name}")
    return tmp_path


def test_runs_on_other_images_are_refused(folders):
    result, text = steppe("compare", "run-cats", "run-cars")
    assert result.exit_code != 0
    assert "not tested on the same images: 16 images each, but other ones" in text
    assert "--unpaired" in text


def test_runs_on_other_images_are_compared_without_pairing(folders):
    result, text = steppe("compare", "run-cats", "run-cars", "--unpaired", "-o", "found.json")
    assert result.exit_code == 0, text
    assert "nothing is paired" in text
    found = json.loads((folders / "found.json").read_text())
    assert found["paired_images"] is False
    assert found["only_a"] is None


@pytest.mark.parametrize("keep", ["cache", "stream"])
def test_runs_that_kept_their_images_otherwise_are_compared(folders, monkeypatch, keep):
    monkeypatch.setenv("STEPPE_CACHE", str(folders / "cache"))
    common = ("--data", "cats", "--model", "mlp_8", "--epochs", "1", "--seed", "1")
    steppe("train", *common, "--keep", keep, "-o", "other")
    result, text = steppe("compare", "run-cats", "other")
    assert result.exit_code == 0, text


def test_runs_that_share_their_test_images_alone_are_compared(folders):
    """More training images, and images of another size."""
    for path in sorted((folders / "cars").rglob("*.png")):
        (folders / "cats" / "test" / path.parent.name).mkdir(parents=True, exist_ok=True)
        path.rename(folders / "cats" / "test" / path.parent.name / path.name)
    (folders / "cats" / "train").mkdir()
    for label in "ab":
        (folders / "cats" / label).rename(folders / "cats" / "train" / label)
    common = ("--data", "cats", "--model", "mlp_8", "--epochs", "1")
    steppe("train", *common, "-o", "all")
    steppe("train", *common, "--fraction", "0.5", "-o", "half")
    steppe("train", *common, "--image-size", "4", "-o", "small")
    next((folders / "cats" / "train" / "a").glob("*.png")).unlink()
    steppe("train", *common, "--seed", "1", "--keep", "stream", "-o", "fewer")
    for other in ("half", "small", "fewer"):
        result, text = steppe("compare", "all", other)
        assert result.exit_code == 0, text


def test_points_of_another_variance_are_other_points(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    common = ("--data", "toy_moons", "--model", "mlp_8", "--epochs", "1")
    for variance in ("0.1", "0.2"):
        steppe("train", *common, "--variance", variance, "-o", f"v{variance}")
    result, text = steppe("compare", "v0.1", "v0.2")
    assert result.exit_code != 0
    assert "same images" in text


LABELS = np.zeros(100, dtype=np.int32)


def group(name: str, *right: int) -> Group:
    """A run for each number of right answers."""

    def run(count: int) -> Answers:
        given = (np.arange(len(LABELS)) >= count).astype(np.int32)
        return Answers(given, LABELS, np.where(given == 0, 0.5, 3.0).astype(np.float32))

    return Group(name, {seed: run(count) for seed, count in enumerate(right)})


def test_equal_differences_are_not_taken_for_certainty():
    found = compare_groups(group("a", 60, 70, 80), group("b", 75, 85, 95))
    assert found.accuracy.stuck
    assert conclude(found).startswith("B is better than A by 15.00 points")
    assert "All seeds give the same difference" in conclude(found)
    assert _column(found.accuracy, 100, 2)[4:] == ["– (all the same)", "–"]


def test_what_is_not_decided_is_called_so():
    found = compare_groups(group("a", 60, 70, 80), group("b", 55, 95, 80))
    assert not found.accuracy.shown
    words = conclude(found)
    assert words.startswith("Undecided: B − A is +6.67 points, but the 95 % interval holds zero (−")
    assert "other seeds" not in words


def test_a_negative_difference_has_a_minus_sign():
    found = compare_groups(group("a", 80), group("b", 60))
    assert _column(found.accuracy, 100, 2)[2] == "−20.00"
    assert conclude(found).startswith("B is worse than A by 20.00 points (95 %: −")
    assert "one of them may turn it round" in conclude(found)
