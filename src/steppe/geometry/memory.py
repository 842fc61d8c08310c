"""Memory: how much a graph holds, and how much there is."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
from torch import Tensor


class SavedBytes(torch.autograd.graph.saved_tensors_hooks):
    """Counts the memory that graphs hold while it is entered, each storage once and the parameters not at all."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        own = {parameter.untyped_storage().data_ptr() for parameter in parameters}
        seen: dict[int, int] = {}
        self.seen = seen

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                seen[storage.data_ptr()] = storage.nbytes()
            return tensor

        super().__init__(note, lambda tensor: tensor)

    @property
    def total(self) -> int:
        """Bytes counted so far."""
        return sum(self.seen.values())


def free_bytes(device: torch.device) -> float:
    """Memory that graphs may fill: most of what a GPU has left, half of what a CPU has."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return 0.9 * (free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    try:
        return 0.5 * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not told on this system
        return 2.0 * 2**30
