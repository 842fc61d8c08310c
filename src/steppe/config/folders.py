"""Where things lie that several parts of steppe share: data sets, and what can be made or fetched again."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_ROOT: ContextVar[Path | None] = ContextVar("root", default=None)


def data_root(root: str | Path | None = None) -> Path:
    """The folder data sets live in: the argument, else that of the run being made, $STEPPE_DATA, or `data` here."""
    return Path(root or _ROOT.get() or os.environ.get("STEPPE_DATA") or "data")


@contextmanager
def use_data_root(root: str | Path | None) -> Iterator[None]:
    """Inside, `data_root` is this folder by default, for a run whose caller names one; None changes nothing."""
    token = _ROOT.set(Path(root) if root else _ROOT.get())
    try:
        yield
    finally:
        _ROOT.reset(token)


def search_folder(data: str) -> Path:
    """Where a search for the best model of some data is kept by default: `runs/fit-<data>`."""
    return Path("runs") / f"fit-{re.sub(r'[^A-Za-z0-9_.]+', '_', Path(data).name).strip('_.') or 'data'}"


def cache_folder(folder: str | Path | None = None) -> Path:
    """Where caches lie: the argument, else $STEPPE_CACHE, else `steppe` in $XDG_CACHE_HOME or `~/.cache`."""
    if chosen := folder or os.environ.get("STEPPE_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "steppe"
