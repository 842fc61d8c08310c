"""Tests at another variance than was trained at: what figure 5 of Gomez Donoso, Ghenassia and Vannier plots."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from steppe.config import MeasureConfig, RunConfig
from steppe.data import Dataset
from steppe.data.toys import TOYS, make_toy
from steppe.errors import ConfigError
from steppe.evaluate import measure_accuracy


def measure_shift(
    model: nn.Module, dataset: Dataset, config: RunConfig, measure: MeasureConfig, *, device: torch.device
) -> dict[str, Any]:
    """Test a network on fresh points of its toy distribution, spread by each of the asked variances.

    Points are normalised as in training. Those of one variance are those of another, further from where they belong.

    Args:
        model: the trained network, on `device`.
        dataset: what it was trained on.
        config: its run.
        measure: which variances, and how many points.
        device: where it computes.

    Returns:
        {"variance_15": {"error", "loss", "variance"}, …}; a point in a number is written as p.
    """
    if config.data.name not in TOYS:
        fix = f"name one of {', '.join(TOYS)}, or leave test_variances away"
        raise ConfigError(f"{config.data.name!r} has no variance", where="measure.test_variances", fix=fix)
    found: dict[str, Any] = {}
    for variance in measure.test_variances:
        count, seed = measure.test_examples, config.data.split_seed
        split = make_toy(config.data.name, variance=variance, count=count, seed=seed, split="shifted")
        result = measure_accuracy(model, split, dataset, device=device, batch_size=4096)
        name = f"variance_{variance:g}".replace(".", "p")
        found[name] = {"variance": variance, "error": 1 - result["accuracy"], "loss": result["loss"]}
    return found
