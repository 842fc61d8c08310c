"""The time of a search: how it is written, and how it is counted over several sessions."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress

from steppe.errors import ConfigError


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


def parse_seconds(text: str) -> float:
    """Read a time such as "90", "45s", "20m", "1h30m" or "1.5h".

    Raises:
        ConfigError: it cannot be read, or is not positive.
    """
    found = re.fullmatch(r"(?:([\d.]+)h)?(?:([\d.]+)m(?:in)?)?(?:([\d.]+)s?)?", text.replace(" ", "").lower())
    with suppress(ValueError):
        if found and any(found.groups()):
            seconds = sum(float(part) * unit for part, unit in zip(found.groups(), (3600, 60, 1), strict=True) if part)
            if 0 < seconds < 1e8:
                return seconds
    raise ConfigError(f"{text!r} is not a time", where="--budget", mend="write it as 90s, 20m or 1h30m")


def show_seconds(seconds: float) -> str:
    """A time in words: 45 s, 20 min, 1.5 h."""
    if seconds < 120:
        return f"{seconds:g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
