"""The perturbation on CUDA in two kernels, for captured steps.

Multi-tensor calls read and write memory once for each operation. These two kernels (Triton, which comes with torch)
read the weights and the direction twice in all and write the perturbed weights once: one takes Σ (T d)², the other
writes w + ρ T² d / ‖T d‖. Both run over all tensors in one launch, by tables of addresses. Under capture addresses are
fixed, so a table is filled once, after the recording.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .perturbation import Length, Perturbation
from .vectors import Block, Vector, pick

try:
    from . import kernels
except ImportError:  # torch without CUDA, or on a platform without Triton
    kernels = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from .engine import Minimizer

CHUNK = 8192
BLOCK = 2048


def can_fuse(minimizer: Minimizer) -> bool:
    """Whether the kernels apply: Triton is there, and all that is perturbed is float32 on one CUDA device."""
    chosen = [block for block in minimizer.blocks if block.perturbed]
    plain = all(b.device.type == "cuda" and b.dtype == torch.float32 and not b.distributed for b in chosen)
    return kernels is not None and plain and len({b.device for b in chosen}) == 1 and minimizer.scaling != "layer"


class FusedPerturbation(Perturbation):
    """As `Perturbation`, in two kernels where addresses, dtypes and strides allow, and else as before."""

    def __init__(self, fallback: Perturbation) -> None:
        """Keep the multi-tensor form for calls that the kernels do not cover."""
        super().__init__()
        self.fallback = fallback
        self.pending: list[tuple[Tensor, Tensor]] = []
        self.kept: list[Tensor] = []
        self.spare: dict[torch.Size, Tensor] = {}

    def make_snapshot(self, blocks: list[Block], parameters: Vector) -> Vector:
        """As the multi-tensor form does."""
        return self.fallback.make_snapshot(blocks, parameters)

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
        """Write parameters + length · ε to `out`."""
        rows: list[tuple[Tensor, Tensor, Tensor, bool, int]] = []
        chosen = [block for block in blocks if block.perturbed]
        for block in chosen:
            triples = zip(*pick(block, parameters, direction, out), strict=True)
            rows += [(w, d, o, block.scaled, block.group) for w, d, o in triples]
        wanted = sum(out[i] is not None for block in chosen for i in block.members)
        if out is not parameters and len(rows) == wanted and all(_alike(w, d, o) for w, d, o, _, _ in rows):
            _launch(rows, groups, length, self)
        else:
            self.fallback(blocks, groups, parameters, direction, out, scaling=scaling, length=length, consume=consume)

    def table(self, values: list[list[int]], device: torch.device) -> Tensor:
        """A device table of integers.

        Under capture it takes the place of the one that the last warm-up step made, and is filled after the recording:
        memory taken during a recording may be written by other kernels of the graph.
        """
        host = torch.tensor(values, dtype=torch.int64)
        if torch.cuda.is_current_stream_capturing():
            table = self.spare.pop(host.shape)
            self.pending.append((table, host))
            return table
        table = self.spare[host.shape] = host.to(device)
        return table

    def fill_tables(self) -> None:
        """Fill the tables that a recording left empty; they stay alive as long as this object."""
        for table, host in self.pending:
            table.copy_(host)
            self.kept.append(table)
        self.pending.clear()


def _alike(w: Tensor, d: Tensor, o: Tensor) -> bool:
    """Whether the three lie alike in memory, so that one offset serves all."""
    same = _steps(w) == _steps(d) == _steps(o) and w.dtype == d.dtype == o.dtype
    dense = w.is_contiguous() or w.is_contiguous(memory_format=torch.channels_last)
    return same and dense and not any(t.data_ptr() % 16 for t in (w, d, o))


def _steps(tensor: Tensor) -> list[int]:
    """Strides of the dimensions that are longer than 1; those of the others mean nothing and differ by chance."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def _launch(
    rows: list[tuple[Tensor, Tensor, Tensor, bool, int]],
    groups: list[dict[str, Any]],
    length: Length,
    owner: FusedPerturbation,
) -> None:
    device = rows[0][0].device
    tensors = [[w.data_ptr(), d.data_ptr(), o.data_ptr(), w.numel(), int(s), g] for w, d, o, s, g in rows]
    chunks = [[i, c] for i, row in enumerate(tensors) for c in range(-(-row[3] // CHUNK))]
    tensor_table, chunk_table = owner.table(tensors, device), owner.table(chunks, device)
    numbers = torch.stack(
        [torch.as_tensor(group[key], dtype=torch.float32, device=device) for group in groups for key in ("rho", "eta")]
    )
    partial = torch.empty(len(chunks), dtype=torch.float32, device=device)
    grid = (len(chunks),)
    kernels.sum_of_squares[grid](tensor_table, chunk_table, numbers, partial, CHUNK=CHUNK, BLOCK=BLOCK)
    total = partial.sum()
    if callable(length):  # a number for the kernel, and the rest into the radii
        numbers[::2] *= length(total.sqrt())
        length = 1.0
    kernels.displace[grid](tensor_table, chunk_table, numbers, total, length, CHUNK=CHUNK, BLOCK=BLOCK)
