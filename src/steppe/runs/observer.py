"""What a run tells while it goes on, for whoever wants to show or keep it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from steppe.runs.folder import Run

Status = Literal["finished", "failed", "stopped"]


class Observer:
    """What a run tells while it goes on. Every method may be overridden; none has to be."""

    def start(self, run: Run, total_epochs: float, done_epochs: float) -> None:
        """Training begins, or goes on after `done_epochs`."""

    def step(self, epochs: float) -> None:
        """A step is done; `epochs` counts from the beginning, in fractions."""

    def epoch(self, record: dict[str, Any]) -> None:
        """An epoch is done; `record` is its line in `metrics.jsonl`."""

    def saved(self, run: Run) -> None:
        """What there is so far is written, nothing is being written: a copy of the folder could be gone on with."""

    def evaluate(self, done: int, total: int) -> None:
        """The final evaluation has gone through so many images, of so many."""

    def say(self, text: str) -> None:
        """Something the user should know, once."""

    def end(self, run: Run, status: Status) -> None:
        """Training is over: to its end, broken ("failed"), or to be gone on with later ("stopped")."""


class Several(Observer):
    """Tells each of several observers, in order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        """Keep them."""
        self.observers = list(observers)

    def start(self, run: Run, total_epochs: float, done_epochs: float) -> None:
        """Tell each."""
        for one in self.observers:
            one.start(run, total_epochs, done_epochs)

    def step(self, epochs: float) -> None:
        """Tell each."""
        for one in self.observers:
            one.step(epochs)

    def epoch(self, record: dict[str, Any]) -> None:
        """Tell each."""
        for one in self.observers:
            one.epoch(record)

    def saved(self, run: Run) -> None:
        """Tell each."""
        for one in self.observers:
            one.saved(run)

    def evaluate(self, done: int, total: int) -> None:
        """Tell each."""
        for one in self.observers:
            one.evaluate(done, total)

    def say(self, text: str) -> None:
        """Tell each."""
        for one in self.observers:
            one.say(text)

    def end(self, run: Run, status: Status) -> None:
        """Tell each."""
        for one in self.observers:
            one.end(run, status)
