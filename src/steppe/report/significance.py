"""Significant differences between rows: the rule of `steppe compare`, on what a report can read.

Over seeds Student's t decides, seed by seed where both rows have the same seeds. The choice of test images counts too.
Where every run kept its answers, the images are compared one by one. Otherwise the binomial spread of both accuracies
is used, which is usually wider: it ignores that both rows met the same images. A row is therefore hardly ever better
here where `steppe compare` sees no difference.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steppe.chance import Interval, half_interval, mean_error, quantile, seed_error, share_interval
from steppe.errors import RunError
from steppe.report.rows import Row
from steppe.runs import read_answers


@dataclass(frozen=True)
class Difference:
    """One row's test accuracy less another's."""

    middle: float
    half: float | None
    """half of the 95 % interval: over seeds and images, or over images alone with one seed; None where unknown"""
    one_seed: bool

    @property
    def significant(self) -> bool:
        """Whether the interval excludes zero."""
        return self.half is not None and abs(self.middle) > self.half


def difference(row: Row, other: Row) -> Difference:
    """Compare a row's accuracy with that of another of the same test images.

    Args:
        row: with a test accuracy.
        other: with a test accuracy too.
    """
    middle = statistics.fmean(row.accuracies.values()) - statistics.fmean(other.accuracies.values())
    error = seed_error(other.accuracies, row.accuracies)
    image_error = _image_error(row, other)
    half = math.hypot(half_interval(error), image_error * quantile() if image_error else 0.0)
    return Difference(middle, half if half > 1e-12 or image_error is not None else None, error is None)


def accuracy_interval(row: Row) -> Interval | None:
    """Return the 95 % interval of a row's accuracy, over seeds and test images; None where neither has a spread."""
    mean = statistics.fmean(row.accuracies.values())
    half = half_interval(mean_error(list(row.accuracies.values()))) if len(row.accuracies) > 1 else 0.0
    low, high = share_interval(mean, row.test_images) if row.test_images and 0 <= mean <= 1 else (mean, mean)
    if half <= 1e-12 and low == high:
        return None
    return max(0.0, mean - math.hypot(half, mean - low)), min(1.0, mean + math.hypot(half, high - mean))


def _image_error(row: Row, other: Row) -> float | None:
    """Return the standard error of the difference over test images; None where their number is unknown."""
    hits, others = _mean_hits(row), _mean_hits(other)
    if hits is not None and others is not None and len(hits) == len(others) > 1:
        return float((hits - others).std() / math.sqrt(len(hits)))
    images = min((one.test_images for one in (row, other) if one.test_images), default=None)
    means = [statistics.fmean(one.accuracies.values()) for one in (row, other)]
    return math.sqrt(sum(max(0.0, p * (1 - p)) for p in means) / images) if images else None


def _mean_hits(row: Row) -> NDArray[np.float64] | None:
    """Return for every test image the share of the row's runs that are right; None where a run kept no answers."""
    found = []
    for folder in row.folders.values():
        try:
            answers = read_answers(folder)
        except RunError:
            return None
        if answers is None:
            return None
        found.append(answers.hits.astype(np.float64))
    return np.mean(found, axis=0) if found and len({hits.shape for hits in found}) == 1 else None
