"""Where the seconds of a command went: starting, reading data, compiling, training, evaluating, measuring."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from steppe.runs.folder import Run
from steppe.runs.observer import Observer

NAMES = {
    "startup_s": "starting",
    "data_s": "reading data",
    "compile_s": "compiling",
    "time_s": "training",
    "evaluate_s": "evaluating",
    "measure_s": "measuring",
}
"""Key of `summary.json` -> the word for it."""


class Phases(Observer):
    """Times the phases around a training.

    Args:
        before_s: seconds that the process took before this was made; they count as starting.
    """

    def __init__(self, before_s: float = 0.0) -> None:
        """Begin with the phase before training."""
        self.seconds = {"startup_s": before_s, "data_s": 0.0, "measure_s": 0.0}
        self.began: float | None = time.perf_counter()

    def start(self, run: Run, total_epochs: float, done_epochs: float) -> None:
        """End the phase before training; a training that begins again with less memory counts once."""
        if self.began is not None:
            self.seconds["startup_s"] += time.perf_counter() - self.began
            self.began = None

    @contextmanager
    def timed(self, key: str) -> Iterator[None]:
        """Count what happens inside as one phase, and not as starting.

        Args:
            key: "data_s" or "measure_s".
        """
        began = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - began
            self.seconds[key] += took
            if self.began is not None:
                self.began += took

    def save(self, run: Run) -> None:
        """Write the seconds into the run's summary, if this process trained it."""
        if self.began is None:
            run.write("summary.json", {**run.summary, **self.seconds})


def describe_phases(summary: dict[str, Any]) -> str:
    """Say what took how long, such as "24.1 s: starting 9.0, training 1.3, measuring 13.8"; "" if it is not known.

    Args:
        summary: of a run, with the keys of `NAMES` that apply.
    """
    known = {word: float(summary[key]) for key, word in NAMES.items() if summary.get(key)}
    if "startup_s" not in summary:
        return ""
    return f"{sum(known.values()):.1f} s: " + ", ".join(f"{word} {took:.1f}" for word, took in known.items())


def process_age_s() -> float:
    """Return the seconds since this process began; 0 where the system does not tell."""
    try:
        after_boot = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - after_boot / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
