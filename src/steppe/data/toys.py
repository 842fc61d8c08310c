"""Two classes in the plane with noise of a known variance: the toy data of Gomez Donoso, Ghenassia and Vannier.

Their report trains a small perceptron (`mlp_10l_10_10_10`) at one variance and tests it at others. It shows its
distribution in a figure only, so these are three of our own that match what it says: two classes, two dimensions, sets
of 2000 points, a radius of 10 units so that variances from 1 to 30 run from clean to drowned in noise. A point is an
"image" of two channels and one pixel, (2, 1, 1), in floats: a model flattens it, and the loop, the loader and the
measures need to know nothing more.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from steppe.config import derive_seed
from steppe.data.dataset import Source, Split

RADIUS = 10.0
TOYS = {
    "toy_corners": "two classes in the plane, on opposite corners of a square",
    "toy_rings": "two classes in the plane, a disc's middle and the ring around it",
    "toy_moons": "two classes in the plane, two interleaved half circles",
}
COUNTS = {"train": 2000, "test": 2000}
"""The report's figure 6 shows sets of 2000 points."""


def read_toy(name: str, variance: float | None, seed: int) -> Source:
    """Draw training and test points of one variance (default: 1)."""
    parts = {
        split: make_toy(name, variance=1.0 if variance is None else variance, count=count, seed=seed, split=split)
        for split, count in COUNTS.items()
    }
    return Source(("0", "1"), parts["train"], None, parts["test"])


def make_toy(name: str, *, variance: float, count: int, seed: int, split: str = "test") -> Split:
    """Draw `count` points, half of each class. The same seed gives the same points, spread by √variance.

    Args:
        name: one of `TOYS`.
        variance: of the Gaussian noise, in each coordinate.
        count: how many points.
        seed: of the draw.
        split: points of different splits are independent.
    """
    rng = np.random.default_rng(derive_seed(seed, name, split))
    labels = np.arange(count) % 2
    along = rng.random(count)
    corner = rng.integers(0, 2, count)
    noise = rng.standard_normal((count, 2))
    if name == "toy_corners":
        x = np.where(corner, 1.0, -1.0)
        clean = np.stack([x, np.where(labels, -x, x)], 1) / math.sqrt(2)
    elif name == "toy_rings":
        angle = 2 * np.pi * along
        clean = np.stack([np.cos(angle), np.sin(angle)], 1) * np.where(labels, 1.0, 0.2)[:, None]
    else:
        assert name == "toy_moons", name
        angle = np.pi * along
        upper = np.stack([np.cos(angle) - 0.5, np.sin(angle) - 0.25], 1)
        clean = np.where(labels[:, None], -upper, upper)
    points = RADIUS * clean + math.sqrt(variance) * noise
    images = torch.from_numpy(points.astype(np.float32)).reshape(count, 2, 1, 1)
    return Split(images, torch.from_numpy(labels.astype(np.int64)))
