"""The sentences say what the numbers allow, and no more."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from steppe.report import summarise
from steppe.report.findings import compare, describe_comparisons, headline, pareto_front, supporting
from steppe.report.layout import lay_out
from steppe.report.significance import accuracy_interval, difference
from steppe.report.tables import MOST_METHODS, verdict_matrix
from steppe.runs import Answers, write_answers

SAM = {"name": "sam"}


def say(sentence):
    return "".join(text for text, _ in sentence)


def cell(new_run, accuracies, *, seconds=10.0, images=1_000_000, first=0, **values):
    """Runs of one configuration, one for each accuracy."""
    return [
        new_run(
            values={**values, "seed": seed},
            summary={"test": {"accuracy": a, "examples": images}, "time_s": seconds},
        )
        for seed, a in enumerate(accuracies, first)
    ]


def verdicts(runs):
    rows = summarise(runs)
    return compare(rows, lay_out(rows))


@pytest.mark.parametrize(
    ("sharp", "plain", "images", "verdict"),
    [
        ([0.970, 0.981, 0.975], [0.950, 0.960, 0.956], 1_000_000, "better"),  # 2.0 ± 0.25 by t(2) of the pairs
        ([0.950, 0.960, 0.956], [0.970, 0.981, 0.975], 1_000_000, "worse"),
        ([0.97, 0.98], [0.95, 0.96], 1000, "better"),  # seeds agree: the images alone leave 1.58
        ([0.97, 0.98], [0.95, 0.96], 500, "not significant"),  # and here 2.2
        ([0.97, 0.98], [0.96, 0.96], 1_000_000, "not significant"),  # 1.5 ± 6.4 by t(1)
        ([0.96, 0.96], [0.96, 0.96], 1000, "not significant"),
        ([0.961, 0.961], [0.96, 0.96], 1000, "not significant"),  # one image of a thousand
        ([0.97, 0.98], [0.95, 0.96], None, "not significant"),  # no spread at all, and nothing known of images
        ([0.99], [0.90, 0.91], 1000, "one seed"),
    ],
)
def test_verdict(new_run, sharp, plain, images, verdict):
    runs = cell(new_run, sharp, minimizer=SAM, images=images) + cell(new_run, plain, images=images)
    found = [c for c in verdicts(runs) if c.budget == "epochs"]
    assert [c.verdict for c in found] == [verdict]
    assert found[0].difference == pytest.approx(sum(sharp) / len(sharp) - sum(plain) / len(plain))


def two_rows(new_run, sharp, plain, **options):
    both = summarise(cell(new_run, plain) + cell(new_run, sharp, minimizer=SAM, **options))
    return both[1], both[0]


def test_the_interval_by_hand(new_run):
    # differences 1, 2 and 3 points: a standard error of 1/√3, and t(2) = 4.3027; 10⁶ images add next to nothing
    found = difference(*two_rows(new_run, [0.96, 0.97, 0.98], [0.95, 0.95, 0.95]))
    assert found.half == pytest.approx(0.01 / 3**0.5 * 4.30265, rel=1e-3)
    # other seeds: Welch. Variances 1e-4 and 0, so t(2) again
    found = difference(*two_rows(new_run, [0.96, 0.97, 0.98], [0.95, 0.95, 0.95], first=7))
    assert found.half == pytest.approx(0.01 / 3**0.5 * 4.30265, rel=1e-3)
    # one seed: 0.9 and 0.8 of a million images
    found = difference(*two_rows(new_run, [0.9], [0.8]))
    assert found.half == pytest.approx(1.95996 * ((0.09 + 0.16) / 1e6) ** 0.5, rel=1e-4)
    assert found.one_seed


def test_answers_say_more_than_the_number_of_images(new_run):
    runs = cell(new_run, [0.8], images=100) + cell(new_run, [0.9], minimizer=SAM, images=100)
    blind = difference(*reversed(summarise(runs)))
    labels, right = np.zeros(100, np.int32), np.arange(100)
    for run, share in zip(runs, (80, 90), strict=True):  # whatever the first gets right, the second gets right
        answers = (right >= share).astype(np.int32)
        write_answers(run.path, Answers(answers, labels, np.zeros(100, np.float32)))
    seen = difference(*reversed(summarise(runs)))
    assert not blind.significant or blind.half > seen.half
    assert seen.half == pytest.approx(1.95996 * (0.1 * 0.9 / 100) ** 0.5, rel=1e-4)  # ten of a hundred differ
    (runs[0].path / "answers.safetensors").write_bytes(b"damaged")
    assert difference(*reversed(summarise(runs))).half == pytest.approx(blind.half)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_chance_alone_seldom_wins(new_run, seeds):
    (row,) = summarise([new_run()])
    random = np.random.default_rng(0)

    def draw():
        accuracies = dict(enumerate(random.normal(0.9, 0.01, seeds)))
        return dataclasses.replace(row, accuracies=accuracies, test_images=1e9, folders={})

    won = sum(difference(draw(), draw()).significant for _ in range(2000))
    assert 0.03 < won / 2000 < 0.07  # the rule of before: 29 % with two seeds, 16 % with three


def test_the_interval_of_an_accuracy(new_run):
    (row,) = summarise(cell(new_run, [0.8, 0.82], images=None))
    assert accuracy_interval(row) == pytest.approx((0.81 - 12.7062 * 0.01, 0.81 + 12.7062 * 0.01), rel=1e-4)
    (row,) = summarise(cell(new_run, [0.813, 0.813], images=1000))  # seeds that agree leave what the images leave
    assert accuracy_interval(row) == pytest.approx((0.7877, 0.8360), abs=2e-4)
    (row,) = summarise(cell(new_run, [0.8], images=None))
    assert accuracy_interval(row) is None


def test_equal_epochs_and_equal_gradients_are_told_apart(new_run):
    runs = [
        *cell(new_run, [0.97, 0.98], minimizer=SAM),
        *cell(new_run, [0.90, 0.91]),
        *cell(new_run, [0.99, 1.0], budget={"epochs": 40}),
    ]
    found = {c.budget: c for c in verdicts(runs)}
    assert found["epochs"].verdict == "better"
    assert found["gradient evaluations"].verdict == "worse"
    assert found["gradient evaluations"].plain.endswith("40")


def test_who_was_given_the_same_seconds_is_compared_at_these_alone(new_run):
    runs = [
        *cell(new_run, [0.97, 0.98], minimizer=SAM, budget={"seconds": 30}),
        *cell(new_run, [0.90, 0.91], budget={"seconds": 30}),  # by chance with as many epochs
        *cell(new_run, [0.99, 1.0], budget={"seconds": 60}),
    ]
    for run, seconds in zip(runs, (30, 30, 30, 30, 60, 60), strict=True):
        run.write("summary.json", run.read("summary.json") | {"time_s": seconds + 0.01})
    found = {(c.budget, c.plain.endswith("60"), c.verdict) for c in verdicts(runs)}
    assert ("seconds", False, "better") in found
    assert not any(budget == "seconds" and longer for budget, longer, _ in found)
    assert ("epochs", False, "better") not in found
    for run in runs[:2]:
        run.write("summary.json", run.read("summary.json") | {"time_s": 5.0})
    assert not any(c.budget == "seconds" for c in verdicts(runs)), "who lost patience did not spend them"


def test_many_methods_on_few_models_stand_below_each_other(new_run):
    def matrix(count):
        radii = [round(0.01 * (n + 1), 2) for n in range(count)]
        runs = [run for rho in radii for run in cell(new_run, [0.97], minimizer={"name": "sam", "rho": rho})]
        runs += cell(new_run, [0.90])
        names = [*(f"SAM {rho}" for rho in radii), "AdamW"]
        listed = [{"run_id": r.id, "labels": {"training": n}, "seed": 0} for r, n in zip(runs, names, strict=True)]
        rows = summarise(runs, {"runs": listed})
        layout = lay_out(rows)
        return verdict_matrix(compare(rows, layout), layout)

    few, many = matrix(MOST_METHODS), matrix(MOST_METHODS + 1)
    assert (len(few["columns"]), len(few["lines"])) == (MOST_METHODS, 1)
    assert [text for text, _ in few["groups"]] == ["At equal epochs"]
    assert (len(many["columns"]), len(many["lines"])) == (1, MOST_METHODS + 1)
    ((group, span),) = many["groups"]
    assert group == "Against AdamW, at equal epochs"
    assert span == 1
    assert all(line["cells"][0]["text"].startswith("+7.00") for line in many["lines"])


def test_only_twins_are_compared(new_run):
    runs = cell(new_run, [0.97, 0.98], minimizer=SAM) + cell(new_run, [0.90, 0.91], optimizer={"name": "sgd"})
    assert verdicts(runs) == []


def test_counts_over_models(new_run):
    runs = [
        *cell(new_run, [0.97, 0.98], model={"name": "a"}, minimizer=SAM),
        *cell(new_run, [0.90, 0.91], model={"name": "a"}),
        *cell(new_run, [0.95, 0.97], model={"name": "b"}, minimizer=SAM),
        *cell(new_run, [0.95, 0.96], model={"name": "b"}),
        *cell(new_run, [0.95], model={"name": "c"}, minimizer=SAM),
        *cell(new_run, [0.99], model={"name": "c"}),
    ]
    (sentence,) = describe_comparisons(verdicts(runs))
    expected = "At equal epochs, sam beats base significantly in 1 of 2 models (1 not significant)"
    assert say(sentence) == f"{expected}. With one seed, it leads in 0 of 1."


def test_one_model_is_told_by_its_difference(new_run):
    (sentence,) = describe_comparisons(
        verdicts(cell(new_run, [0.97, 0.98], minimizer=SAM) + cell(new_run, [0.95, 0.96]))
    )
    assert say(sentence) == "At equal epochs, sam is 2.00 points above base: a significant difference."


def test_headline_gives_the_best_its_spread_and_its_rivals(new_run):
    runs = [
        *cell(new_run, [0.96, 0.97, 0.98], images=10_000, model={"name": "best"}, seconds=30),
        *cell(new_run, [0.96, 0.965, 0.97], images=10_000, model={"name": "near"}, seconds=5),
        *cell(new_run, [0.80, 0.81, 0.82], images=10_000, model={"name": "far"}, seconds=1),
    ]
    rows = summarise(runs)
    assert say(headline(rows)) == "best is the most accurate: 97.0 %, with no significant difference to near."
    interval, fastest = map(say, supporting(rows))
    assert interval == "Its 95 % interval is 94.5 to 99.5 %, from 3 seeds and 10,000 test images."
    assert fastest == (
        "The fastest without a significant difference is near: 96.5 ± 0.5 % after 5.00 s instead of 30.0 s."
    )
    alone = [row for row in rows if row.labels["model.name"] != "near"]
    assert say(headline(alone)) == "best is the most accurate: 97.0 %, significantly ahead of all others."
    assert say(supporting(alone)[1]) == "No row that trains faster matches it."


def test_far_below_with_few_seeds_is_not_compared(new_run):
    runs = [
        *cell(new_run, [0.96, 0.97, 0.98], images=10_000, model={"name": "best"}),
        *cell(new_run, [0.96, 0.965, 0.97], images=10_000, model={"name": "near"}),
        *cell(new_run, [0.40, 0.70], images=10_000, model={"name": "scattered"}),
    ]
    rows = summarise(runs)
    assert say(headline(rows)).endswith("no significant difference to near.")
    assert say(supporting(rows)[1]) == "Too few seeds to compare it with scattered."
    for name in ("third", "fourth"):
        runs += cell(new_run, [0.3, 0.8], images=10_000, model={"name": name})
    assert say(supporting(summarise(runs))[1]) == "Too few seeds to compare it with 3 of 4 other rows."


def test_one_seed_is_not_sold_as_a_result(new_run):
    rows = summarise(cell(new_run, [0.99], model={"name": "a"}) + cell(new_run, [0.97, 0.98], model={"name": "b"}))
    assert say(headline(rows)) == "a is the most accurate: 99.0 % with one seed, so this may be chance."
    interval, several = map(say, supporting(rows)[:2])
    assert interval == "Its 95 % interval is 99.0 to 99.0 %, from one seed and 1,000,000 test images."
    assert several == "Of the rows with several seeds, b leads with 97.5 %."


def test_nothing_finished(new_run):
    assert say(headline(summarise([new_run(status=None)]))).startswith("No run has finished yet")
    assert say(headline(summarise([new_run(values={"seed": 1}, status="failed")]))).endswith("all of them failed.")
    assert supporting(summarise([new_run(values={"seed": 2}, status=None)])) == []


def test_trials_of_a_search_compare_by_their_validation_images(new_run):
    def trial(name, val, time_s, test=None):
        summary = {"val": {"accuracy": val}, "test": {"accuracy": test} if test else None, "time_s": time_s}
        return new_run(values={"model": {"name": name}}, summary=summary)

    under_way = [trial("a", 0.90, 1.0), trial("b", 0.95, 9.0), trial("c", 0.90, 2.0)]
    rows = summarise(under_way)
    assert say(headline(rows)) == "b leads with 95.0 % on the validation images; none is tested yet."
    assert [rows[i].config.model.name for i in pareto_front(rows)] == ["a", "b"]
    rows = summarise([*under_way, trial("d", 0.96, 20.0, test=0.80)])
    assert [rows[i].config.model.name for i in pareto_front(rows)] == ["a", "b", "d"]
    assert say(headline(rows)) == "d gets 80.0 % of the test images right."
    assert supporting(rows) == [], "the others were not tested"


def test_layout_puts_models_in_panels_and_methods_in_colours(study_runs):
    layout = lay_out(summarise(*study_runs))
    assert layout.panels == ["ResNet", "ViT", "Swin", "MLP-Mixer"]
    assert layout.series == ["AdamW", "SAM", "ASAM", "AdamW, twice the epochs"]
    assert layout.panel_word == "models"


def test_layout_of_models_alone_is_one_panel(new_run):
    layout = lay_out(summarise([new_run(values={"model": {"name": n}}) for n in "ab"]))
    assert layout.panels == [""]
    assert layout.series == ["a", "b"]
