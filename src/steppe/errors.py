"""Errors meant for the person at the keyboard: what is wrong, where, and how to fix it.

The command line prints these on one screen, without a traceback, and exits with code 2. Broken invariants of
our own stay plain `assert`s and other exceptions, with their traceback: those are bugs, not user errors.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SteppeError(Exception):
    """Something the user can fix.

    Args:
        what: what is wrong, one sentence.
        where: the file, key, image or step it was found in.
        fix: what to do about it.
    """

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        """Keep the three parts apart, so that each front end can lay them out its own way."""
        self.what, self.where, self.fix = what, where, fix
        super().__init__(what, where, fix)

    def __str__(self) -> str:
        """Give the parts as up to three lines of plain text."""
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.fix:
            lines.append(f"  fix:   {self.fix}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by parts: an error crosses process borders when a study runs in workers."""
        return _rebuild, (type(self), self.what, self.where, self.fix)


def _rebuild(kind: type[SteppeError], what: str, where: str | None, fix: str | None) -> SteppeError:
    return kind(what, where=where, fix=fix)


class ConfigError(SteppeError):
    """A key, value or file of a run or study configuration is not right."""


class DataError(SteppeError):
    """A data set is missing, damaged, or not usable for classification."""


class RunError(SteppeError):
    """A run folder is in use, belongs to another configuration, or cannot be read or written."""


class Busy(RunError):  # noqa: N818 - a state of the folder
    """Another process is writing there: wait for it, or do something else meanwhile."""


class TrainingError(SteppeError):
    """Training itself could not go on: the loss is no longer finite, or memory ran out."""


class MeasureError(SteppeError):
    """A measure means nothing for this model or these data, or cannot be made of them here."""


_SHORTAGES = (
    "out of memory",  # CUDA, MPS, HIP
    "allocate memory",  # torch's CPU allocator, and the system's ENOMEM
    "ALLOC_FAILED",  # cuBLAS, cuDNN, cuSOLVER: CUBLAS_STATUS_ALLOC_FAILED
    "not enough memory",  # torch's CPU allocator on Windows
    "bad_alloc",  # C++
    "could not create a primitive",  # oneDNN, whose words for it name no memory
    "could not create a memory",
)


def ran_out_of_memory(error: BaseException) -> bool:
    """Say whether an exception is memory running out, on any device.

    Torch's own kind is known by its name, and what its libraries raise by their words: nothing is imported for it.
    """
    if isinstance(error, MemoryError) or any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError | OSError) and any(words in str(error) for words in _SHORTAGES)


def nearest(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Return the names in `known` that look most like `name`, best first."""
    by_lower = {k.lower(): k for k in known}
    return [by_lower[k] for k in difflib.get_close_matches(name.lower(), list(by_lower), n=limit, cutoff=0.6)]


def unknown_name(
    kind: str, name: str, known: Iterable[str], *, where: str | None = None, see: str | None = None
) -> ConfigError:
    """Build the error for a name that is not known, with the nearest right ones.

    Args:
        kind: what sort of thing was named, such as "model".
        name: the name as given.
        known: every right name.
        where: where the name stood.
        see: a command that lists the right names.
    """
    known = sorted(known)
    close = nearest(name, known)
    if close:
        fix = f"did you mean {' or '.join(repr(c) for c in close)}?"
    elif len(known) <= 20:
        fix = f"choose one of: {', '.join(repr(k) if ',' in k else k for k in known)}"
    else:
        fix = ""
    if see:
        fix += "" if not fix or fix.endswith("?") else "."
        fix = f"{fix} `{see}` lists them all.".strip()
    return ConfigError(f"unknown {kind} {name!r}", where=where, fix=fix or None)


class Interrupted(SteppeError):  # noqa: N818 - it is no error
    """The user asked to stop. Nothing is lost; the command line exits with code 130, as shells expect."""
