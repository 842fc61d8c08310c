"""Memory: how much a graph holds, and how much there is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class SavedBytes(torch.autograd.graph.saved_tensors_hooks):
    """Counts the memory that graphs hold while it is entered, each storage once and the parameters not at all."""

    def __init__(self, parameters: Iterable[Tensor] = ()) -> None:
        self._own = {parameter.untyped_storage().data_ptr() for parameter in parameters}
        self._seen: dict[int, int] = {}
        super().__init__(self._pack, self._unpack)

    @property
    def total(self) -> int:
        """Bytes counted so far."""
        return sum(self._seen.values())

    def _pack(self, tensor: Tensor) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._own:
            self._seen[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # with its history, a layer that saves its own value would never be freed

    _unpack: Callable[[Any], Tensor] = staticmethod(Tensor.detach)
    """Not in Python: Ctrl-C would be raised there, within torch's engine, which never frees a graph left that way; the
    graph outlives the interpreter and ends it by a segmentation fault."""


def free_bytes(device: torch.device) -> float:
    """Memory that graphs may fill: most of what a GPU has left, half of what a CPU has."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return 0.9 * (free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    try:
        return 0.5 * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not told on this system
        return 2.0 * 2**30
