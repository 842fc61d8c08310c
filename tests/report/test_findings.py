"""The sentences say what the numbers allow, and no more."""

from __future__ import annotations

import pytest

from steppe.report import summarise
from steppe.report.findings import compare, headline, supporting, tell
from steppe.report.layout import lay_out

SAM = {"name": "sam"}


def say(sentence):
    return "".join(text for text, _ in sentence)


def cell(new_run, accuracies, *, seconds=10.0, **values):
    """Runs of one configuration, one for each accuracy."""
    return [
        new_run(
            values={**values, "seed": seed},
            summary={"test": {"accuracy": a, "examples": 1000}, "time_s": seconds},
        )
        for seed, a in enumerate(accuracies)
    ]


def verdicts(runs, examples=1000.0):
    rows = summarise(runs)
    return compare(rows, lay_out(rows), examples)


@pytest.mark.parametrize(
    ("sharp", "plain", "verdict"),
    [
        ([0.97, 0.98], [0.95, 0.96], "better"),  # 2 points, spread 1.0
        ([0.95, 0.96], [0.97, 0.98], "worse"),
        ([0.95, 0.97], [0.955, 0.96], "within noise"),
        ([0.96, 0.96], [0.96, 0.96], "within noise"),
        ([0.961, 0.961], [0.96, 0.96], "within noise"),  # one image of a thousand
        ([0.962, 0.962], [0.96, 0.96], "better"),
        ([0.99], [0.90, 0.91], "one seed"),
    ],
)
def test_verdict(new_run, sharp, plain, verdict):
    runs = cell(new_run, sharp, minimizer=SAM) + cell(new_run, plain)
    found = [c for c in verdicts(runs) if c.budget == "epochs"]
    assert [c.verdict for c in found] == [verdict]
    assert found[0].difference == pytest.approx(sum(sharp) / len(sharp) - sum(plain) / len(plain))


def test_equal_epochs_and_equal_gradients_are_told_apart(new_run):
    runs = [
        *cell(new_run, [0.97, 0.98], minimizer=SAM),
        *cell(new_run, [0.90, 0.91]),
        *cell(new_run, [0.99, 0.995], budget={"epochs": 40}),
    ]
    found = {c.budget: c for c in verdicts(runs)}
    assert found["epochs"].verdict == "better"
    assert found["gradient evaluations"].verdict == "worse"
    assert found["gradient evaluations"].plain.endswith("40")


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
    (sentence,) = tell(verdicts(runs))
    expected = "At equal epochs, sam beats base in 1 of 2 models with several seeds (1 within noise)"
    assert say(sentence) == f"{expected}, and is ahead in 0 of 1 with one seed only."


def test_one_model_is_told_by_its_difference(new_run):
    (sentence,) = tell(verdicts(cell(new_run, [0.97, 0.98], minimizer=SAM) + cell(new_run, [0.95, 0.96])))
    assert say(sentence) == "At equal epochs, sam is 2.00 points above base: more than the seeds spread."


def test_headline_gives_the_best_its_spread_and_its_rivals(new_run):
    runs = [
        *cell(new_run, [0.96, 0.98], model={"name": "best"}, seconds=30),
        *cell(new_run, [0.96, 0.97], model={"name": "near"}, seconds=5),
        *cell(new_run, [0.80, 0.81], model={"name": "far"}, seconds=1),
    ]
    rows = summarise(runs)
    assert say(headline(rows)) == (
        "best is the most accurate, at 97.0 ± 1.4 % over 2 seeds, but one other row came within one standard deviation."
    )
    (cheapest,) = supporting(rows)
    assert say(cheapest) == (
        "The cheapest within one standard deviation of it is near: 96.5 ± 0.7 % after 5.00 s of training "
        "instead of 30.0 s."
    )


def test_one_seed_is_not_sold_as_a_result(new_run):
    rows = summarise(cell(new_run, [0.99], model={"name": "a"}) + cell(new_run, [0.97, 0.98], model={"name": "b"}))
    assert say(headline(rows)) == "a is the most accurate, at 99.0 % with one seed: chance is not ruled out."
    assert say(supporting(rows)[0]) == "Of the rows with several seeds, b leads with 97.5 ± 0.7 % over 2 seeds."


def test_nothing_finished(new_run):
    assert say(headline(summarise([new_run(status=None)]))).startswith("No run has finished yet")
    assert say(headline(summarise([new_run(values={"seed": 1}, status="failed")]))).endswith("all of them failed.")
    assert supporting(summarise([new_run(values={"seed": 2}, status=None)])) == []


def test_layout_puts_models_in_panels_and_methods_in_colours(study_runs):
    layout = lay_out(summarise(*study_runs))
    assert layout.panels == ["ResNet", "ViT", "Swin", "MLP-Mixer"]
    assert layout.series == ["AdamW", "SAM", "ASAM", "AdamW, twice the epochs"]
    assert layout.panel_word == "models"


def test_layout_of_models_alone_is_one_panel(new_run):
    layout = lay_out(summarise([new_run(values={"model": {"name": n}}) for n in "ab"]))
    assert layout.panels == [""]
    assert layout.series == ["a", "b"]
