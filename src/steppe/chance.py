"""How far chance can carry a difference: the few statistics that comparing, judging claims and reporting share.

Chance comes in twice. Another seed would have trained another model: that is judged by Student's t over seeds, of
seed-by-seed differences where both sides have the same seeds, by Welch's formula otherwise. Other test images would
have been answered otherwise: that is the standard error of a mean over images. The two are independent, so the squares
of their halves add up (with few seeds a little too wide).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping

from scipy.special import stdtrit

LEVEL = 0.95
Interval = tuple[float, float]


def quantile(freedom: float = math.inf) -> float:
    """How many standard errors half of an interval has.

    Args:
        freedom: degrees of freedom of the standard error; infinite where it is known.
    """
    return float(stdtrit(freedom, (1 + LEVEL) / 2))


def pooled_error(parts: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """The standard error of a sum of independent parts, and its degrees of freedom by Welch and Satterthwaite.

    Args:
        parts: the variance of each part's mean, with its degrees of freedom.
    """
    known = [(variance, freedom) for variance, freedom in parts if variance]
    total = sum(variance for variance, _ in known)
    freedom = total**2 / sum(variance**2 / own for variance, own in known) if total else math.inf
    return math.sqrt(total), freedom


def seed_error(a: Mapping[int, float], b: Mapping[int, float]) -> tuple[float, float] | None:
    """The standard error over seeds of the difference of two means, and its degrees of freedom.

    Args:
        a: a measure of one side, by seed.
        b: of the other. With the same seeds the differences are taken seed by seed: what they share cancels.

    Returns:
        None where a side has a single seed.
    """
    if min(len(a), len(b)) < 2:
        return None
    if set(a) == set(b):
        return mean_error([b[seed] - a[seed] for seed in a])
    return pooled_error((statistics.variance(side.values()) / len(side), len(side) - 1) for side in (a, b))


def mean_error(values: list[float]) -> tuple[float, float]:
    """The standard error of a mean of at least two values, and its degrees of freedom."""
    return statistics.stdev(values) / math.sqrt(len(values)), len(values) - 1


def half_interval(error: tuple[float, float] | None) -> float:
    """Half of the interval that a standard error and its degrees of freedom leave; 0 where there is none."""
    return error[0] * quantile(error[1]) if error and error[0] else 0.0


def share_interval(share: float, images: float) -> Interval:
    """Wilson's interval of a share of so many images.

    Args:
        share: between 0 and 1.
        images: how many there are.
    """
    z = quantile()
    middle = (share + z * z / (2 * images)) / (1 + z * z / images)
    reach = z / (1 + z * z / images) * math.sqrt(share * (1 - share) / images + z * z / (4 * images * images))
    return max(0.0, middle - reach), min(1.0, middle + reach)
