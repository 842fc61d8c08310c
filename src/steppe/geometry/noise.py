"""Loss under Gaussian weight noise: the average flatness of Chen, Hsieh & Gong (2022), table 1.

L^N = E over ε ~ N(0, σ² I) of L(w + ε). A flat minimum keeps its loss; a sharp one does not.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import TypedDict

import torch
from torch import nn

from steppe.errors import ConfigError
from steppe.measuring import CROSS_ENTROPY, Batches, Loss, as_found, check_finite, count_examples, ignore


class NoiseLoss(TypedDict):
    """The figure, its error, and the settings it was measured with."""

    mean: float
    stderr: float
    clean: float
    sigma: float
    draws: int
    examples: int


@torch.no_grad()
def measure_noise_loss(
    model: nn.Module,
    batches: Batches,
    *,
    sigma: float = 0.01,
    draws: int = 20,
    seed: int = 0,
    loss: Loss = CROSS_ENTROPY,
    tell: Callable[[int, int], None] = ignore,
) -> NoiseLoss:
    """Average the loss over Gaussian noises on every trainable parameter, in evaluation mode.

    The model is left as it was found. BatchNorm keeps its running statistics.

    Args:
        model: the model; computes where its parameters are.
        batches: normalised images and labels.
        sigma: standard deviation of the noise.
        draws: how many noises to average over.
        seed: of the noises; models of one shape get the same ones, on every device.
        loss: of each example.
        tell: takes how many noises are done, and of how many.
    """
    if draws < 2:
        raise ConfigError("a mean over noises needs two draws or more: its error comes from their spread")
    check_finite(model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    originals = [p.detach().clone() for p in parameters]
    generator = torch.Generator().manual_seed(seed)  # on the CPU: the same on every device
    losses: list[float] = []
    with as_found(model):
        clean = _mean_loss(model, batches, loss)
        while len(losses) < draws:
            for parameter, original in zip(parameters, originals, strict=True):
                noise = torch.randn(original.shape, generator=generator, dtype=original.dtype)
                parameter.copy_(original + sigma * noise.to(original.device))
            losses.append(_mean_loss(model, batches, loss))
            tell(len(losses), draws)
    return {
        "mean": statistics.fmean(losses),
        "stderr": statistics.stdev(losses) / draws**0.5,
        "clean": clean,
        "sigma": sigma,
        "draws": draws,
        "examples": count_examples(batches),
    }


def _mean_loss(model: nn.Module, batches: Batches, loss: Loss) -> float:
    total = sum(loss(model(x), y).sum().double().item() for x, y in batches)
    return total / count_examples(batches)
