"""Condition number κ = λ₁/λₘ of the neural tangent kernel Θ = J Jᵀ: how trainable a network is (Xiao et al. 2020).

As in Chen, Hsieh & Gong (2022), appendix G: the kernel of many examples is approximated by its diagonal blocks of 48
examples. κ depends on what the rows of J are and on how many examples a block holds, so both are part of the figure's
name:

    all:  the gradients of every logit; a block has 48 × classes rows.
    sum:  the gradient of the sum of the logits; 48 rows.
    one:  the gradient of a single logit; 48 rows.

The paper does not say whether κ or the kernels were averaged over blocks. `kappa` is the mean of the blocks' κ, with
its error; `kappa_of_mean` is that of the mean kernel. At initialisation, with ReLU in place of GELU, is how the paper
measured. Kernel and eigenvalues are float64; a κ beyond what the Jacobian's precision can tell is marked so.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Literal, TypedDict

import torch
from torch import Tensor, nn

from steppe.errors import ConfigError, SteppeError
from steppe.geometry.how import How, borrowed, describe
from steppe.geometry.memory import free_bytes
from steppe.geometry.parts import trained_parameters
from steppe.measuring import (
    CROSS_ENTROPY,
    Batches,
    BatchNormMode,
    check_batches,
    check_finite,
    count_examples,
    ignore,
    in_smaller_chunks,
)

Definition = Literal["all", "sum", "one"]


class TangentKernel(TypedDict):
    """κ over diagonal blocks of the tangent kernel."""

    name: str
    kappa: float
    stderr: float | None
    """Over blocks; None where there is one."""
    kappa_of_mean: float
    resolved: bool
    """Whether λₘ stands above rounding in every block; if not, κ is a lower bound at best."""
    blocks: list[float]
    largest: list[float]
    smallest: list[float]
    definition: str
    block_examples: int
    relu: bool
    settings: How


def measure_tangent_kernel(
    model: nn.Module,
    batches: Batches,
    *,
    definition: Definition = "sum",
    logit: int = 0,
    block: int = 48,
    relu: bool = False,
    double: bool = True,
    batch_norm: BatchNormMode = "running",
    memory_gib: float | None = None,
    tell: Callable[[int, int], None] = ignore,
) -> TangentKernel:
    """Measure the condition number of the tangent kernel of a model as it is: fresh, or trained.

    Args:
        model: the model; it is left as it was found.
        batches: normalised images and labels (which are not used), on its device; regrouped into blocks, an
            incomplete last one left out.
        definition: what the rows of the Jacobian are: `all` logits, their `sum`, or `one`.
        logit: which, for `one`.
        block: examples in a diagonal block.
        relu: measure a copy with ReLU in place of GELU.
        double: compute the Jacobian in float64; else in the model's precision.
        batch_norm: where BatchNorm's statistics come from: running ones, or a block's own.
        memory_gib: room for the rows of the Jacobian, by default half of what is free; what does not fit is computed
            again.
        tell: takes how many blocks are done, and of how many.
    """
    if definition not in ("all", "sum", "one"):
        raise ConfigError(f"unknown definition {definition!r}", fix="choose all, sum or one")
    check_finite(model)
    check_batches(batches, classes=False)
    examples = count_examples(batches)
    if block < 2 or examples < block:
        raise SteppeError(
            f"{examples} examples do not fill a block of {block}",
            fix="give more examples, or a smaller block (2 or more)",
        )
    device = next(model.parameters()).device
    double = double and device.type != "mps"
    measured = with_relu(model) if relu else model
    if double:
        measured = copy.deepcopy(measured).double()
    dtype = next(measured.parameters()).dtype
    images = torch.cat([x for x, _ in batches])
    kernels = []
    with borrowed(measured, batch_norm=batch_norm):
        for start in range(0, examples - block + 1, block):
            part = images[start : start + block].to(dtype)
            rows = _rows(measured, part, definition, logit, batch_norm)
            kernels.append(_gram(rows, free_bytes(device) / 2 if memory_gib is None else memory_gib * 2**30))
            tell(len(kernels), examples // block)
    values = [torch.linalg.eigvalsh(kernel) for kernel in kernels]
    floor = torch.finfo(dtype).eps * 10
    kappas = torch.stack([_condition(spectrum) for spectrum in values])
    settings = describe(measured, batches, loss=CROSS_ENTROPY, batch_norm=batch_norm)
    settings = {**settings, "loss": "none", "examples": len(kernels) * block, "batch": block}
    definition_name = f"{definition}{logit}" if definition == "one" else definition
    return {
        "name": f"ntk_kappa_{definition_name}_{block}x{len(kernels)}" + ("_relu" if relu else ""),
        "kappa": float(kappas.mean()),
        "stderr": float(kappas.std()) / len(kappas) ** 0.5 if len(kappas) > 1 else None,
        "kappa_of_mean": float(_condition(torch.linalg.eigvalsh(torch.stack(kernels).mean(0)))),
        "resolved": all(bool(spectrum[0] > floor * spectrum[-1]) for spectrum in values),
        "blocks": kappas.tolist(),
        "largest": [float(spectrum[-1]) for spectrum in values],
        "smallest": [float(spectrum[0]) for spectrum in values],
        "definition": definition_name,
        "block_examples": block,
        "relu": relu,
        "settings": settings,
    }


def with_relu(model: nn.Module) -> nn.Module:
    """A copy of a model with ReLU wherever it has GELU, its weights the same."""
    changed = copy.deepcopy(model)
    for name, module in list(changed.named_modules()):
        if isinstance(module, nn.GELU) or type(module).__name__ in ("GELUTanh", "QuickGELU"):
            parent, _, child = name.rpartition(".")
            setattr(changed.get_submodule(parent), child, nn.ReLU())
    return changed


def _condition(spectrum: Tensor) -> Tensor:
    """λ₁/λₘ; infinite where rounding has left λₘ at zero or below."""
    return spectrum[-1] / spectrum[0] if spectrum[0] > 0 else spectrum.new_tensor(math.inf)


class _Rows:
    """The rows of a block's Jacobian, computed when asked for."""

    def __init__(self, count: int, width: int, size: int, compute: Callable[[int, int], Tensor]) -> None:
        self.count, self.width, self.size, self.compute = count, width, size, compute


def _rows(model: nn.Module, images: Tensor, definition: Definition, logit: int, batch_norm: BatchNormMode) -> _Rows:
    weights = {name: weight.detach() for name, weight in trained_parameters(model).items()}
    with torch.no_grad():
        classes = model(images[:2]).shape[1]
    if not 0 <= logit < classes:
        raise ConfigError(f"there is no logit {logit}", fix=f"choose one of 0 to {classes - 1}")
    outputs = classes if definition == "all" else 1

    def pick(logits: Tensor, output: int) -> Tensor:
        """What the rows of one output are gradients of, one number an example."""
        if definition == "sum":
            return logits.sum(1)
        return logits[:, output if definition == "all" else logit]

    def of_one(parameters: dict[str, Tensor], image: Tensor, output: int) -> Tensor:
        return pick(torch.func.functional_call(model, parameters, (image[None],)), output)[0]

    gradients = torch.func.vmap(torch.func.grad(of_one), in_dims=(None, 0, None))

    def independent(start: int, stop: int) -> Tensor:
        """Rows are output by output; examples do not know of each other, so each has a gradient of its own."""
        found = []
        while start < stop:
            output, example = divmod(start, len(images))
            end = min(len(images), example + stop - start)
            pieces = gradients(weights, images[example:end], output)
            found.append(torch.cat([piece.flatten(1) for piece in pieces.values()], 1))
            start += end - example
        return torch.cat(found)

    def coupled(start: int, stop: int) -> Tensor:
        """BatchNorm lets the examples of a block see each other: all go through together."""
        parameters = list(trained_parameters(model).values())
        logits = model(images)
        found = []
        for row in range(start, stop):
            output, example = divmod(row, len(images))
            gradient = torch.autograd.grad(
                pick(logits, output)[example], parameters, retain_graph=True, materialize_grads=True, allow_unused=True
            )
            found.append(torch.cat([piece.flatten() for piece in gradient]))
        return torch.stack(found)

    width = sum(weight.numel() for weight in weights.values())
    return _Rows(outputs * len(images), width, images.element_size(), coupled if batch_norm == "batch" else independent)


def _gram(rows: _Rows, memory: float) -> Tensor:
    """J Jᵀ in float64, by tiles of as many rows as there is room for, two tiles at a time."""
    room = int(memory / (rows.width * rows.size))
    return in_smaller_chunks(partial(_tiled, rows), rows.count if room >= rows.count else max(1, room // 2))


def _tiled(rows: _Rows, tile: int) -> Tensor:
    starts = range(0, rows.count, tile)
    kernel = torch.zeros(rows.count, rows.count, dtype=torch.float64)
    for a in starts:
        first = rows.compute(a, min(a + tile, rows.count))
        for b in starts[a // tile :]:
            second = first if a == b else rows.compute(b, min(b + tile, rows.count))
            product = sum(
                x.double() @ y.double().T for x, y in zip(first.split(2**20, 1), second.split(2**20, 1), strict=True)
            )
            assert isinstance(product, Tensor)
            kernel[a : a + len(first), b : b + len(second)] = product.cpu()
            kernel[b : b + len(second), a : a + len(first)] = product.T.cpu()
    return kernel
