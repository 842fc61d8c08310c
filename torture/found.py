"""What a part of the suite found: counts, failures, and what could not be tried here."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field


@dataclass
class Found:
    """The account of one part.

    Args:
        part: its name.
    """

    part: str
    counts: dict[str, str] = field(default_factory=dict)
    """What was done -> how often, or how long; in words."""
    failures: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    took_s: float = 0.0

    def say(self, text: str) -> None:
        """Print a line of progress."""
        print(f"{time.strftime('%H:%M:%S')} {self.part}: {text}", file=sys.__stdout__, flush=True)

    def check(self, what: str, holds: bool, detail: str = "") -> bool:
        """Count a check; where it does not hold, keep what was wrong.

        Args:
            what: what should hold.
            holds: whether it does.
            detail: what was seen instead.
        """
        if not holds:
            self.fail(f"{what}: {detail}" if detail else what)
        return holds

    def fail(self, text: str) -> None:
        """Keep a failure and print it."""
        self.failures.append(text)
        self.say(f"FAILED {text}")

    def skip(self, text: str) -> None:
        """Keep what could not be tried, loudly."""
        self.skipped.append(text)
        self.say(f"NOT TRIED: {text}")
