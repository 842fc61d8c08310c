"""What a search may spend, how that is written, and how time is counted over several sessions."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from steppe.errors import ConfigError
from steppe.runs import read_json, write_json

DEFAULT = "10m"
"""The budget of a search whose caller names none."""


@dataclass(frozen=True)
class Budget:
    """What a search may spend.

    Args:
        amount: how much.
        unit: `seconds` of everything; or `epochs` of gradients, in which no clock has a part: one is as many gradients
            as take every training image once, so that an epoch of SAM is two.
    """

    amount: float
    unit: Literal["seconds", "epochs"] = "seconds"

    @property
    def timed(self) -> bool:
        """Whether a clock has a part in it."""
        return self.unit == "seconds"

    def key(self, name: str) -> str:
        """A key of `fit.json` with its unit, as `budget_s` or `budget_epochs`."""
        return f"{name}_s" if self.timed else f"{name}_epochs"

    def __str__(self) -> str:
        """In words."""
        return show_seconds(self.amount) if self.timed else f"{self.amount:g} epochs"


class Clock:
    """The seconds a search has had, in all of its sessions; kept in its folder while they pass.

    The clock of a search that is over stands still: looking at it again costs it nothing.
    """

    def __init__(self, began: float, before_s: float, keep: Callable[[float], None], *, over: bool = False) -> None:
        self.began, self.before_s, self.over = began, before_s, over
        self._keep, self._kept = keep, 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds so far."""
        return self.before_s + (0.0 if self.over else time.monotonic() - self.began)

    def beat(self, *, now: bool = False) -> None:
        """Keep the time, every two seconds or at once."""
        if not self.over and (now or time.monotonic() - self._kept > 2):
            self._keep(self.elapsed_s)
            self._kept = time.monotonic()


def parse_budget(text: str) -> Budget:
    """Read a time as `parse_seconds` does, or a number of epochs such as "200epochs".

    Raises:
        ConfigError: it cannot be read, or is not positive.
    """
    found = re.fullmatch(r"([\d.]+)epochs?", text.replace(" ", "").lower())
    with suppress(ValueError):
        if found and 0 < float(found[1]) < 1e6:
            return Budget(float(found[1]), "epochs")
    return Budget(parse_seconds(text))


def parse_seconds(text: str) -> float:
    """Read a time such as "45s", "20m", "1h30m" or "1.5h".

    Raises:
        ConfigError: it cannot be read, lacks a unit, or is not positive.
    """
    plain = text.replace(" ", "").lower()
    found = re.fullmatch(r"(?:([\d.]+)h)?(?:([\d.]+)m(?:in)?)?(?:([\d.]+)(s?))?", plain)
    with suppress(ValueError):
        if found and any(found.groups()):
            *parts, unit = found.groups()
            seconds = sum(float(part) * unit for part, unit in zip(parts, (3600, 60, 1), strict=True) if part)
            if 0 < seconds < 1e8 and (unit or not parts[2]):
                return seconds
            if 0 < seconds < 1e8:
                meant = [f"{plain}{unit}" for unit in ("ms" if not parts[1] else "s")]
                raise ConfigError(f"{text!r} has no unit", where="--budget", fix=f"did you mean {' or '.join(meant)}?")
    fix = "write it as 90s, 20m or 1h30m; or, for a search without a clock, as 200epochs"
    raise ConfigError(f"{text!r} is not a time", where="--budget", fix=fix)


def show_seconds(seconds: float) -> str:
    """A time in words: 45 s, 20 min, 1.5 h."""
    if seconds < 120:
        return f"{seconds:g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def read_about(folder: Path) -> dict[str, Any]:
    """What a folder says of its search; empty where there is none."""
    path = folder / "fit.json"
    about = read_json(path) if path.is_file() else {}
    return about if isinstance(about, dict) else {}


def is_over(about: dict[str, Any], budget: Budget) -> bool:
    """Whether a search has given its answer, and is not asked to go on by a longer budget."""
    return "best" in about and budget.amount <= float(about.get(budget.key("budget"), 0.0))


def open_clock(folder: Path, about: dict[str, Any], budget: Budget, began: float) -> Clock:
    """The clock of a session.

    Args:
        folder: the search's; time is kept in its `fit.json`.
        about: what else is kept there.
        budget: that of this session.
        began: `time.monotonic()` when it began.
    """

    def keep(elapsed_s: float) -> None:
        write_json(folder / "fit.json", {**about, "elapsed_s": round(elapsed_s, 2)})

    return Clock(began, float(about.get("elapsed_s", 0.0)), keep, over=is_over(about, budget))
