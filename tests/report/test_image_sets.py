"""Accuracies on different test images are never set against each other."""

from __future__ import annotations

import pytest

from steppe.report import summarise, write_report
from steppe.report.findings import answers, fronts, overall, supports, unbeaten
from steppe.report.image_sets import name_test_sets

TOYS = [{"name": "toy_rings", "variance": v} for v in (1.0, 15.0)]


def run_on(new_run, data, accuracy, *, seconds=10.0, examples=360, **values):
    found = {"test": {"accuracy": accuracy, "examples": examples}, "time_s": seconds}
    return new_run(values={"data": data, **values}, summary=found)


def say(sentence):
    return "".join(text for text, _ in sentence)


def test_the_answer_is_given_for_each_test_set(new_run):
    runs = [
        run_on(new_run, {"name": "mnist"}, 0.99, examples=10_000, seed=0),
        run_on(new_run, {"name": "mnist"}, 0.98, examples=10_000, minimizer={"name": "sam"}),
        run_on(new_run, {"name": "digits"}, 0.90),
        run_on(new_run, {"name": "digits"}, 0.95, minimizer={"name": "sam"}),
    ]
    told = [say(s) for s in answers(summarise(runs))]
    assert told == [
        "On mnist: base is the most accurate: 99.0 % with one seed, so this may be chance.",
        "On digits: sam is the most accurate: 95.0 % with one seed, so this may be chance.",
    ]


def test_one_test_set_is_not_named(new_run):
    runs = [run_on(new_run, {"name": "digits"}, 0.9), run_on(new_run, {"name": "digits"}, 0.95, batch_size=32)]
    assert not any(say(s).startswith("On ") for s in [*answers(summarise(runs)), *supports(summarise(runs))])


def test_an_unfinished_set_says_nothing(new_run):
    runs = [run_on(new_run, {"name": "digits"}, 0.9), new_run(values={"data": {"name": "mnist"}}, status=None)]
    assert [say(s)[:10] for s in answers(summarise(runs))] == ["On digits:"]
    waiting = [new_run(values={"data": d, "seed": 3}, status=None) for d in TOYS]
    assert [say(s)[:13] for s in answers(summarise(waiting))] == ["No run has fi"]


def test_fronts_are_of_one_test_set(new_run):
    runs = [
        run_on(new_run, TOYS[0], 0.99, seconds=1),  # easy, cheap: would beat everything
        run_on(new_run, TOYS[1], 0.70, seconds=5),
        run_on(new_run, TOYS[1], 0.80, seconds=9, batch_size=32),
        run_on(new_run, TOYS[1], 0.60, seconds=9, batch_size=16),
    ]
    rows = summarise(runs)
    assert fronts(rows) == {"toy_rings · variance 1": [0], "toy_rings · variance 15": [1, 2]}
    assert unbeaten(rows) == {0, 1, 2}


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        ({"name": "a/photos"}, {"name": "b/photos/"}, ["a/photos", "b/photos"]),
        ({"name": "a/photos"}, {"name": "b/birds"}, ["photos", "birds"]),
        ({"split_seed": 0}, {"split_seed": 1}, ["digits · split seed 0", "digits · split seed 1"]),
        ({"fraction": 0.1}, {"fraction": 0.5}, ["digits", "digits"]),  # learns from less, is tested on the same
        ({"image_size": 8}, {"image_size": 16}, ["digits", "digits"]),
    ],
)
def test_what_tells_test_sets_apart(new_run, first, second, names):
    assert name_test_sets(summarise([new_run(values={"data": d}) for d in (first, second)])) == names


def test_images_count_by_their_own_test_set(new_run, tmp_path):
    """A difference of two points is more than 10,000 images leave to chance, and less than 360 do."""
    runs = []
    for name, examples in (("mnist", 10_000), ("digits", 360)):
        for minimizer, accuracy in (("base", 0.950), ("sam", 0.970)):
            for seed in (0, 1):
                values = {"seed": seed, "minimizer": {"name": minimizer}}
                runs.append(run_on(new_run, {"name": name}, accuracy, examples=examples, **values))
    page = write_report(runs, tmp_path / "r.html").read_text()
    verdicts = page.split('id="verdicts"')[1].split("</section>")[0]
    assert verdicts.count(">better<") == 1
    assert verdicts.count('not-significant">not significant<') == 1
    facts = page.split('class="facts"')[1].split("</dl>")[0]
    assert "2 data sets" in facts
    assert "10,000 test images of mnist, 360 test images of digits" in facts


def test_many_test_sets_get_one_sentence_over_all(new_run, tmp_path):
    runs = []
    for number, (plain, sharp) in enumerate([(0.80, 0.90), (0.70, 0.71), (0.95, 0.60), (0.5, 0.8)]):
        data = {"name": "toy_rings", "variance": number + 1}
        for minimizer, accuracy in (("base", plain), ("sam", sharp)):
            for seed in (0, 1):
                values = {"seed": seed, "minimizer": {"name": minimizer}}
                runs.append(run_on(new_run, data, accuracy + 0.02 * seed, **values))
    rows = summarise(runs)
    assert say(overall(rows)) == ("sam is the most accurate on 3 of 4 test sets, significantly so on 2 of them.")
    assert supports(rows) == []
    page = write_report(runs, tmp_path / "r.html").read_text()
    assert page.count('class="headline"') == 1
    assert "360 test images each" in page
    assert overall(rows[:4]) is None  # two of them
