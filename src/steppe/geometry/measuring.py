"""What every measure shares: it checks what it is given, says how it measured, and leaves the model as it found it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Literal, TypedDict, get_args

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from steppe.errors import ConfigError, SteppeError, unknown_name
from steppe.geometry.losses import LossFunction, loss_name
from steppe.models import blocks

Batches = Sequence[tuple[Tensor, Tensor]]
"""Normalised images and labels, on the model's device."""

BatchNormMode = Literal["running", "batch"]
"""Whether BatchNorm uses its running statistics (evaluation) or those of each batch (training)."""

Precision = Literal["float32", "tf32"]
"""How a float32 model multiplies on CUDA; a float64 model is measured in float64 whatever is asked."""

WHOLE = "whole"
"""The name of the part that is the whole model."""


class Settings(TypedDict):
    """How a figure was measured; stored beside it."""

    loss: str
    examples: int
    batch: int
    batch_norm: BatchNormMode
    precision: str
    device: str
    seed: int


def describe(
    model: nn.Module,
    batches: Batches,
    *,
    loss: LossFunction,
    batch_norm: BatchNormMode = "running",
    precision: Precision = "float32",
    seed: int = 0,
) -> Settings:
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


def count_examples(batches: Batches) -> int:
    """How many examples the batches hold together."""
    return sum(len(labels) for _, labels in batches)


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters a measure is about, by name: those that are not frozen."""
    found = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not found:
        raise SteppeError("the model has no trainable parameter", mend="unfreeze the part that is to be measured")
    return found


def resolve_parts(
    model: nn.Module, parts: Sequence[str] | Mapping[str, Sequence[str]], *, frozen: bool = False
) -> dict[str, list[str]]:
    """Find the parameters of every part asked for.

    Args:
        model: what is measured.
        parts: names that `steppe.models.blocks` gives, or `whole`; or any names with the parameters they stand for.
        frozen: whether frozen parameters count.

    Raises:
        ConfigError: the model has no part of that name, or all of that part is frozen.
    """
    trained = dict(model.named_parameters()) if frozen else trained_parameters(model)
    named: Mapping[str, Sequence[str]]
    if isinstance(parts, Mapping):
        named = parts
    else:
        named = {WHOLE: list(trained)}
        if any(part != WHOLE for part in parts):
            named = {**named, **blocks(model)}
    found = {}
    for part in parts:
        if part not in named:
            raise unknown_name(f"part of {type(model).__name__}", part, named)
        found[part] = [name for name in named[part] if name in trained]
        if not found[part]:
            raise ConfigError(
                f"no parameter of {part!r} is trainable", mend="leave this part out, or unfreeze it in the model"
            )
    return found


def check_model(model: nn.Module) -> None:
    """Refuse a model whose weights or statistics are not finite."""
    named = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in named:
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise SteppeError(
                "the model holds NaN or infinite numbers, so nothing can be measured on it",
                where=name,
                mend="use weights of an earlier epoch; the training diverged",
            )


def check_batches(batches: Batches, *, batch_norm: BatchNormMode = "running", classes: bool = True) -> None:
    """Refuse data that a figure would mean nothing on.

    Args:
        batches: images and labels.
        batch_norm: with `batch` every single batch sets its statistics, so every one must hold two classes.
        classes: whether the figure depends on labels.
    """
    if not count_examples(batches):
        raise SteppeError("there are no examples to measure on", mend="give at least one batch")
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
                mend="take a random or stratified subset of the data; a sorted one holds one class at a time",
            )


def _labels(targets: Tensor) -> Tensor:
    return targets if targets.ndim == 1 else targets.argmax(1)


@contextmanager
def numerics(precision: Precision, *, repeatable: bool = True) -> Iterator[None]:
    """Have torch multiply as asked, and put back how it did.

    Not by `torch.backends.cudnn.flags`: that turns cuDNN off unless it is told not to.

    Args:
        precision: of float32 matrix products and convolutions on CUDA.
        repeatable: have cuDNN choose the same, deterministic algorithms every time, rather than the fastest it finds.
    """
    if precision not in get_args(Precision):
        raise ConfigError(f"precision cannot be {precision!r}", mend=f"choose one of: {', '.join(get_args(Precision))}")
    cudnn = torch.backends.cudnn
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = precision == "tf32", repeatable, not repeatable
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = before[1:]


@contextmanager
def borrowed(
    model: nn.Module, *, batch_norm: BatchNormMode = "running", precision: Precision = "float32"
) -> Iterator[None]:
    """Ready a model for measuring, and leave it as it was found.

    Inside, the model is in evaluation mode, so nothing is dropped; with `batch_norm="batch"` its BatchNorm layers alone
    are in training mode. Attention runs on torch's math back-end, since the fused ones have no second derivative.
    Afterwards modes, weights, buffers (running statistics), gradients, `requires_grad`, the random generators and
    torch's precision are what they were.

    Args:
        model: what is measured.
        batch_norm: where BatchNorm's statistics come from.
        precision: of a float32 model's products on CUDA.
    """
    modes = [(module, module.training) for module in model.modules()]
    parameters = [(p, p.detach().clone(), p.grad, p.requires_grad) for p in model.parameters()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    devices = sorted({p.device.index or 0 for p, *_ in parameters if p.device.type == "cuda"})
    try:
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices))
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(numerics(precision))
            model.eval()
            for module, _ in modes:
                if batch_norm == "batch" and isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.train()
            yield
    finally:
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for parameter, value, gradient, required in parameters:
                if not torch.equal(parameter, value):
                    parameter.copy_(value)
                parameter.grad = gradient
                parameter.requires_grad_(required)
            for buffer, value in buffers:
                buffer.copy_(value)


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
            f"{count_examples(batches)} examples cannot be cut into {subsets} subsets", mend="ask for 2 or more"
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
