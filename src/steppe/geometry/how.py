"""How a figure was measured, stored beside it, and a model made ready for second derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TypedDict

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from steppe.errors import ConfigError
from steppe.measuring import Batches, BatchNormMode, Loss, Precision, as_found, count_examples, loss_name, numerics


class How(TypedDict):
    """How a figure was measured; stored beside it."""

    loss: str
    examples: int
    batch: int
    batch_norm: BatchNormMode | Literal["reestimated"]
    """`reestimated`: taken anew at every point of a landscape."""
    precision: str
    device: str
    seed: int


def describe(
    model: nn.Module,
    batches: Batches,
    *,
    loss: Loss,
    batch_norm: BatchNormMode = "running",
    precision: Precision = "float32",
    seed: int = 0,
) -> How:
    """Write down how a figure is measured.

    Args:
        model: what is measured.
        batches: what it is measured on.
        loss: of each example.
        batch_norm: where BatchNorm's statistics come from.
        precision: of a float32 model's products on CUDA.
        seed: of whatever is drawn.
    """
    parameter = next(model.parameters())
    dtype = str(parameter.dtype).removeprefix("torch.")
    return {
        "loss": loss_name(loss),
        "examples": count_examples(batches),
        "batch": max(len(labels) for _, labels in batches),
        "batch_norm": batch_norm,
        "precision": precision if dtype == "float32" else dtype,
        "device": parameter.device.type,
        "seed": seed,
    }


@contextmanager
def borrowed(
    model: nn.Module, *, batch_norm: BatchNormMode = "running", precision: Precision = "float32"
) -> Iterator[None]:
    """Ready a model for measuring, and leave it as it was found.

    As `as_found`; besides, attention runs on torch's math back-end, since the fused ones have no second derivative,
    and torch multiplies as precisely as asked.

    Args:
        model: what is measured.
        batch_norm: where BatchNorm's statistics come from.
        precision: of a float32 model's products on CUDA.
    """
    with (
        as_found(model, batch_norm=batch_norm),
        sdpa_kernel(SDPBackend.MATH),
        torch.enable_grad(),
        numerics(precision),
    ):
        yield


class SubsetSpread(TypedDict):
    """A figure on disjoint subsets of the data."""

    mean: float
    stderr: float
    values: list[float]
    subsets: int


def spread_over_subsets(measure: Callable[[Batches], float], batches: Batches, subsets: int) -> SubsetSpread:
    """Measure on disjoint subsets of the data: how far a figure depends on which examples were taken.

    Example i goes to subset i mod `subsets`.

    Args:
        measure: a figure as a function of batches.
        batches: all of the data.
        subsets: how many to cut it into, at least two.
    """
    if not 2 <= subsets <= count_examples(batches):
        raise ConfigError(
            f"{count_examples(batches)} examples cannot be cut into {subsets} subsets", fix="ask for 2 or more"
        )
    values = []
    for subset in range(subsets):
        chosen, offset = [], 0
        for images, targets in batches:
            first = (subset - offset) % subsets
            if first < len(targets):
                chosen.append((images[first::subsets], targets[first::subsets]))
            offset += len(targets)
        values.append(measure(chosen))
    spread = torch.tensor(values, dtype=torch.float64)
    stderr = float(spread.std()) / subsets**0.5
    return {"mean": float(spread.mean()), "stderr": stderr, "values": values, "subsets": subsets}
