"""Who is making a run."""

from __future__ import annotations

import os
from pathlib import Path


def lock_holders(lock: Path) -> list[int]:
    """The processes that have this file open: those that make the run."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                if any(os.readlink(handle) == str(lock) for handle in (process / "fd").iterdir()):
                    found.append(int(process.name))
            except OSError:
                continue
    return found
