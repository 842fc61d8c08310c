"""The folder of a study, served to machines that do not see it: runs are locked, handed out and taken in.

Whoever asks is on another machine, and may die at any moment. What it brings is laid aside until all of it is there,
then put in its place file by file, in the order in which a run writes them; so the folder can be gone on with after
every single step. What comes is bytes for files with checked names: nothing of it is run, and nothing is written
outside of its run's folder.

This knows nothing of how questions and answers travel; see `steppe.studies.away` for who asks.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from steppe.errors import RunError
from steppe.plain_files import open_plain, read_plain_text
from steppe.runs.files import MARKER, explain_os_error, remove_leftovers, sync_folder, try_lock

CHUNK = 16 * 2**20
"""How many bytes of a file travel at a time."""

PATIENCE = 12
"""After so many looks without a beat whoever took a run is held for dead."""

_ORDER = (
    "config.toml",
    "env.json",
    "data.json",
    "metrics.jsonl",
    "weights.safetensors",
    "checkpoint.safetensors",
    "summary.json",
)
"""The order in which files are put in place: none says more than those before it bear out. Others follow."""


class Marker(NamedTuple):
    """A file in a folder, by which another machine can tell whether it sees the same folder."""

    path: str
    token: str


@contextmanager
def left_marker(folder: Path) -> Iterator[Marker]:
    """Leave a marker in a folder for the time being; those of killed processes are removed.

    Args:
        folder: one that is there.
    """
    for stale in folder.glob(f"{MARKER}*"):
        if (handle := try_lock(stale)) is not None:
            stale.unlink(missing_ok=True)
            os.close(handle)
    marker = Marker(str(folder.absolute() / f"{MARKER}{secrets.token_hex(8)}"), secrets.token_hex(16))
    handle = try_lock(Path(marker.path))
    try:
        Path(marker.path).write_text(marker.token)
        yield marker
    finally:
        with suppress(OSError):
            os.unlink(marker.path)
        if handle is not None:
            os.close(handle)


def sees(marker: Marker) -> bool:
    """Whether this machine sees the folder that a marker was left in.

    Args:
        marker: from `left_marker`.
    """
    try:
        return read_plain_text(marker.path) == marker.token
    except (OSError, UnicodeDecodeError):
        return False


@dataclass
class _Taken:
    """A run that somebody elsewhere works on, the locks that are held meanwhile, and how long it has been silent."""

    session: str = ""
    locks: list[int] = field(default_factory=list)
    has_folder: bool = False
    silent: int = 0

    def lock(self, path: Path) -> bool:
        """Take one more lock, if it is free."""
        if (handle := try_lock(path)) is None:
            return False
        self.locks.append(handle)
        return True


class Home:
    """Serves the runs of a study's folder. One question at a time."""

    def __init__(self, folder: str, marker: Marker, runs: Collection[str]) -> None:
        """Serve a folder.

        Args:
            folder: the study's.
            marker: left in it; nothing is served where it is not seen.
            runs: the names of the runs that may be asked for.
        """
        self.folder, self.marker, self.runs = Path(folder), marker, frozenset(runs)
        self._taken: dict[str, _Taken] = {}

    def take(self, run: str) -> str | None:
        """Lock a run for whoever asks: gives the name of this session, or None while somebody else is at it.

        A run that was taken from here before is taken over: its worker died, or is held for dead and will be refused.
        """
        self._check_run(run)
        if not sees(Marker(*self.marker)):
            mend = "start the study on a machine of the cluster that sees it"
            what = "results cannot be brought home: the machine they should go to does not see the study's folder"
            raise RunError(what, where=str(self.folder), mend=mend)
        taken = self._taken.get(run) or _Taken()
        if not taken.locks and not taken.lock(self.folder / "locks" / run):
            return None
        self._taken[run] = taken
        if (self.folder / run).is_dir() and not self._hold_folder(run):
            self._let_go(run)
            return None
        taken.session, taken.silent = secrets.token_hex(8), 0
        return taken.session

    def beat(self, run: str, session: str) -> None:
        """Whoever took a run is alive."""
        if taken := self._of(run, session):
            taken.silent = 0

    def look(self) -> None:
        """Let go what was taken by those who have been silent for too many looks.

        Looks are counted, and not seconds, so that nobody is held for dead for what waits here to be heard.
        """
        for run, taken in list(self._taken.items()):
            taken.silent += 1
            if taken.silent > PATIENCE:
                self._let_go(run)

    def release(self, run: str, session: str) -> None:
        """Let a run go."""
        if self._of(run, session):
            self._let_go(run)

    def files(self, run: str) -> dict[str, int]:
        """What a run's folder holds: the names and sizes of its files."""
        self._check_run(run)
        return {name: about.st_size for name, about in files_of(self.folder / run, links=True).items()}

    def read(self, run: str, name: str, start: int) -> bytes:
        """A piece of a file, `CHUNK` bytes at the most."""
        self._check_run(run)
        path = self.folder / run / checked_name(name)
        try:
            with open_plain(path) as file:
                file.seek(start)
                return file.read(CHUNK)
        except OSError as error:
            raise RunError(f"the file cannot be read: {error.strerror}", where=str(path)) from None

    def add(self, run: str, session: str, name: str, start: int, piece: bytes) -> bool:
        """Lay a piece of a file aside. False: the session is over, somebody else may be at the run."""
        if not self._of(run, session):
            return False
        aside = self._aside(run, name)
        try:
            aside.parent.mkdir(parents=True, exist_ok=True)
            if not self._hold_folder(run):
                return False
            with open(aside, "r+b" if start else "wb") as file:
                file.seek(start)
                file.write(piece)
        except OSError as error:
            raise explain_os_error(error, aside) from None
        return True

    def put(self, run: str, session: str, sizes: Mapping[str, int], gone: Sequence[str]) -> bool:
        """Put what was laid aside in its place. False: the session is over, and nothing was changed.

        Args:
            run: its name.
            session: from `take`.
            sizes: of the files that were added.
            gone: files that are there no more.
        """
        if not self._of(run, session):
            return False
        moves = [(self._aside(run, name), self._place(run, name), sizes[name]) for name in sorted(sizes, key=_order)]
        places = [self._place(run, name) for name in gone]
        try:
            for aside, place, size in moves:
                if not aside.exists() and place.exists():  # asked for the second time
                    aside = place
                if aside.stat().st_size != size:
                    raise RunError("a file did not come whole", where=str(place))
                with open(aside, "rb") as file:
                    os.fsync(file.fileno())
            for aside, place, _ in moves:
                place.parent.mkdir(parents=True, exist_ok=True)
                if aside.exists():
                    os.replace(aside, place)
                sync_folder(place.parent)
            for place in places:
                place.unlink(missing_ok=True)
        except OSError as error:
            raise explain_os_error(error, self.folder / run) from None
        return True

    def _check_run(self, run: str) -> None:
        if run not in self.runs:
            raise RunError(f"the study has no run {run[:80]!r}", where=str(self.folder))

    def _of(self, run: str, session: str) -> _Taken | None:
        taken = self._taken.get(run)
        return taken if taken and taken.session == session else None

    def _hold_folder(self, run: str) -> bool:
        """Hold the run's folder for writing, too, once there is one."""
        taken = self._taken[run]
        if not taken.has_folder:
            taken.has_folder = taken.lock(self.folder / run / ".lock")
            if taken.has_folder:
                remove_leftovers(self.folder / run)
        return taken.has_folder

    def _let_go(self, run: str) -> None:
        for handle in self._taken.pop(run).locks:
            os.close(handle)

    def _aside(self, run: str, name: str) -> Path:
        """Where a file waits; what is left there goes when the folder is held the next time."""
        digest = hashlib.sha256(checked_name(name).encode()).hexdigest()
        return self.folder / run / f".{digest[:16]}.tmp"

    def _place(self, run: str, name: str) -> Path:
        """Where a file goes: below the run's folder, through no link that leads out of it."""
        folder = self.folder / run
        place = folder / checked_name(name)
        if not place.parent.resolve().is_relative_to(folder.resolve()):
            raise RunError(f"the file {name[:80]!r} would go out of the run's folder", where=str(folder))
        return place


def checked_name(name: str) -> str:
    """Give back a file's name, relative to its run's folder; refuse one that leads elsewhere, or that a run keeps.

    Args:
        name: its parts are divided by slashes.

    Raises:
        RunError: it is not such a name.
    """
    parts = name.split("/")
    if not name.isprintable() or any(part in ("", ".", "..") for part in parts) or _is_private(parts[-1]):
        raise RunError(f"{name[:80]!r} is not the name of a file in a run's folder")
    return name


def files_of(folder: Path, *, links: bool = False) -> dict[str, os.stat_result]:
    """The files of a run's folder at any depth, by name; none where there is no folder.

    Args:
        folder: the run's.
        links: take files that are links, too.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        with suppress(OSError):  # a tracker has removed it
            if path.is_file() and (links or not path.is_symlink()) and not _is_private(path.name):
                found[path.relative_to(folder).as_posix()] = path.stat()
    return found


def _is_private(name: str) -> bool:
    """Whether a file is a lock, or one that is being written."""
    return name == ".lock" or (name.startswith(".") and name.endswith(".tmp"))


def _order(name: str) -> tuple[int, str]:
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER)), name
