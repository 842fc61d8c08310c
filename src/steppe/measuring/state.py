"""The model and the data of a measure: checked before, and the model left as it was found."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from steppe.errors import ConfigError, MeasureError, SteppeError

Batches = Sequence[tuple[Tensor, Tensor]]
"""Normalised images and labels, on the model's device."""

BatchNormMode = Literal["running", "batch"]
"""Whether BatchNorm uses its running statistics (evaluation) or those of each batch (training)."""

Precision = Literal["float32", "tf32"]
"""How a float32 model multiplies on CUDA; a float64 model is measured in float64 whatever is asked."""


@contextmanager
def as_found(model: nn.Module, *, batch_norm: BatchNormMode = "running") -> Iterator[None]:
    """Measure in evaluation mode and leave a model as it was found.

    Afterwards modes, weights, buffers (running statistics), gradients, `requires_grad` and the random generators are
    what they were.

    Args:
        model: what is measured.
        batch_norm: with `batch` its BatchNorm layers alone are in training mode.
    """
    modes = [(module, module.training) for module in model.modules()]
    parameters = [(p, p.grad, p.requires_grad) for p in model.parameters()]
    copies = [(tensor, tensor.detach().clone()) for tensor in [*model.parameters(), *model.buffers()]]
    devices = sorted({tensor.device.index or 0 for tensor, _ in copies if tensor.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices):
            model.eval()
            for module, _ in modes:
                if batch_norm == "batch" and isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.train()
            yield
    finally:
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for tensor, copy in copies:
                if not torch.equal(tensor, copy):
                    tensor.copy_(copy)
        for parameter, gradient, required in parameters:
            parameter.grad = gradient
            parameter.requires_grad_(required)


@contextmanager
def numerics(precision: Precision, *, repeatable: bool = True) -> Iterator[None]:
    """Have torch multiply as asked, and put back how it did.

    Not by `torch.backends.cudnn.flags`: that turns cuDNN off unless it is told not to.

    Args:
        precision: of float32 matrix products and convolutions on CUDA.
        repeatable: have cuDNN choose the same, deterministic algorithms every time, rather than the fastest it finds.
    """
    if precision not in get_args(Precision):
        raise ConfigError(f"precision cannot be {precision!r}", fix=f"choose one of: {', '.join(get_args(Precision))}")
    cudnn = torch.backends.cudnn
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = precision == "tf32", repeatable, not repeatable
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = before[1:]


def check_finite(model: nn.Module, where: str | None = None) -> None:
    """Refuse a model whose weights or statistics are not numbers: no measure of it means anything."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            fix = "train it again, with a smaller learning rate if it diverged"
            raise MeasureError(f"the weights hold NaN or infinity, in {name!r}", where=where, fix=fix)


def check_batches(batches: Batches, *, batch_norm: BatchNormMode = "running", classes: bool = True) -> None:
    """Refuse data that a figure would mean nothing on.

    Args:
        batches: images and labels.
        batch_norm: with `batch` every single batch sets its statistics, so every one must hold two classes.
        classes: whether the figure depends on labels.
    """
    if not count_examples(batches):
        raise SteppeError("there are no examples to measure on", fix="give at least one batch")
    for index, (images, _) in enumerate(batches):
        if not bool(torch.isfinite(images).all()):
            raise SteppeError("an image holds NaN or infinite numbers", where=f"batch {index}")
    if not classes:
        return
    sets = [torch.cat([_labels(targets) for _, targets in batches])]
    if batch_norm == "batch":
        sets = [_labels(targets) for _, targets in batches]
    for index, labels in enumerate(sets):
        if bool((labels == labels[0]).all()):
            where = f"batch {index}" if batch_norm == "batch" else None
            raise SteppeError(
                f"all {len(labels)} examples are of class {int(labels[0])}: a figure measured on one class says "
                "nothing about a classifier",
                where=where,
                fix="take more examples, a random or stratified subset: a sorted one holds one class at a time",
            )


def _labels(targets: Tensor) -> Tensor:
    return targets if targets.ndim == 1 else targets.argmax(1)


def count_examples(batches: Batches) -> int:
    """How many examples the batches hold together."""
    return sum(len(labels) for _, labels in batches)


def finite(value: float | Tensor) -> float | None:
    """A number that JSON can hold; None for NaN and infinity."""
    number = float(value)
    return number if math.isfinite(number) else None
