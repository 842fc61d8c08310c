"""The most memory that a piece of work needs at once.

On CUDA the allocator counts. On the CPU nobody does, and the size of the process says more about what was freed before
than about the work, so the tensors are counted: every storage that is alive, from the operation that made it on. What
an operation takes and gives back inside itself is not seen there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


def measure_peak_memory(work: Callable[[], object], device: torch.device, held: object = ()) -> int:
    """Run `work` and give the most bytes that were in use at once, those in use before it included.

    Args:
        work: computes on `device`.
        device: where.
        held: on the CPU, the tensors in use before: a model's weights and an optimizer's state, in any nesting.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device))
    with _CountTensors(held) as counted:
        work()
    return counted.peak


class _CountTensors(TorchDispatchMode):
    """Follows the storages that operations make, until they are gone."""

    def __init__(self, held: object) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: dict[int, Any] = {}
        self._follow(held)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._follow(out)
        return out

    def _follow(self, tree: object) -> None:
        for tensor in tree_iter(tree):
            if not isinstance(tensor, torch.Tensor):
                continue
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key not in self.known:
                size = storage.nbytes()
                self.known[key] = weakref.finalize(storage, self._forget, key, size)
                self.known[key].atexit = False
                self.now += size
                self.peak = max(self.peak, self.now)

    def _forget(self, key: int, size: int) -> None:
        self.known.pop(key, None)
        self.now -= size
