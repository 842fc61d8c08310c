"""The perturbation ε = ρ · T² d / ‖T d‖₂: direction × scaling × radius.

d is the direction (SAM: the gradient), T the scaling of each parameter, ρ the radius. T = 1 gives SAM's ball of
radius ρ; T = |w| + η gives ASAM's, which stretches with the weights. One norm is taken over all that is perturbed,
scaled or not.

T by preset:
    none:    1 everywhere (SAM).
    weights: |w| + η where the name contains "weight", 1 elsewhere (ASAM as its authors wrote it).
    all:     |w| + η on every parameter, biases too. With η = 0 the perturbation follows every rescaling of weights
             and biases that leaves the network's function alone.
    layer:   ‖w‖₂ + η, one number a tensor, on every parameter.
The radius does not carry over from one preset to another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .vectors import Block, Vector, add_over_blocks, as_scalar, copy_, guarded_reciprocal, norms, pick

Length = float | Callable[[Tensor], Tensor]
"""Length of a perturbation in units of ρ: a number, or a function of ‖T d‖."""


class Perturbation:
    """Writes perturbed weights; owns the buffers this takes.

    A multi-tensor call on the CPU is a loop over tensors inside torch. For tensors of a few thousand elements that
    loop is all the cost, so the snapshot of such a block is one flat buffer and the arithmetic is done on that.
    """

    def __init__(self) -> None:
        """Start without buffers."""
        self.flat: dict[Block, _Flat] = {}
        self.scratch: dict[Block, list[Tensor]] = {}

    def make_snapshot(self, blocks: list[Block], parameters: Vector) -> Vector:
        """Room for a copy of every parameter that is perturbed."""
        self.flat, self.scratch = {}, {}
        snapshot: list[Tensor | None] = [None] * len(parameters)
        for block in blocks:
            (tensors,) = pick(block, parameters) if block.perturbed else ([],)
            copies = [torch.empty_like(tensor) for tensor in tensors] if not block.flat else None
            if block.flat and tensors:
                self.flat[block] = _Flat(block, tensors)
                copies = self.flat[block].weight_parts
            for i, copy in zip(block.members, copies or [], strict=bool(copies)):
                snapshot[i] = copy
        return snapshot

    def __call__(
        self,
        blocks: list[Block],
        groups: list[dict[str, Any]],
        parameters: Vector,
        direction: Vector,
        out: Vector,
        *,
        scaling: str,
        length: Length = 1.0,
        consume: bool = False,
    ) -> None:
        """Write parameters + length · ε to `out`.

        If that is the parameters themselves, the snapshot made here must hold their values. `consume` allows the
        direction's tensors to be overwritten, which spares a temporary. Blocks that are not perturbed are left alone;
        where the direction has nothing, `out` gets the plain parameter.
        """
        chosen = [block for block in blocks if block.perturbed]
        if out is not parameters:
            copy_(chosen, out, parameters)
        moves: list[_Move | _FlatMove] = []
        for block in chosen:
            targets, steps = pick(block, out, direction)
            rule = scaling if block.scaled else "none"
            complete = len(targets) == len(block.members)
            if block in self.flat and out is parameters and complete and rule != "layer":
                moves.append(_FlatMove(block, groups[block.group], self.flat[block], targets, steps, rule))
            elif targets:
                scratch = self._scratch(block, targets)
                moves.append(_Move(block, groups[block.group], targets, steps, rule, consume, scratch))
        total = add_over_blocks((move.block, move.squared) for move in moves)
        if total is None:
            return
        norm = total.sqrt()
        inverse = (length(norm) if callable(length) else length) * guarded_reciprocal(norm)
        for move in moves:
            factor = inverse * groups[move.block.group]["rho"]
            if move.block.dtype == torch.float16:  # the factor may lie outside of its range: two roots do not
                root = factor.abs().sqrt()
                move.stretch(as_scalar(torch.copysign(root, factor), move.block))
                factor = root
            move.finish(as_scalar(factor, move.block))

    def _scratch(self, block: Block, targets: list[Tensor]) -> list[Tensor] | None:
        """Tensors to make T in, on the CPU alone: there a fresh large tensor costs more than the work on it."""
        if not block.scaled or block.device.type != "cpu":
            return None
        if len(targets) < len(block.members):  # some took no part, and others may the next time
            return None
        if block not in self.scratch:
            self.scratch[block] = [torch.empty_like(target) for target in targets]
        return self.scratch[block]


class _Flat:
    """A block's small tensors in one: the clean weights, the direction, and room for T."""

    def __init__(self, block: Block, tensors: list[Tensor]) -> None:
        sizes = [tensor.numel() for tensor in tensors]
        shapes = [tensor.shape for tensor in tensors]
        self.weights, self.direction, self.scales = (torch.empty(sum(sizes), dtype=block.dtype) for _ in range(3))
        self.weight_parts, self.direction_parts = (
            [part.view(shape) for part, shape in zip(buffer.split(sizes), shapes, strict=True)]
            for buffer in (self.weights, self.direction)
        )


class _FlatMove:
    """As `_Move`, for a block of small tensors whose clean weights already lie in a flat buffer."""

    def __init__(
        self, block: Block, group: dict[str, Any], flat: _Flat, targets: list[Tensor], steps: list[Tensor], scaling: str
    ) -> None:
        self.block, self.flat, self.targets, self.scaled = block, flat, targets, scaling != "none"
        torch._foreach_copy_(flat.direction_parts, steps)
        if self.scaled:
            torch.abs(flat.weights, out=flat.scales).add_(as_scalar(group["eta"], block))
            flat.direction.mul_(flat.scales)
        self.squared = norms([flat.direction]).square().sum()

    def stretch(self, factor: float | Tensor) -> None:
        """Multiply the direction, before `finish`."""
        self.flat.direction.mul_(factor)

    def finish(self, factor: float | Tensor) -> None:
        flat = self.flat
        if self.scaled:
            flat.direction.mul_(flat.scales)
        flat.direction.mul_(factor).add_(flat.weights)
        torch._foreach_copy_(self.targets, flat.direction_parts)


class _Move:
    """One block's part of a perturbation: T d and its norm first, the move itself once all norms are known."""

    def __init__(
        self,
        block: Block,
        group: dict[str, Any],
        targets: list[Tensor],
        steps: list[Tensor],
        scaling: str,
        consume: bool,
        scratch: list[Tensor] | None,
    ) -> None:
        self.block, self.targets, self.consume = block, targets, consume
        scales = scales_of(block, group, targets, scaling, scratch) if scaling != "none" else None
        if scales is not None and consume:
            torch._foreach_mul_(steps, scales)
        elif scales is not None:
            steps = list(torch._foreach_mul(steps, scales))
        self.steps, self.scales = steps, scales
        self.squared = norms(steps).square().sum()

    def stretch(self, factor: float | Tensor) -> None:
        """Multiply the direction, before `finish`."""
        self.steps, self.consume = list(torch._foreach_mul(self.steps, factor)), True

    def finish(self, factor: float | Tensor) -> None:
        """Add factor · T (T d) to the targets."""
        if self.scales is not None:
            torch._foreach_mul_(self.scales, factor)
            torch._foreach_addcmul_(self.targets, self.scales, self.steps)
        elif self.consume:
            torch._foreach_mul_(self.steps, factor)
            torch._foreach_add_(self.targets, self.steps)
        else:
            torch._foreach_add_(self.targets, torch._foreach_mul(self.steps, factor))


def scales_of(
    block: Block, group: dict[str, Any], weights: list[Tensor], scaling: str, scratch: list[Tensor] | None = None
) -> list[Tensor]:
    """T for each of the block's tensors, of full shape (`layer`: expanded to it)."""
    eta = as_scalar(group["eta"], block)
    if scaling != "layer":
        if scratch is None:
            scratch = list(torch._foreach_abs(weights))
        else:
            torch._foreach_copy_(scratch, weights)
            torch._foreach_abs_(scratch)
        if isinstance(eta, Tensor):  # a single tensor here is read on the host (torch 2.11), a list of them is not
            torch._foreach_add_(scratch, [eta] * len(scratch))
        else:
            torch._foreach_add_(scratch, eta)
        return scratch
    squares = add_over_blocks([(block, norms(weights).square())])
    assert squares is not None
    lengths = (squares.sqrt().to(block.dtype) + eta).unbind()
    scales = torch._foreach_mul(weights, 0.0)
    torch._foreach_add_(scales, list(lengths))
    return list(scales)
