"""Sharpness: how far the loss rises within a ball around the weights, max over ‖T⁻¹ε‖ ≤ ρ of L(w + ε) − L(w).

T = 1 gives the ball of SAM (Foret et al. 2021), T = |w| + η that of ASAM (Kwon et al. 2021), which stretches with the
weights and so does not change when a rescaling leaves the function alone. T comes from `steppe.minimizers`, so that a
figure is measured in the very ball that training looked at; its presets are explained there.

To first order the maximum lies at ε = ρ T²g / ‖Tg‖, one ascent step of the minimizers. Several steps of projected
ascent in δ = T⁻¹ε get closer: δ ← δ + α Tg/‖Tg‖, back into the ball, the gradient taken where the last step led; the
best point seen counts. Neither finds more than there is: both are lower bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypedDict

import torch
from torch import Tensor, nn

from steppe.errors import ConfigError, SteppeError, unknown_name
from steppe.geometry.how import How, describe
from steppe.geometry.parts import trained_parameters
from steppe.geometry.products import Hessian
from steppe.measuring import (
    CROSS_ENTROPY,
    Batches,
    BatchNormMode,
    Loss,
    Precision,
    check_batches,
    check_finite,
    count_examples,
)
from steppe.minimizers.parameters import SCALINGS, build_blocks
from steppe.minimizers.perturbation import scales_of


class Sharpness(TypedDict):
    """How far the loss rises, and how it was measured."""

    value: float
    stderr: float | None
    """Over batches, where each has its own perturbation."""
    loss: float
    perturbed_loss: float
    rho: float
    eta: float
    scaling: str
    steps: int
    step_size: float
    per_batch: bool
    settings: How


def measure_sharpness(
    model: nn.Module,
    batches: Batches,
    *,
    rho: float = 0.05,
    scaling: str = "none",
    eta: float | None = None,
    steps: int = 1,
    step_size: float | None = None,
    per_batch: bool = False,
    loss: Loss = CROSS_ENTROPY,
    batch_norm: BatchNormMode = "running",
    precision: Precision = "float32",
) -> Sharpness:
    """Measure the sharpness of a model on batches: SAM's with `scaling="none"`, ASAM's with `scaling="weights"`.

    Args:
        model: the model; it is left as it was found.
        batches: normalised images and labels, on its device.
        rho: radius of the ball; it does not carry over from one scaling to another.
        scaling: a preset of `steppe.minimizers`: none, weights, all, layer.
        eta: η of the scaling; by default 0.01 as in ASAM, and 0 for `none`, which has none.
        steps: 1 is the first-order solution; more are projected ascent.
        step_size: α in units of ρ; by default 1 for one step, else 2/steps + 0.1.
        per_batch: perturb for each batch by itself and average (the m-sharpness of Foret et al., m the batch); else one
            perturbation is found for all of the data.
        loss: of each example.
        batch_norm: where BatchNorm's statistics come from.
        precision: of a float32 model's products on CUDA.
    """
    if scaling not in SCALINGS:
        raise unknown_name("scaling", scaling, SCALINGS)
    if not rho > 0 or steps < 1:
        raise ConfigError("rho must be above 0 and steps 1 or more", where=f"rho={rho}, steps={steps}")
    eta = (0.0 if scaling == "none" else 0.01) if eta is None else eta
    pace = step_size or (1.0 if steps == 1 else 2.0 / steps + 0.1)
    check_finite(model)
    check_batches(batches, batch_norm=batch_norm)
    scale = _scale(model, scaling, eta)
    rises: list[tuple[float, float, int]] = []
    for group in [[batch] for batch in batches] if per_batch else [batches]:
        with Hessian(model, group, loss=loss, batch_norm=batch_norm, precision=precision, checked=True) as point:
            rises.append((*_climb(point, scale, rho, steps, pace * rho), count_examples(group)))
    total = count_examples(batches)
    clean = math.fsum(before * size for before, _, size in rises) / total
    perturbed = math.fsum(after * size for _, after, size in rises) / total
    differences = torch.tensor([after - before for before, after, _ in rises], dtype=torch.float64)
    return {
        "value": perturbed - clean,
        "stderr": float(differences.std()) / len(rises) ** 0.5 if len(rises) > 1 else None,
        "loss": clean,
        "perturbed_loss": perturbed,
        "rho": rho,
        "eta": eta,
        "scaling": scaling,
        "steps": steps,
        "step_size": pace,
        "per_batch": per_batch,
        "settings": describe(model, batches, loss=loss, batch_norm=batch_norm, precision=precision),
    }


def measure_adaptive_sharpness(
    model: nn.Module,
    batches: Batches,
    *,
    rho: Mapping[str, float],
    eta: float = 0.01,
    steps: int = 1,
    loss: Loss = CROSS_ENTROPY,
    batch_norm: BatchNormMode = "running",
    precision: Precision = "float32",
) -> dict[str, Sharpness]:
    """Measure the sharpness under several scalings.

    Args:
        model: the model; it is left as it was found.
        batches: normalised images and labels, on its device.
        rho: scaling -> its radius, such as {"none": 0.05, "weights": 0.5, "all": 0.5, "layer": 0.01}.
        eta: η of every scaling but `none`.
        steps: as for `measure_sharpness`.
        loss: of each example.
        batch_norm: where BatchNorm's statistics come from.
        precision: of a float32 model's products on CUDA.
    """
    return {
        scaling: measure_sharpness(
            model,
            batches,
            rho=radius,
            scaling=scaling,
            eta=None if scaling == "none" else eta,
            steps=steps,
            loss=loss,
            batch_norm=batch_norm,
            precision=precision,
        )
        for scaling, radius in rho.items()
    }


def _scale(model: nn.Module, scaling: str, eta: float) -> Tensor | float:
    """T of the minimizers, flat, over the trainable parameters."""
    if scaling == "none":
        return 1.0
    weights = list(trained_parameters(model).values())
    parameters, blocks = build_blocks(torch.optim.SGD(weights), model, "all", scaling)
    scales = [torch.ones_like(parameter) for parameter in parameters]
    for block in blocks:
        if block.scaled:
            found = scales_of(block, {"eta": eta}, [parameters[i].detach() for i in block.members], scaling)
            for i, scale in zip(block.members, found, strict=True):
                scales[i] = scale
    return torch.cat([scale.flatten() for scale in scales])


def _climb(point: Hessian, scale: Tensor | float, rho: float, steps: int, pace: float) -> tuple[float, float]:
    """The loss at the weights, and the highest one found in the ball."""
    weights = list(point.named.values())
    origin = torch.cat([weight.detach().flatten() for weight in weights])
    clean, gradient = point.loss_and_gradient()
    offset, best = torch.zeros_like(origin), -math.inf
    for _ in range(steps):
        direction = scale * gradient
        length = _length(direction)
        if length == 0:  # a stationary point: there is no way up to first order
            best = max(best, clean)
            break
        offset.add_(direction, alpha=pace / length)
        offset /= max(1.0, _length(offset) / rho)
        with torch.no_grad():
            for weight, moved in zip(weights, point.unflatten(origin + scale * offset).values(), strict=True):
                weight.copy_(moved)
        here, gradient = point.loss_and_gradient()
        if not math.isfinite(here):
            raise SteppeError(
                "the loss is not finite within the ball", where=f"rho={rho:g}", fix="choose a smaller rho"
            )
        best = max(best, here)
    return clean, best


def _length(vector: Tensor) -> float:
    """Summed in float64: in float32 the squares of a far step are infinite, and it would be cut back to none."""
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))
