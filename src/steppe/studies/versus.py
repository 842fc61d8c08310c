"""Two runs, or two groups of runs that differ in their seed alone, on one test set: how much better, and how sure.

Chance comes in twice. Another seed would have trained another model; other test images would have been answered
otherwise. The first is judged by Student's t over seeds (paired where both groups have the same ones), the second by a
bootstrap over the images, which both groups share. The two are independent, so the squares of their halves add up for
the interval that stands for both (never narrower than either; with few seeds a little too wide).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steppe.chance import LEVEL, Interval, half_interval, quantile, seed_error
from steppe.runs import Answers


@dataclass(frozen=True)
class Group:
    """Runs of one configuration: their answers, by seed."""

    name: str
    runs: dict[int, Answers]


@dataclass(frozen=True)
class Difference:
    """B less A in one measure."""

    a: float
    b: float
    difference: float
    images: Interval
    """of the same trained models on other test images"""
    seeds: Interval | None
    """of other seeds on the same test images; None with one seed"""
    both: Interval | None
    paired: bool

    @property
    def interval(self) -> Interval:
        """The widest that is known."""
        return self.both or self.images

    @property
    def shown(self) -> bool:
        """Whether the interval leaves zero out."""
        low, high = self.interval
        return low > 0 or high < 0

    @property
    def stuck(self) -> bool:
        """Whether several seeds gave one and the same difference: how far others would scatter is not known."""
        return self.seeds is not None and math.isclose(*self.seeds, rel_tol=1e-9, abs_tol=1e-12)


@dataclass(frozen=True)
class Versus:
    """What a comparison of two groups found."""

    a: Group
    b: Group
    accuracy: Difference
    nll: Difference
    only_a: int
    """images that A alone gets right, in the median run"""
    only_b: int

    @property
    def one_seed(self) -> bool:
        """Whether nothing is known of other seeds."""
        return self.accuracy.seeds is None

    @property
    def alike(self) -> bool:
        """Whether both gave every image the same answers, with the same certainty."""
        if set(self.a.runs) != set(self.b.runs):
            return False
        pairs = [(run, self.b.runs[seed]) for seed, run in self.a.runs.items()]
        return all(np.array_equal(p.answers, q.answers) and np.array_equal(p.nll, q.nll) for p, q in pairs)


def compare_groups(a: Group, b: Group, *, draws: int = 10_000, seed: int = 0) -> Versus:
    """Compare two groups on the test set they share.

    Args:
        a: the first, at least one run.
        b: the second.
        draws: of the bootstrap.
        seed: of the bootstrap.

    Raises:
        ValueError: the runs were not tested on the same images.
    """
    everything = [*a.runs.values(), *b.runs.values()]
    if any(not np.array_equal(run.labels, everything[0].labels) for run in everything):
        raise ValueError("the runs were not tested on the same images")
    hits = [{s: run.hits.astype(np.float64) for s, run in group.runs.items()} for group in (a, b)]
    nll = [{s: run.nll.astype(np.float64) for s, run in group.runs.items()} for group in (a, b)]
    accuracy = _difference(hits[0], hits[1], lambda each: bootstrap_mean(each, draws=draws, seed=seed))
    seeds = sorted(set(a.runs) & set(b.runs))
    pairs = [(hits[0][s], hits[1][s]) for s in seeds] or list(zip(hits[0].values(), hits[1].values(), strict=False))
    only_a, only_b = (int(statistics.median(int((p[i] > p[1 - i]).sum()) for p in pairs)) for i in (0, 1))
    return Versus(a, b, accuracy, _difference(nll[0], nll[1], mean_interval), only_a, only_b)


def bootstrap_mean(values: NDArray[np.float64], *, draws: int = 10_000, seed: int = 0) -> tuple[float, Interval]:
    """The standard error and the percentile interval of a mean, by resampling.

    Images of the same value are exchangeable, so the draws are multinomial over the distinct values: exact, and quick.

    Args:
        values: one an image.
        draws: how many resamplings.
        seed: of the draws.
    """
    distinct, counts = np.unique(values, return_counts=True)
    random = np.random.default_rng(seed)
    shares = counts / len(values)
    means = random.multinomial(len(values), shares, size=draws) @ distinct / len(values)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(means.std()), (float(low), float(high))


def mean_interval(values: NDArray[np.float64]) -> tuple[float, Interval]:
    """The standard error and the normal interval of a mean.

    Args:
        values: one an image.
    """
    error = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.inf
    half = error * quantile()
    return error, (float(values.mean()) - half, float(values.mean()) + half)


BySeed = dict[int, NDArray[np.float64]]


def _difference(
    a: BySeed, b: BySeed, over_images: Callable[[NDArray[np.float64]], tuple[float, Interval]]
) -> Difference:
    mean_a, mean_b = (np.mean(list(group.values()), axis=0) for group in (a, b))
    image_error, images = over_images(mean_b - mean_a)
    middle = float((mean_b - mean_a).mean())
    paired = set(a) == set(b)
    error = seed_error(*({seed: float(values.mean()) for seed, values in group.items()} for group in (a, b)))
    seeds = both = None
    if error is not None:
        half = half_interval(error)
        seeds = (middle - half, middle + half)
        half = math.hypot(half, image_error * quantile())
        both = (middle - half, middle + half)
    return Difference(float(mean_a.mean()), float(mean_b.mean()), middle, images, seeds, both, paired)


def name_seeds(seeds: Sequence[int]) -> str:
    """Seeds in words: "seed 0", "seeds 0, 1, 2".

    Args:
        seeds: their numbers.
    """
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, sorted(seeds)))}"
