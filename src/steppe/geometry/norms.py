"""Norms of weights, gradients and activations, active neurons, and the missing rate between images.

After Chen, Hsieh & Gong (2022): ‖w‖₂ and ‖a_k‖₂ as in table 4, the share of active neurons of a block as in figure 2
(right), the missing rate as in table 6 (a prediction at 0.5 x_i + 0.5 x_j that is neither y_i nor y_j).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from steppe.chance import share_interval
from steppe.errors import ConfigError, SteppeError
from steppe.geometry.how import How, borrowed, describe
from steppe.geometry.parts import WHOLE, resolve_parts
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
from steppe.models import activations


class GradientNorms(TypedDict):
    """‖∇L‖₂ of every part."""

    parts: dict[str, float]
    settings: How


class BlockActivations(TypedDict):
    """What the neurons of a block do, after its activation functions."""

    active: float
    """Share of values above zero."""
    norm: float
    """‖a‖₂ over all of an image's values, mean over images."""
    rms: float
    """Root of the mean square: the norm without the number of values in it."""
    neurons: int
    """Values an image has in the block."""


class Activations(TypedDict):
    """Activations by block."""

    blocks: dict[str, BlockActivations]
    settings: How


class MissingRate(TypedDict):
    """How often a prediction half-way between two images is neither's class."""

    rate: float
    low: float
    high: float
    pairs: int
    settings: How


def weight_norms(model: nn.Module, parts: Sequence[str] | Mapping[str, Sequence[str]] = (WHOLE,)) -> dict[str, float]:
    """‖w‖₂ of the whole model and of parts, frozen parameters included.

    Args:
        model: the model.
        parts: names of `steppe.models.blocks`, or `whole`; or names with the parameters they stand for.
    """
    check_finite(model)
    named = dict(model.named_parameters())
    return {
        part: float(torch.stack([named[name].detach().double().norm() for name in names]).norm())
        for part, names in resolve_parts(model, parts, frozen=True).items()
    }


def measure_gradient_norms(
    model: nn.Module,
    batches: Batches,
    *,
    parts: Sequence[str] | Mapping[str, Sequence[str]] = (WHOLE,),
    loss: Loss = CROSS_ENTROPY,
    batch_norm: BatchNormMode = "running",
    precision: Precision = "float32",
    chunk: int | None = None,
) -> GradientNorms:
    """Measure the norm of the mean loss's gradient, over all examples, of the whole model and of parts.

    Args:
        model: the model; it is left as it was found.
        batches: normalised images and labels, on its device.
        parts: as for `weight_norms`; of trainable parameters.
        loss: of each example.
        batch_norm: where BatchNorm's statistics come from.
        precision: of a float32 model's products on CUDA.
        chunk: examples at a time.
    """
    with Hessian(
        model, batches, loss=loss, parts=parts, batch_norm=batch_norm, precision=precision, chunk=chunk
    ) as hessian:
        gradient = hessian.unflatten(hessian.gradient())
        squares = {name: float(piece.double().square().sum()) for name, piece in gradient.items()}
        norms = {part: math.sqrt(math.fsum(squares[name] for name in hessian.parts[part])) for part in parts}
        settings = describe(model, batches, loss=loss, batch_norm=batch_norm, precision=precision)
    return {"parts": norms, "settings": settings}


def measure_activations(
    model: nn.Module, batches: Batches, *, modules: Mapping[str, Sequence[str]] | None = None
) -> Activations:
    """Measure the share of active neurons and the norm of the post-activation values of every block.

    A block's values are the outputs of all its activation functions (after GELU, ReLU…), in evaluation mode.

    Args:
        model: the model; it is left as it was found.
        batches: normalised images and labels, on its device.
        modules: block -> names of the modules whose outputs count; by default `steppe.models.activations`.
    """
    check_finite(model)
    check_batches(batches, classes=False)
    modules = activations(model) if modules is None else modules
    if not modules:
        raise SteppeError(f"{type(model).__name__} has no activation functions that are modules")
    tallies = {block: _Tally() for block in modules}
    handles = []
    try:
        with borrowed(model), torch.no_grad():
            for block, names in modules.items():
                for name in names:
                    handles.append(model.get_submodule(name).register_forward_hook(tallies[block].note))
            for images, _ in batches:
                for tally in tallies.values():
                    tally.open(len(images))
                model(images)
                for tally in tallies.values():
                    tally.close()
    finally:
        for handle in handles:
            handle.remove()
    settings = describe(model, batches, loss=CROSS_ENTROPY)
    settings["loss"] = "none"
    figures = {block: tally.figures() for block, tally in tallies.items() if tally.values}
    return {"blocks": figures, "settings": settings}


class _Tally:
    """Sums over what the activation functions of one block put out."""

    def __init__(self) -> None:
        self.examples = self.values = 0
        self.active = self.norms = self.squares = 0.0
        self.now: Tensor | float = 0.0

    def open(self, examples: int) -> None:
        """A batch begins."""
        self.batch, self.now = examples, 0.0

    def note(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        """Count one output, whose rows are images or, in order, windows of them."""
        self.values += output.numel()
        self.active += float((output > 0).sum())
        self.now = self.now + output.reshape(self.batch, -1).double().square().sum(1)

    def close(self) -> None:
        """A batch is over."""
        if isinstance(self.now, Tensor):
            self.examples += self.batch
            self.norms += float(self.now.sqrt().sum())
            self.squares += float(self.now.sum())

    def figures(self) -> BlockActivations:
        """What was found."""
        return {
            "active": self.active / self.values,
            "norm": self.norms / self.examples,
            "rms": math.sqrt(self.squares / self.values),
            "neurons": self.values // self.examples,
        }


def measure_missing_rate(model: nn.Module, batches: Batches, *, weight: float = 0.5, seed: int = 0) -> MissingRate:
    """Measure how often the prediction at weight·x_i + (1 − weight)·x_j is neither y_i nor y_j.

    Every image is paired with another one by a random cycle through all of them, so that there are as many pairs as
    images and each is in two of them. `low` and `high` are the ends of Wilson's 95 % interval, of chance over pairs.

    Args:
        model: the model; it is left as it was found.
        batches: normalised images and labels, on its device.
        weight: of the first image.
        seed: of the pairing.
    """
    if not 0 <= weight <= 1:
        raise ConfigError(f"a mixture cannot hold {weight:g} of an image", fix="choose a weight from 0 to 1")
    check_finite(model)
    check_batches(batches)
    images = torch.cat([x for x, _ in batches])
    labels = torch.cat([y if y.ndim == 1 else y.argmax(1) for _, y in batches])
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(labels.device)
    partner = order.roll(1)
    missed = 0
    with borrowed(model), torch.no_grad():
        for first, second in zip(order.split(_batch(batches)), partner.split(_batch(batches)), strict=True):
            predicted = model(weight * images[first] + (1 - weight) * images[second]).argmax(1)
            missed += int(((predicted != labels[first]) & (predicted != labels[second])).sum())
    pairs = count_examples(batches)
    low, high = share_interval(missed / pairs, pairs)
    settings = describe(model, batches, loss=CROSS_ENTROPY, seed=seed)
    settings["loss"] = "none"
    return {"rate": missed / pairs, "low": low, "high": high, "pairs": pairs, "settings": settings}


def _batch(batches: Batches) -> int:
    return max(len(labels) for _, labels in batches)
