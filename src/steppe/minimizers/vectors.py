"""Lists of tensors handled as one vector.

A network's parameters, their gradients and every average kept over them are lists of the same length. Here such a
list is a `Vector`: position `i` belongs to parameter `i`, and `None` stands where there is nothing (a parameter that
took no part in a pass). `Block`s cut the positions into sets that one multi-tensor call can handle: same parameter
group, same role, dtype, device and sharding. The reductions return 0-d tensors and never read the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import is_
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Vector = Sequence[Tensor | None]


@dataclass(frozen=True)
class Block:
    """Positions that share a parameter group, a role, dtype, device and sharding."""

    group: int
    members: tuple[int, ...]
    scaled: bool
    perturbed: bool
    device: torch.device
    dtype: torch.dtype
    distributed: bool = False
    """Whether the tensors are `DTensor`s (FSDP2, tensor parallelism)."""
    flat: bool = False
    """Whether the tensors are small and on the CPU, so that they are best gathered into one."""
    shards: tuple[Any, ...] = ()
    """Process groups over which each of the tensors is cut; empty for whole and replicated tensors."""


def local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor: the shard of a `DTensor`, any other tensor itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def shard_groups(tensor: Tensor) -> tuple[Any, ...]:
    """Process groups over which a `DTensor` is cut; a replicated mesh dimension must not be summed over."""
    if not hasattr(tensor, "to_local"):
        return ()
    distributed: Any = tensor
    placements, mesh = distributed.placements, distributed.device_mesh
    if any(placement.is_partial() for placement in placements):
        raise ValueError("a parameter holds partial sums; only sharded and replicated DTensors can be perturbed")
    return tuple(mesh.get_group(axis) for axis, placement in enumerate(placements) if not placement.is_replicate())


_is_none = partial(is_, None)


def pick(block: Block, *vectors: Vector) -> list[list[Tensor]]:
    """The block's local tensors of each vector, at the positions where every one of them has something."""
    columns: list[list[Any]] = [[vector[i] for i in block.members] for vector in vectors]
    if any(any(map(_is_none, column)) for column in columns):
        rows = [row for row in zip(*columns, strict=True) if not any(map(_is_none, row))]
        columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in vectors]
    if block.distributed:
        columns = [[local(tensor) for tensor in column] for column in columns]
    return columns


def empty_like(vector: Vector) -> list[Tensor | None]:
    """Local tensors of the same shapes and strides, contents undefined."""
    return [None if tensor is None else torch.empty_like(local(tensor)) for tensor in vector]


def zeros_like(vector: Sequence[Tensor]) -> list[Tensor]:
    """Local tensors of zeros of the same shapes and strides."""
    return [torch.zeros_like(local(tensor)) for tensor in vector]


def as_scalar(value: float | Tensor, block: Block) -> float | Tensor:
    """A number usable in the block's multi-tensor calls: a 0-d tensor must share their dtype and device."""
    return value.to(block.device, block.dtype) if isinstance(value, Tensor) else value


def add_over_blocks(parts: Iterable[tuple[Block, Tensor]]) -> Tensor | None:
    """Sum of per-block values (all of one shape) over blocks and over the processes that hold their shards."""
    sums: dict[tuple[Any, ...], Tensor] = {}
    for block, value in parts:
        if block.shards in sums:
            value = sums[block.shards] + value.to(sums[block.shards].device)
        sums[block.shards] = value
    for groups, value in sums.items():
        for group in groups:
            dist.all_reduce(value, group=group)
    values = list(sums.values())
    if not values:
        return None
    return sum((value.to(values[0].device) for value in values[1:]), start=values[0])


def norms(tensors: Sequence[Tensor], order: int = 2) -> Tensor:
    """Norms of each tensor, stacked, in double precision where the device has it."""
    low = tensors[0].dtype in (torch.float16, torch.bfloat16)
    stacked = torch.stack(torch._foreach_norm(list(tensors), order, dtype=torch.float32 if low else None))
    return stacked if stacked.device.type == "mps" else stacked.double()


def squared_norm(blocks: Iterable[Block], vector: Vector) -> Tensor | None:
    """Sum of squares over the blocks; None when none of them has a tensor."""
    parts = []
    for block in blocks:
        (tensors,) = pick(block, vector)
        if tensors:
            parts.append((block, norms(tensors).square().sum()))
    return add_over_blocks(parts)


def inner_product(blocks: Iterable[Block], first: Vector, second: Vector) -> Tensor | None:
    """Sum of products over the blocks, as 2·‖(ab)⁺‖₁ − ‖ab‖₁: there is no multi-tensor sum, but there is a 1-norm."""
    parts = []
    for block in blocks:
        a, b = pick(block, first, second)
        if a:
            products = torch._foreach_mul(a, b)
            absolute = norms(products, 1).sum()
            torch._foreach_clamp_min_(products, 0.0)
            parts.append((block, 2 * norms(products, 1).sum() - absolute))
    return add_over_blocks(parts)


def guarded_reciprocal(value: Tensor) -> Tensor:
    """1/value, and 0 where value is 0 (or too small to invert): a zero gradient perturbs nothing."""
    return torch.where(value > torch.finfo(value.dtype).tiny, value.reciprocal(), torch.zeros_like(value))


def scale_(blocks: Iterable[Block], vector: Vector, factor: float | Tensor) -> None:
    """Multiply in place."""
    for block in blocks:
        (tensors,) = pick(block, vector)
        if tensors:
            torch._foreach_mul_(tensors, as_scalar(factor, block))


def add_(blocks: Iterable[Block], vector: Vector, other: Vector, factor: float | Tensor = 1.0) -> None:
    """Add factor · other in place, where both have something."""
    for block in blocks:
        mine, theirs = pick(block, vector, other)
        if not mine:
            continue
        if isinstance(factor, Tensor):
            torch._foreach_add_(mine, torch._foreach_mul(theirs, as_scalar(factor, block)))
        else:
            torch._foreach_add_(mine, theirs, alpha=factor)


def copy_(blocks: Iterable[Block], vector: Vector, other: Vector) -> None:
    """Copy the other's values in, where both have something."""
    for block in blocks:
        mine, theirs = pick(block, vector, other)
        if mine:
            torch._foreach_copy_(mine, theirs)


def clone(blocks: Iterable[Block], vector: Vector) -> list[Tensor | None]:
    """A copy whose tensors share no memory with the original."""
    fresh = empty_like(vector)
    copy_(blocks, fresh, vector)
    return fresh
