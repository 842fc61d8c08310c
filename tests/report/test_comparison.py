"""Published figures beside measured ones, as `steppe study compare` left them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from steppe.report.comparison import claim_interval, published_studies, published_tables
from steppe.report.record import read_records
from steppe.report.studies import StudyRuns

TOYS = Path(__file__).parents[2] / "results" / "toys" / "compare.json"
CLAIM = {"text": "SAM <wins>", "holds": "a > b", "seed": "004", "verdict": "does not hold", "reason": "all below"}


def test_a_real_comparison():
    real = json.loads(TOYS.read_text())
    found = published_tables(real, finished=125)
    assert found is not None
    assert len(found["claims"]) == len(real["claims"])
    assert len(found["cells"]) + len(found["left_out"]) == len(real["cells"])
    assert sum(count for _, count, _ in found["counts"]) == len(real["claims"])
    assert {kind for verdict, _, kind in found["counts"] if verdict == "hold"} == {"better"}
    assert not found["stale"]


def test_words_of_a_claim_and_a_cell():
    numbers = {"difference": -0.0123, "low": -0.02, "high": -0.004, "seeds": 5, "paired": True}
    cell = {
        "value": 92.3,
        "unit": "%",
        "seed": "004",
        "table": "I",
        "row": "Accuracy",
        "column": "ADAM",
        "measure": "m",
    }
    measured = {"measured": 91.27, "std": 0.321, "seeds": 3, "of_seeds": 5, "difference": -1.03, "same": None}
    found = published_tables({"claims": [CLAIM | numbers], "cells": [cell | measured], "finished": 3}, finished=4)
    assert found is not None
    (claim,), (shown,) = found["claims"], found["cells"]
    assert (claim["verdict"], claim["kind"]) == ("does not hold", "worse")
    assert claim["interval"] == "−0.0123 (−0.02 to −0.004)"
    assert claim["details"] == "5 paired seeds; all below"
    assert shown["published"] == "92.3 %"
    assert shown["measured"] == "91.27 ± 0.321"
    assert (shown["difference"], shown["seeds"]) == ("−1.03", "3 of 5")
    assert found["stale"]
    assert "".join(text for text, _ in found["sentence"]) == "Of 1 published claim 0 hold, 1 does not hold."


@pytest.mark.parametrize(
    ("holds", "shown"),
    [
        ("test_accuracy[a=x] - test_accuracy[a=y] > 0.001", "−1.23 points (−2.00 to +0.40)"),
        ("shift.variance_80.error[a=x] < 0.5", "−1.23 points (−2.00 to +0.40)"),
        ("(test_accuracy[a=x] + test_accuracy[a=y]) / 2 > 0.5", "−1.23 points (−2.00 to +0.40)"),
        ("test_accuracy[a=x] / test_accuracy[a=y] > 1", "−0.0123 (−0.02 to 0.004)"),
        ("time_s[a=x] > test_accuracy[a=y]", "−0.0123 (−0.02 to 0.004)"),
        ("no claim at all", "−0.0123 (−0.02 to 0.004)"),
    ],
)
def test_shares_differ_by_points(holds, shown):
    assert claim_interval({"holds": holds, "difference": -0.0123, "low": -0.02, "high": 0.004}) == shown


@pytest.mark.parametrize(
    ("claims", "sentence"),
    [
        ([("004", "holds")], "Of 1 published claim 1 holds."),
        ([("", "undecided")] * 2, "Of 2 claims of our own 0 hold, 2 are undecided."),
        (
            [("", "not at this scale"), ("", "undecided"), ("002", "not measured yet"), ("002", "not measured yet")],
            "Of 4 claims (2 of them our own) 0 hold, 1 is undecided, 2 are not measured yet, "
            "1 cannot be judged at this scale.",
        ),
        (
            [("004", "holds"), ("004", "holds"), ("", "does not hold"), ("004", None)],
            "Of 4 claims (1 of them our own) 2 hold, 1 does not hold, 1 is undecided.",
        ),
    ],
)
def test_the_sentence_tells_published_from_own_and_undecided_from_not_measured(claims, sentence):
    found = published_tables({"claims": [{"seed": seed, "verdict": verdict} for seed, verdict in claims]}, finished=1)
    assert found is not None
    assert "".join(text for text, _ in found["sentence"]) == sentence


@pytest.mark.parametrize("odd", [{}, {"claims": 3, "cells": "x"}, {"claims": [1], "cells": [None]}])
def test_nothing_to_compare(odd):
    assert published_tables(odd, finished=1) is None


def test_odd_values_are_shown_as_they_are():
    odd = {"claims": [{"text": None, "verdict": 3, "low": "x"}], "cells": [{"measure": "m", "value": None, "same": 1}]}
    found = published_tables(odd, finished=0)
    assert found is not None
    assert found["claims"][0]["verdict"] == "3"


def test_a_run_of_no_study_makes_no_comparison_stale(new_run):
    """What lies in a study's folder and is not planned, such as a run of former settings."""
    own, stray = new_run(values={"seed": 0}), new_run(values={"seed": 1})
    about = {"name": "toys", "runs": [{"run_id": own.id, "labels": {}, "seed": 0}]}
    part = StudyRuns(read_records([own, stray]), about, {"claims": [CLAIM], "finished": 1})
    assert [one["stale"] for one in published_studies([part])] == [False]
    assert [one["stale"] for one in published_studies([replace(part, about={})])] == [True], "unless nothing is known"
