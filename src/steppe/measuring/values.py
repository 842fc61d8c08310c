"""Which values a setting of a measure may have: checked before anything is read, and told by `--list`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from steppe.errors import ConfigError


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; with `above`, larger than `low`."""

    low: float = 1
    high: float | None = None
    above: bool = False

    def holds(self, value: float) -> bool:
        """Whether a number lies within, and is one that a machine counts with."""
        if isinstance(value, int) and abs(value) >= 2**63:
            return False
        enough = value > self.low if self.above else value >= self.low
        return math.isfinite(value) and enough and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        if self.above:
            return f"above {self.low:g}" + ("" if self.high is None else f", at most {self.high:g}")
        return f"{self.low:g} or more" if self.high is None else f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Text:
    """Any text; what it may be is for the model or the data to know, and told in words."""

    words: str

    def __str__(self) -> str:
        return self.words


Allowed = Range | Text | tuple[str, ...]
"""Numbers of a range, text, or one of several words."""

_KINDS = {bool: "true or false", int: "a whole number", float: "a number"}


def allowed_of(default: Any, said: Allowed | None) -> Allowed:
    """What a setting may be: what its measure says, else any number that is not negative, any text."""
    if said is not None:
        return said
    if isinstance(default, bool):
        return ("true", "false")
    return Range(0) if isinstance(default, int | float) else Text("text")


def show_allowed(allowed: Allowed) -> str:
    """What a setting may be, in words."""
    return " or ".join(allowed) if isinstance(allowed, tuple) else str(allowed)


def read_value(text: str, default: Any, said: Allowed | None, where: str) -> Any:
    """Read a setting as the type its default has.

    Args:
        text: what was written.
        default: the setting's default value.
        said: what the measure allows.
        where: for the error.

    Raises:
        ConfigError: it is of another type, or not allowed.
    """
    allowed = allowed_of(default, said)
    try:
        value = _parse(text, default)
    except (ValueError, KeyError):
        words = _KINDS[type(default)]
        if isinstance(allowed, Range):
            words += f", {allowed}"
        raise ConfigError(f"{text!r} is not {words}", where=where) from None
    check_value(value, allowed, where)
    return value


def _parse(text: str, default: Any) -> Any:
    if isinstance(default, bool):
        return {"true": True, "false": False}[text.lower()]
    if isinstance(default, int):
        return int(text)
    if isinstance(default, float):
        number = float(text)
        if not math.isfinite(number):
            raise ValueError
        return number
    return text


def check_value(value: Any, allowed: Allowed, where: str) -> None:
    """Refuse a value that is not allowed.

    Args:
        value: of the type of the setting's default.
        allowed: from `allowed_of`.
        where: it was said, for the error: `--set measure.key=value`, or a place that ends in the key.
    """
    key = where.removeprefix("--set ").partition("=")[0].rpartition(", ")[2]
    if isinstance(allowed, Range) and not allowed.holds(value):
        shown = f"{value:g}" if isinstance(value, float) else str(value)[:40]
        raise ConfigError(f"{key} cannot be {shown}", where=where[:200], fix=f"choose a number: {allowed}")
    if isinstance(allowed, tuple) and not isinstance(value, bool) and value not in allowed:
        raise ConfigError(f"{key} cannot be {value!r}", where=where, fix=f"choose one of: {', '.join(allowed)}")
    if isinstance(allowed, Text) and not str(value).strip():
        raise ConfigError(f"{key} is empty", where=where, fix=f"say {allowed}")
