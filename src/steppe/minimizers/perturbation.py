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

from typing import Any

import torch
from torch import Tensor

from .vectors import Block, Vector, add_over_blocks, as_scalar, guarded_reciprocal, norms, pick


def perturb(
    blocks: list[Block],
    groups: list[dict[str, Any]],
    parameters: Vector,
    direction: Vector,
    out: Vector,
    *,
    scaling: str,
    length: float = 1.0,
    consume: bool = False,
) -> None:
    """Write parameters + length · ε to `out` (which may be the parameters themselves).

    `consume` allows the direction's tensors to be overwritten, which spares a temporary.
    Blocks that are not perturbed are left alone; where the direction has nothing, `out` gets the plain parameter.
    """
    chosen = [block for block in blocks if block.perturbed]
    prepared: list[tuple[Block, list[Tensor], list[Tensor], list[Tensor] | None]] = []
    parts: list[tuple[Block, Tensor]] = []
    if out is not parameters:
        for block in chosen:
            weights, targets = pick(block, parameters, out)
            torch._foreach_copy_(targets, weights)
    for block in chosen:
        targets, steps = pick(block, out, direction)
        if not targets:
            continue
        scales = scales_of(block, groups[block.group], targets, scaling) if block.scaled else None
        if scales is not None:
            if consume:
                torch._foreach_mul_(steps, scales)
            else:
                steps = list(torch._foreach_mul(steps, scales))
        parts.append((block, norms(steps).square().sum()))
        prepared.append((block, targets, steps, scales))
    total = add_over_blocks(parts)
    if total is None:
        return
    inverse = length * guarded_reciprocal(total.sqrt())
    for block, targets, steps, scales in prepared:
        radius = as_scalar(inverse * groups[block.group]["rho"], block)
        if scales is not None:
            torch._foreach_mul_(scales, radius)
            torch._foreach_addcmul_(targets, scales, steps)
        else:
            if consume:
                torch._foreach_mul_(steps, radius)
            else:
                steps = list(torch._foreach_mul(steps, radius))
            torch._foreach_add_(targets, steps)


def scales_of(block: Block, group: dict[str, Any], weights: list[Tensor], scaling: str) -> list[Tensor]:
    """T for each of the block's tensors, of full shape (`layer`: expanded to it)."""
    eta = as_scalar(group["eta"], block)
    if scaling != "layer":
        scales = torch._foreach_abs(weights)
        torch._foreach_add_(scales, eta)
        return list(scales)
    squares = add_over_blocks([(block, norms(weights).square())])
    assert squares is not None
    lengths = (squares.sqrt().to(block.dtype) + eta).unbind()
    scales = torch._foreach_mul(weights, 0.0)
    torch._foreach_add_(scales, list(lengths))
    return list(scales)
