"""How measuring looks: which measure is being made, how far it is, and each result in one line."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.progress import Progress, TaskID

from steppe.cli.show import Ticker, console, end_bar


class MeasuringProgress:
    """Shows measures as they are made: a bar on a terminal, a plain line now and then elsewhere."""

    def __init__(self, bar: Progress | None, headlines: Mapping[str, str]) -> None:
        """Show on `bar`; `headlines` says which figures of a result are printed: measure -> paths, dots between."""
        self.bar, self.headlines = bar, headlines
        self.shown: dict[str, dict[str, Any]] = {}
        """measure -> the figures of its line, those that are doubtful, and seconds (None: found before)"""
        self.passed_over: dict[str, str] = {}
        """measure -> why it was not made"""
        self.tasks: dict[str, TaskID] = {}
        self.now: tuple[str, float] | None = None
        self.done: tuple[int, int] | None = None
        self.over = threading.Event()
        self.ticker = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> MeasuringProgress:
        if self.bar is None:
            self.ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over.set()
        for name in list(self.tasks):
            self._end(name)

    def __call__(self, event: str, name: str, details: dict[str, Any]) -> None:
        """Take an event of `add_results`."""
        if event == "start":
            self.now, self.done = (name, time.monotonic()), None
            if self.bar:
                self.tasks[name] = self.bar.add_task(name, total=None)
        elif event == "part":
            self.done = details["done"], details["total"]
            if self.bar:
                self.bar.update(self.tasks[name], completed=details["done"], total=details["total"])
        elif event == "remark":
            say(f"note: {name}: {details['text']}")
        elif event == "left_out":
            self._end(name)
            self.passed_over[name] = details["reason"]
            say(f"{name}: passed over: {details['reason']}")
        else:
            self._end(name, is_done=True)
            took_s = None if event == "kept" else details["time_s"]
            paths = self.headlines.get(name) or first_numbers(details)
            values, doubtful = figures_of(details, paths), doubtful_of(details, paths)
            self.shown[name] = {"values": values, "not_converged": doubtful, "time_s": took_s}
            took = "found before" if took_s is None else f"{took_s:.1f} s"
            say(f"{name}: {headline(values, doubtful)}({took})")

    def _end(self, name: str, *, is_done: bool = False) -> None:
        self.now = None
        if self.bar and name in self.tasks:
            if is_done:
                end_bar(self.bar, self.tasks[name])
            self.bar.remove_task(self.tasks.pop(name))

    def _tick(self) -> None:
        """Say now and then how far the measure is: a log shows that it is alive."""
        name, ticker = "", Ticker()
        while not self.over.wait(0.1):
            if self.now is None:
                continue
            if self.now[0] != name:
                ticker = Ticker()
            name, began = self.now
            if not ticker.is_due():
                continue
            passed = time.monotonic() - began
            far = f"{self.done[0]} of {self.done[1]}, " if self.done else ""
            say(f"{name}: {far}{passed:.0f} s so far")


def first_numbers(found: Mapping[str, Any]) -> str:
    """The paths of a result's first numbers: what is printed of a measure without a headline, such as a user's own."""
    numbers = [key for key, value in found.items() if isinstance(value, int | float) and not isinstance(value, bool)]
    return " ".join([key for key in numbers if key != "time_s"][:3])


def figures_of(found: Mapping[str, Any], paths: str) -> dict[str, float]:
    """The numbers of a result that paths such as "parts.whole.mean stderr" lead to, by what to call them.

    A path that ends in a mapping of numbers by part takes that of the whole, or their mean.
    """
    out: dict[str, float] = {}
    for path in paths.split():
        value: Any = found
        for word in path.split("."):
            if word == "*" and isinstance(value, Mapping):
                inner = [v for v in value.values() if isinstance(v, Mapping)]
                value = {k: sum(v[k] for v in inner) / len(inner) for k in (inner[0] if inner else ())}
            else:
                value = value.get(word) if isinstance(value, Mapping) else None
        if isinstance(value, int | float):
            name = path.removeprefix("parts.").removesuffix(".value").replace(".*", "")
            out[name.replace(".", " ").replace("_", " ")] = value
    return out


def doubtful_of(found: Mapping[str, Any], paths: str) -> list[str]:
    """Which of those numbers are eigenvalues that had not converged."""
    return [name for path in paths.split() if _converged(found, path) is False for name in figures_of(found, path)]


def headline(values: Mapping[str, float], doubtful: Sequence[str]) -> str:
    """The figures of a result in a line, such as "mean 0.31  stderr 0.01  "; doubtful ones say so."""
    doubts = {name: " (not converged)" if name in doubtful else "" for name in values}
    return "".join(f"{name} {value:.4g}{doubts[name]}  " for name, value in values.items())


def _converged(found: Mapping[str, Any], path: str) -> Any:
    """What stands beside an eigenvalue."""
    value: Any = found
    for word in path.split(".")[:-1]:
        value = value.get(word) if isinstance(value, Mapping) else None
    return value.get("converged") if isinstance(value, Mapping) else None


def say(text: str) -> None:
    """Print a plain line."""
    console.print(text, markup=False, soft_wrap=True)
