"""Numbers formatted for people. A missing value is an en dash everywhere."""

from __future__ import annotations

import math
from typing import Any

MISSING = "–"


def number(value: Any) -> float | None:
    """Give `value` as a finite float, or None: run folders may hold anything."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        value = float(value)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def percent(mean: float | None, std: float | None = None, *, unit: str = " %") -> str:
    """Format a share as percent: 0.978 and 0.003 as "97.8 ± 0.3 %"."""
    if mean is None:
        return MISSING
    spread = "" if std is None else f" ± {100 * std:.1f}"
    return f"{100 * mean:.1f}{spread}{unit}"


def points(difference: float) -> str:
    """Format a difference of two shares in percentage points, always with its sign."""
    text = f"{100 * abs(difference):.2f}"
    return text if text == "0.00" else ("+" if difference > 0 else "−") + text


def compact(value: float | None) -> str:
    """Format a large count with three digits and a letter: 53,130 as "53.1k"."""
    if value is None:
        return MISSING
    size = abs(value)
    for letter, unit in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if size >= 0.9995 * unit:
            return _three_digits(value / unit) + letter
    return f"{value:.0f}" if value == round(value) else f"{value:.3g}"


def whole(value: float | None) -> str:
    """Format a count in full up to a million, 12,800, and compactly from there."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if abs(value) < 1e6 else compact(value)


def duration(seconds: float | None) -> str:
    """Format a time: "8 ms", "0.49 s", "12.3 s", "4 min 10 s", "2 h 05 min"."""
    if seconds is None:
        return MISSING
    if seconds < 0.0995:
        return f"{1000 * seconds:.3g} ms" if seconds >= 0 else MISSING
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    if seconds < 3599.5:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes:02d} min"


def loss(mean: float | None, std: float | None = None) -> str:
    """Format a loss with three digits, and its spread with as many places."""
    if mean is None:
        return MISSING
    if mean != 0 and not 1e-3 <= abs(mean) < 1e4:
        return f"{mean:.2e}" + ("" if std is None else f" ± {std:.0e}")
    places = 3 if abs(mean) < 10 else 1
    return f"{mean:.{places}f}" + ("" if std is None else f" ± {std:.{places}f}")


def shorten(text: str, limit: int) -> str:
    """Cut a name that is too long in its middle, where names differ least."""
    if len(text) <= limit:
        return text
    head = (limit - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def _three_digits(value: float) -> str:
    size = abs(value)
    return f"{value:.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"
