"""Where things lie that several parts of steppe share: data sets, and what can be made or fetched again."""

from __future__ import annotations

import os
from pathlib import Path


def data_root(root: str | Path | None = None) -> Path:
    """The folder data sets live in: the argument, else $STEPPE_DATA, else `data` here."""
    return Path(root or os.environ.get("STEPPE_DATA") or "data")


def cache_folder(folder: str | Path | None = None) -> Path:
    """Where caches lie: the argument, else $STEPPE_CACHE, else `steppe` in $XDG_CACHE_HOME or `~/.cache`."""
    if chosen := folder or os.environ.get("STEPPE_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "steppe"
