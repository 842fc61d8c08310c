"""What a run tells while it goes on, for whoever wants to show it."""

from __future__ import annotations

from typing import Any

from steppe.runs.folder import Run


class Observer:
    """What a run tells while it goes on. Every method may be overridden; none has to be."""

    def start(self, run: Run, total_epochs: float, done_epochs: float) -> None:
        """Training begins, or goes on after `done_epochs`."""

    def step(self, epochs: float) -> None:
        """A step is done; `epochs` counts from the beginning, in fractions."""

    def epoch(self, record: dict[str, Any]) -> None:
        """An epoch is done; `record` is its line in `metrics.jsonl`."""

    def say(self, text: str) -> None:
        """Something the user should know, once."""
