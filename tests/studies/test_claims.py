from __future__ import annotations

import math

import pytest
from scipy import stats

from steppe.config.cells import Measure
from steppe.config.claims import parse_claim
from steppe.studies.claims import FAILS, HOLDS, UNDECIDED, judge


def judged(text: str, **values):
    """Judge a claim about a[], b[]… by their values: a list is seeds 0, 1, …, a dict is seed -> value."""
    seeds = {name: v if isinstance(v, dict) else dict(enumerate(v)) for name, v in values.items()}
    return judge(parse_claim(text), {Measure(name, ()): some for name, some in seeds.items()})


def test_paired_seeds_give_students_interval():
    a, b = [0.9, 0.8, 0.7, 0.75], [0.85, 0.76, 0.68, 0.70]
    verdict = judged("a[] > b[]", a=a, b=b)
    found = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert verdict.verdict == HOLDS
    assert verdict.low == pytest.approx(found.low)
    assert verdict.high == pytest.approx(found.high)
    assert (verdict.seeds, verdict.paired) == (4, True)


def test_seeds_that_do_not_match_give_welchs_interval():
    a, b = [0.9, 0.8, 0.7, 0.75], [0.3, 0.35, 0.5]
    verdict = judged("a[] > b[]", a=a, b={10: b[0], 11: b[1], 12: b[2]})
    found = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert verdict.verdict == HOLDS
    assert verdict.low == pytest.approx(found.low, rel=1e-6)
    assert verdict.high == pytest.approx(found.high, rel=1e-6)
    assert not verdict.paired


def test_only_the_seeds_in_common_are_paired():
    verdict = judged("a[] > b[]", a=[1, 2, 3], b={1: 1.5, 2: 2.5, 9: 100.0})
    assert (verdict.seeds, verdict.difference) == (2, 0.5)


@pytest.mark.parametrize(
    ("text", "a", "b", "verdict"),
    [
        ("a[] > b[]", [1.0, 1.1, 1.2], [2.0, 2.1, 2.3], FAILS),
        ("a[] < b[]", [1.0, 1.1, 1.2], [2.0, 2.1, 2.3], HOLDS),
        ("a[] < b[] by 2", [1.0, 1.1, 1.2], [2.0, 2.1, 2.3], FAILS),
        ("a[] > b[] by 0.2", [1.0, 1.1, 1.2], [0.7, 0.8, 0.91], HOLDS),
        ("a[] > b[]", [1.0, 2.0, 3.0], [2.0, 1.0, 3.5], UNDECIDED),
        ("a[] > b[]", [1.0, 2.0], [1.0, 2.0], FAILS),
        ("a[] >= b[]", [1.0, 2.0], [1.0, 2.0], HOLDS),
        ("accuracy[] > b[]", [0.978, 0.98], [0.975, 0.977], UNDECIDED),
        ("accuracy[] > b[]", [0.975, 0.98], [0.975, 0.98], UNDECIDED),
        ("accuracy[] > b[]", [0.978, 0.978], {7: 0.975, 8: 0.975}, UNDECIDED),
        ("accuracy[] = b[] within 0.01", [0.978, 0.98], [0.975, 0.977], HOLDS),
        ("a[] = b[] within 0.01", [1.0, 2.0], [1.0, 2.0], HOLDS),
        ("a[] = b[] within 0.01", [1.0, 2.0, 3.0], [1.5, 2.51, 3.5], FAILS),
        ("a[] = b[] within 0.5", [1.0, 2.0, 3.0], [1.5, 2.51, 3.5], UNDECIDED),
        ("a[] / b[] = 2 within 0.05", [2.0, 4.0, 8.1], [1.0, 2.0, 4.05], HOLDS),
        ("a[] - 2 * b[] < 0.1", [2.0, 4.0, 8.0], [1.0, 2.01, 4.0], HOLDS),
    ],
)
def test_verdicts(text, a, b, verdict):
    assert judged(text, **{"accuracy" if "accuracy" in text else "a": a, "b": b}).verdict == verdict


def test_a_ratio_of_independent_seeds_carries_both_spreads():
    a, b = [10.0, 11.0, 12.0], {7: 2.0, 8: 2.1, 9: 2.2}
    verdict = judged("a[] / b[] > 5", a=a, b=b)
    va, vb = 1.0 / 3, 0.01 / 3
    slope_a, slope_b = 1 / 2.1, 11 / 2.1**2
    error = math.sqrt(slope_a**2 * va + slope_b**2 * vb)
    freedom = error**4 / ((slope_a**2 * va) ** 2 / 2 + (slope_b**2 * vb) ** 2 / 2)
    assert verdict.high - verdict.low == pytest.approx(2 * error * stats.t.ppf(0.975, freedom), rel=1e-4)


def test_one_seed_says_nothing_except_of_what_is_no_chance():
    verdict = judged("a[] > b[]", a=[0.9], b=[0.1])
    assert (verdict.verdict, verdict.reason, verdict.low) == (UNDECIDED, "not enough seeds to say", None)
    assert verdict.difference == pytest.approx(0.8)
    assert judged("a[] > b[]", a=[0.9, 0.8], b=[0.1]).verdict == UNDECIDED
    claim = parse_claim("parameters[m=1] / parameters[m=2] > 3")
    sizes = dict(zip(claim.measures, ({0: 40.0}, {0: 10.0}), strict=True))
    assert judge(claim, sizes).verdict == HOLDS


def test_an_exact_measure_needs_no_seed_of_its_own():
    claim = parse_claim("time_s[m=1] / parameters[m=1] < 1")
    values = dict(zip(claim.measures, ({0: 1.0, 1: 1.2}, {0: 10.0}), strict=True))
    assert judge(claim, values).verdict == HOLDS


def test_division_by_zero_is_no_verdict():
    verdict = judged("a[] / b[] > 1", a=[1.0, 2.0], b=[0.0, 0.0])
    assert (verdict.verdict, verdict.reason) == (UNDECIDED, "it divides by zero")
