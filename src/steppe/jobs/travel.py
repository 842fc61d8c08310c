"""A run folder that travels: the files that changed, as bytes."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from steppe.errors import RunError, SteppeError
from steppe.plain_files import open_plain
from steppe.runs import try_lock, write_atomically

LEAST_S = 5.0
"""A run under way sends its files at most so often."""
SCRATCH = "steppe-away-"
"""How the names of temporary folders begin."""
_ORDER = (
    *("config.toml", "env.json", "data.json", "metrics.jsonl"),
    *("weights.safetensors", "checkpoint.safetensors", "summary.json"),
)
"""The order in which files are written: each relies on those before it. Others follow."""


@dataclass(frozen=True)
class Parcel:
    """Files of a run folder: the content of those that changed, and the names of those that are gone."""

    files: dict[str, bytes] = field(default_factory=dict)
    gone: tuple[str, ...] = ()

    def unpack(self, folder: Path) -> None:
        """Write the files, each whole or not at all, so that a run can be resumed after a kill at any moment.

        Raises:
            RunError: a file cannot be written, or its name leads out of the folder.
        """
        order = {name: number for number, name in enumerate(_ORDER)}
        for name in sorted(self.files, key=lambda name: order.get(name, len(order))):
            write_atomically(_place(folder, name), self.files[name])
        for name in self.gone:
            _place(folder, name).unlink(missing_ok=True)


class Packer:
    """Pack what has changed in a run folder since the last time."""

    def __init__(self, folder: Path, only: Collection[str] = ()) -> None:
        """Begin with a folder of which nothing was packed.

        Args:
            folder: of the run.
            only: the files that are wanted; by default all.
        """
        self.folder, self.only = folder, only
        self.known: dict[str, tuple[int, int, int]] = {}
        self.next_at = time.monotonic() + LEAST_S

    def pack(self) -> Parcel:
        """Read the files that changed."""
        now, files = self.stamps(), {}
        for name in (name for name, stamp in now.items() if self.known.get(name) != stamp):
            with suppress(FileNotFoundError), open_plain(self.folder / name) as file:  # a tracker may have removed it
                files[name] = file.read()
        gone = tuple(name for name in self.known if name not in now)
        self.known, self.next_at = now, time.monotonic() + LEAST_S
        return Parcel(files, gone)

    def stamps(self) -> dict[str, tuple[int, int, int]]:
        """Return what distinguishes each file from its earlier states: place on the disk, time and size."""
        found = {}
        for path in sorted(self.folder.rglob("*")):
            name = path.relative_to(self.folder).as_posix()
            private = path.name == ".lock" or path.match(".*.tmp") or (self.only and name not in self.only)
            with suppress(OSError):  # a tracker has removed it
                if not private and path.is_file():
                    about = path.stat()
                    found[name] = (about.st_ino, about.st_mtime_ns, about.st_size)
        return found


def _place(folder: Path, name: str) -> Path:
    place = folder / name
    if ".." in PurePosixPath(name).parts or not place.parent.resolve().is_relative_to(folder.resolve()):
        raise RunError(f"the file {name[:80]!r} lies outside the run's folder", where=str(folder))
    return place


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a temporary folder; remove those that killed processes left on this machine."""
    for left in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*/.lock"):
        with suppress(OSError, SteppeError):
            if left.stat().st_uid == os.geteuid() and (handle := try_lock(left)) is not None:
                shutil.rmtree(left.parent, ignore_errors=True)
                os.close(handle)
    folder, handle = Path(), None
    while handle is None or not folder.exists():  # another process may have seen it before it was locked
        folder = Path(tempfile.mkdtemp(prefix=SCRATCH))
        handle = try_lock(folder / ".lock")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)
