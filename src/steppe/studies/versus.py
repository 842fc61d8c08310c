"""Two runs, or two groups of runs that differ in their seed alone, on one test set: how much better, and how sure.

Chance comes in twice. Another seed would have trained another model; other test images would have been answered
otherwise. The first is judged by Student's t over seeds (paired where both groups have the same ones), the second by a
bootstrap over the images, which both groups share. The two are independent, so the squares of their halves add up for
the interval that stands for both (never narrower than either; with few seeds a little too wide).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steppe.chance import LEVEL, Interval, half_interval, quantile, seed_error
from steppe.data import has_same_images
from steppe.runs import Answers


@dataclass(frozen=True)
class Group:
    """Runs of one configuration: their answers, and what their `data.json` say, by seed."""

    name: str
    runs: dict[int, Answers]
    data: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Where it is not given, labels alone tell other images."""


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
    only_a: int | None
    """images that A alone gets right, in the median run; None where the images are not paired"""
    only_b: int | None
    by_image: bool = True
    """Whether the images are paired: both answered the same ones."""

    @property
    def one_seed(self) -> bool:
        """Whether nothing is known of other seeds."""
        return self.accuracy.seeds is None

    @property
    def alike(self) -> bool:
        """Whether both gave every image the same answers, with the same certainty."""
        if not self.by_image or set(self.a.runs) != set(self.b.runs):
            return False
        pairs = [(run, self.b.runs[seed]) for seed, run in self.a.runs.items()]
        return all(np.array_equal(p.answers, q.answers) and np.array_equal(p.nll, q.nll) for p, q in pairs)


def compare_groups(a: Group, b: Group, *, draws: int = 10_000, seed: int = 0, paired: bool = True) -> Versus:
    """Compare two groups on the test set they share, or each on its own.

    Args:
        a: the first, at least one run.
        b: the second.
        draws: of the bootstrap.
        seed: of the bootstrap.
        paired: image by image, and seed by seed where both have the same; False takes A and B as independent.

    Raises:
        ValueError: the runs were not tested on the same images; without `paired`, those of one group.
    """
    for one, other in ((a, a), (b, b), *([(a, b)] if paired else [])):
        if reason := _tell_other_images(one, other):
            of = "" if one is not other else f" of {one.name}"
            raise ValueError(f"the runs{of} were not tested on the same images: {reason}")
    hits = [{s: run.hits.astype(np.float64) for s, run in group.runs.items()} for group in (a, b)]
    nll = [{s: run.nll.astype(np.float64) for s, run in group.runs.items()} for group in (a, b)]
    if not paired:
        accuracy, loss = (_unpaired(sides[0], sides[1]) for sides in (hits, nll))
        return Versus(a, b, accuracy, loss, None, None, by_image=False)
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


def _tell_other_images(a: Group, b: Group) -> str:
    """Why the runs of two groups, or of one, were not all tested on the same images; empty where they were."""
    groups = [a] if a is b else [a, b]
    labels = [run.labels for group in groups for run in group.runs.values()]
    noted = [group.data[seed] for group in groups if group.data for seed in group.runs]
    sizes = [len(one) for one in labels]
    if len(set(sizes)) > 1:
        return f"{min(sizes)} images and {max(sizes)}"
    same = [has_same_images(noted[0], one, "test") for one in noted]
    if False in same or any(not np.array_equal(one, labels[0]) for one in labels):
        return f"{sizes[0]} images each, but other ones"
    return "data.json does not say of all which ones they were" if None in same and len(same) > 1 else ""


def _difference(
    a: BySeed, b: BySeed, over_images: Callable[[NDArray[np.float64]], tuple[float, Interval]]
) -> Difference:
    mean_a, mean_b = (np.mean(list(group.values()), axis=0) for group in (a, b))
    image_error, images = over_images(mean_b - mean_a)
    middle = float((mean_b - mean_a).mean())
    paired = set(a) == set(b)
    seeds, both = _over_seeds(a, b, middle, image_error)
    return Difference(float(mean_a.mean()), float(mean_b.mean()), middle, images, seeds, both, paired)


def _unpaired(a: BySeed, b: BySeed) -> Difference:
    """B less A where each side has images and seeds of its own: normal intervals over images, Welch's over seeds."""
    means = [np.mean(list(group.values()), axis=0) for group in (a, b)]
    low, high = (float(values.mean()) for values in means)
    image_error = math.hypot(*(mean_interval(values)[0] for values in means))
    half = image_error * quantile()
    apart = {-1 - seed: values for seed, values in b.items()}  # no seed of one side is one of the other
    seeds, both = _over_seeds(a, apart, high - low, image_error)
    return Difference(low, high, high - low, (high - low - half, high - low + half), seeds, both, False)


def _over_seeds(a: BySeed, b: BySeed, middle: float, image_error: float) -> tuple[Interval | None, Interval | None]:
    """The interval over seeds, and that over seeds and images; None where a side has one seed."""
    error = seed_error(*({seed: float(values.mean()) for seed, values in group.items()} for group in (a, b)))
    if error is None:
        return None, None
    half = half_interval(error)
    seeds = (middle - half, middle + half)
    half = math.hypot(half, image_error * quantile())
    return seeds, (middle - half, middle + half)


def name_seeds(seeds: Sequence[int]) -> str:
    """Seeds in words: "seed 0", "seeds 0, 1, 2".

    Args:
        seeds: their numbers.
    """
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, sorted(seeds)))}"
