"""What a run keeps count of between two records: losses and hits on the device, seconds of training on the host."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from steppe.cost import wait_for

NEVER = 2**62


class Tally:
    """Sums over the steps since the last record, kept on the device so that no step waits for them."""

    def __init__(self, device: torch.device) -> None:
        """Begin at zero."""
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self.hits = torch.zeros((), dtype=torch.int64, device=device)
        self.first_bad = torch.full((), NEVER, device=device)
        self.steps = self.seen = 0

    def add(self, step: int, loss: Tensor, hits: Tensor, seen: int) -> None:
        """Take in a step: its loss, how many examples it hit, and of how many."""
        self.loss_sum += loss
        self.hits += hits
        self.seen += seen
        self.steps += 1
        self.first_bad = torch.where(torch.isfinite(loss), self.first_bad, self.first_bad.clamp(max=step))

    def take(self) -> tuple[float, float]:
        """Give the mean loss and the accuracy, and begin again."""
        found = self.loss_sum.item() / self.steps, self.hits.item() / self.seen
        self.loss_sum.zero_()
        self.hits.zero_()
        self.steps = self.seen = 0
        return found

    def bad_step(self) -> int | None:
        """The first step whose loss was no finite number."""
        step = int(self.first_bad)
        return None if step == NEVER else step

    def state_dict(self) -> dict[str, Any]:
        """The sums."""
        return {"loss_sum": self.loss_sum, "hits": self.hits, "steps": self.steps, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.loss_sum.copy_(state["loss_sum"])
        self.hits.copy_(state["hits"])
        self.steps, self.seen = state["steps"], state["seen"]


class Clock:
    """Seconds of training: without evaluating, saving and compiling."""

    def __init__(self, device: torch.device) -> None:
        """Begin at zero, standing."""
        self.device, self.total_s = device, 0.0
        self.began: float | None = None

    def start(self) -> None:
        """Let it run."""
        self.began = time.perf_counter()

    def stop(self) -> None:
        """Let it stand, once the device has done what it was given."""
        wait_for(self.device)
        assert self.began is not None
        self.total_s += time.perf_counter() - self.began
        self.began = None

    def leave_out(self, seconds: float) -> None:
        """Do not count seconds that have just passed."""
        assert self.began is not None
        self.began += seconds

    def read(self, wait: bool) -> float:
        """The seconds so far; where a GPU is to be waited for, the host has not counted ahead of it."""
        if self.began is None:
            return self.total_s
        if wait:
            wait_for(self.device)
        return self.total_s + time.perf_counter() - self.began
