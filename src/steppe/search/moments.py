"""The moments of a search: when each candidate was finished, and how accurate it was."""

from __future__ import annotations

from typing import Any, Literal

Kind = Literal["probe", "fine-tuning", "soup", "trial"]


def note_moment(about: dict[str, Any], at_s: float, kind: Kind, words: str, accuracy: float, run: str) -> None:
    """Add a moment to what `fit.json` will hold; a run that is known keeps its first moment.

    Args:
        about: the content of `fit.json`; it is written with the next beat of the clock.
        at_s: seconds since the search began, in all sessions.
        kind: what was finished.
        words: its name, as a user would say it.
        accuracy: on validation images, or by cross-validation.
        run: the id of its run.
    """
    moments = about.setdefault("moments", [])
    if run not in {one["run"] for one in moments}:
        moments.append({"at_s": round(at_s, 2), "kind": kind, "words": words, "accuracy": accuracy, "run": run})
