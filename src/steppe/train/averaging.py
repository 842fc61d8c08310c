"""An exponential moving average of the weights, for evaluation and for keeping."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from steppe.minimizers.vectors import local
from steppe.train.distributed import local_vector, whole_vector


class WeightAverage:
    """Keeps a ← d a + (1 − d) w over the steps, with d = min(decay, (1 + t) / (10 + t)), which forgets the start.

    BatchNorm's statistics and other buffers are averages already: the model's own are used.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Begin at the model's weights."""
        self.decay, self.steps = decay, 0
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.live = [local(p) for p in self.parameters]
        self.averages = [p.detach().clone() for p in self.live]

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights after a step."""
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        torch._foreach_lerp_(self.averages, self.live, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the model has the averaged weights."""
        with torch.no_grad():
            own = [p.detach().clone() for p in self.live]
            torch._foreach_copy_(self.live, self.averages)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self.live, own)

    def state_dict(self) -> dict[str, object]:
        """The averages and how many steps they hold."""
        return {"steps": self.steps, "averages": whole_vector(self.averages, self.parameters)}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, object]) -> None:
        """Take back what `state_dict` gave."""
        steps, averages = state["steps"], state["averages"]
        if not isinstance(steps, int) or not isinstance(averages, list) or len(averages) != len(self.averages):
            raise ValueError("the average belongs to another model")
        self.steps = steps
        for own, given in zip(self.averages, local_vector(averages, self.parameters), strict=True):
            assert given is not None
            own.copy_(given)
