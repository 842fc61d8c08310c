"""What a search tells while it goes on."""

from __future__ import annotations


class SearchObserver:
    """What a search tells while it goes on. Every method may be overridden; none has to be."""

    def say(self, text: str) -> None:
        """Take a line worth keeping: a result, or what the user should know."""

    def status(self, elapsed_s: float, best: str, now: str) -> None:
        """Take the state, often: seconds so far, the best classifier, and what is being done."""
