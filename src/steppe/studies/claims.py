"""Whether a claim holds: the difference of its two sides over seeds, with a 95 % interval.

Where all measures have seeds in common, the difference is taken seed by seed and the interval is Student's t of those
differences: what the runs of a seed share (splits, first weights, the order of the images) cancels. Where they have
none in common, the spread of each measure is carried through to the difference to first order, with the degrees of
freedom of Welch and Satterthwaite. With one seed nothing can be said of chance, and the claim stays undecided.

A few test images give few different accuracies, and seeds that happen to give the same difference do not show how far
another would be off: an ordering of accuracies that has no spread at all stays undecided too.

Many claims are many chances to be wrong: of twenty true ones, one is expected outside its interval.
"""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from steppe.chance import half_interval, mean_error, pooled_error
from steppe.config.cells import Measure
from steppe.config.claims import Claim, Expression
from steppe.studies.measures import is_exact, is_share

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
NOT_MEASURED, NOT_HERE = "not measured yet", "not at this scale"

Seeds = Mapping[int, float]
"""A measure's value for every seed."""


@dataclass(frozen=True)
class Verdict:
    """What became of a claim."""

    verdict: str
    reason: str = ""
    difference: float | None = None
    """left side less right side"""
    low: float | None = None
    high: float | None = None
    seeds: int = 0
    """how many seeds the interval comes from; 0 where no chance is in it"""
    paired: bool = False


def judge(claim: Claim, values: Mapping[Measure, Seeds]) -> Verdict:
    """Judge a claim by the values of its measures, each with at least one seed.

    Args:
        claim: the comparison.
        values: seed -> value, for every measure the claim names.
    """
    try:
        return _judge(claim, values)
    except (ZeroDivisionError, OverflowError):
        return Verdict(UNDECIDED, "it divides by zero")


def _judge(claim: Claim, values: Mapping[Measure, Seeds]) -> Verdict:
    def difference(at: Mapping[Measure, float]) -> float:
        return evaluate(claim.left, at) - evaluate(claim.right, at)

    means = {measure: statistics.fmean(seeds.values()) for measure, seeds in values.items()}
    chancy = {measure: seeds for measure, seeds in values.items() if measure.chosen_axes or not is_exact(measure.name)}
    if not chancy:
        found = difference(means)
        return _decide(claim, found, found, found)
    common = sorted(set.intersection(*(set(seeds) for seeds in chancy.values())))
    if len(common) > 1:
        each = [difference({**means, **{m: seeds[seed] for m, seeds in chancy.items()}}) for seed in common]
        middle, error = statistics.fmean(each), mean_error(each)
        if _vanishes(error[0], middle) and _unknown_spread(claim, chancy):
            return Verdict(UNDECIDED, "all seeds give the same difference", middle, middle, middle, len(each), True)
        half = half_interval(error)
        return _decide(claim, middle, middle - half, middle + half, seeds=len(each), paired=True)
    middle = difference(means)
    if any(len(seeds) < 2 for seeds in chancy.values()):
        return Verdict(UNDECIDED, "not enough seeds to say", middle, seeds=1)
    half = _carried_error(difference, means, chancy)
    seeds = min(len(some) for some in chancy.values())
    if _vanishes(half, middle) and _unknown_spread(claim, chancy):
        return Verdict(UNDECIDED, "all seeds give the same difference", middle, middle, middle, seeds)
    return _decide(claim, middle, middle - half, middle + half, seeds=seeds)


def _vanishes(error: float, middle: float) -> bool:
    """Whether an error is rounding alone."""
    return error <= 1e-12 * max(1.0, abs(middle))


def _unknown_spread(claim: Claim, chancy: Mapping[Measure, Seeds]) -> bool:
    """Whether no spread at all is likely to be chance: for an ordering of shares of images."""
    return claim.sign != "=" and any(is_share(measure.name) for measure in chancy)


def _carried_error(
    difference: Callable[[Mapping[Measure, float]], float],
    means: Mapping[Measure, float],
    chancy: Mapping[Measure, Seeds],
) -> float:
    """Half the interval of independent measures, by their spreads and the slopes of the difference."""
    parts = []
    for measure, seeds in chancy.items():
        step = 1e-6 * max(1.0, abs(means[measure]))
        up, down = ({**means, measure: means[measure] + sign * step} for sign in (1, -1))
        slope = (difference(up) - difference(down)) / (2 * step)
        variance = slope**2 * statistics.variance(seeds.values()) / len(seeds)
        parts.append((variance, len(seeds) - 1))
    return half_interval(pooled_error(parts))


def _decide(claim: Claim, middle: float, low: float, high: float, *, seeds: int = 0, paired: bool = False) -> Verdict:
    if not all(math.isfinite(number) for number in (middle, low, high)):
        return Verdict(UNDECIDED, "it cannot be computed: the numbers are not finite")
    if claim.sign == "=":
        sure, contrary = -claim.margin <= low and high <= claim.margin, low > claim.margin or high < -claim.margin
    else:
        least, most = (low, high) if claim.sign in (">", ">=") else (-high, -low)
        strict = claim.sign in (">", "<")
        sure = least > claim.margin if strict else least >= claim.margin
        contrary = most <= claim.margin if strict else most < claim.margin
    verdict = HOLDS if sure else FAILS if contrary else UNDECIDED
    reason = "" if verdict != UNDECIDED else "the interval reaches to both sides"
    return Verdict(verdict, reason, middle, low, high, seeds, paired)


def evaluate(expression: Expression, at: Mapping[Measure, float]) -> float:
    """Compute an expression from the values of its measures."""
    if isinstance(expression, float):
        return expression
    if isinstance(expression, Measure):
        return at[expression]
    left, right = evaluate(expression.left, at), evaluate(expression.right, at)
    return _COMPUTE[expression.sign](left, right)


_COMPUTE: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
