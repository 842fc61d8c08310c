"""Writes that are whole or absent: a reader never sees half a file, a full disk never costs the old one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from steppe.errors import Busy, RunError
from steppe.plain_files import read_plain_text


def write_atomically(path: str | Path, content: bytes | str, *, replace: bool = True) -> bool:
    """Write `content` beside `path`, flush it to the disk, then put it in place in one step.

    Args:
        path: the file; its folder is made where there is none.
        content: all of it.
        replace: take the place of a file that is there; False leaves it alone, even one that came a moment ago.

    Returns:
        Whether `path` now holds `content`.
    """
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    temporary = None
    try:
        if path.is_symlink():
            path = _target(path)
        if path.exists() and not path.is_file():
            raise RunError(
                "this is not a plain file, so it is not replaced", where=str(path), fix="choose another name"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        if not replace:
            return _put_first(temporary, path)
        os.replace(temporary, path)
        temporary = None
        sync_folder(path.parent)
        return True
    except OSError as error:
        raise explain_os_error(error, path) from None
    finally:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _put_first(temporary: str, path: Path) -> bool:
    """Give a file its name where nothing has that name: of two processes that try, one succeeds."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        if path.exists():  # this file system has no links: all that can be done is to look first
            return False
        os.replace(temporary, path)
    sync_folder(path.parent)
    return True


MARKER = ".seen-"
"""How the names of markers begin: see `steppe.jobs.ray`."""
LEFTOVERS = ".*.tmp"
"""What a killed `write_atomically` leaves."""
BEGINNINGS = (".lock", "locks", f"{MARKER}*", LEFTOVERS)
"""What we may put into a folder before the file that says whose it is."""


def holds_others(folder: Path) -> bool:
    """Whether there is something in a folder, or in its place, that is not the beginning of something of ours.

    A process that was killed in its first moments, or works there just now, leaves locks and half-written files.
    """
    try:
        if not folder.is_dir():
            return folder.exists()
        return any(not any(path.match(pattern) for pattern in BEGINNINGS) for path in folder.iterdir())
    except OSError as error:
        raise explain_os_error(error, folder) from None


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed `write_atomically` left in a folder; only for whoever holds its lock."""
    for path in folder.glob(LEFTOVERS):
        with contextlib.suppress(OSError):
            path.unlink()


@contextlib.contextmanager
def locked(folder: Path, what: str, *, wait_s: float = 0.0) -> Iterator[None]:
    """Hold a folder for writing; the lock goes with the process, so a killed one leaves none behind.

    Args:
        folder: made if it is not there.
        what: what it is, for the error.
        wait_s: wait so long for it to be free before refusing.

    Raises:
        Busy: another process holds it.
    """
    deadline = time.monotonic() + wait_s
    while (handle := try_lock(folder / ".lock")) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if handle is None:
        fix = "wait for it, or stop it and run the same command again"
        raise Busy(f"another process is working on this {what}", where=str(folder), fix=fix)
    try:
        remove_leftovers(folder)
        yield
    finally:
        os.close(handle)


def try_lock(path: Path) -> int | None:
    """Take the lock that a file stands for. Give its handle, whose closing ends the lock, or None if it is taken."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
    except OSError as error:
        raise explain_os_error(error, path.parent) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def is_locked(folder: Path) -> bool:
    """Whether a process of this machine holds a folder. The lock is looked at, not tried: trying would hold it."""
    try:
        own = (folder / ".lock").stat().st_ino
        held = Path("/proc/locks").read_text()
    except OSError:
        return False
    words = (line.split() for line in held.splitlines())
    return any("FLOCK" in line and any(word.endswith(f":{own}") for word in line) for line in words)


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as readable JSON, atomically. NaN is refused: it is not JSON."""
    write_atomically(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Read a JSON file of a run folder, naming the file if it is damaged."""
    try:
        return json.loads(read_plain_text(path), parse_float=_finite, parse_constant=_finite)
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"the file cannot be read: {error}", where=str(path)) from None
    except (ValueError, RecursionError) as error:  # JSON's own, and a number of thousands of digits
        fix = "put the file back, or remove it: what can be computed again will be"
        raise RunError(f"this is not valid JSON: {error}", where=str(path), fix=fix) from None


def _finite(text: str) -> float:
    """Read a number; one that is none, or too large to be told from infinity, could not be written again."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is not a finite number")
    return value


def explain_os_error(error: OSError, path: str | Path) -> RunError:
    """Say what a failed write means and what to do."""
    where = str(path)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        fix = "free some space or choose another folder, then run the same command again: it goes on from here"
        return RunError("the disk is full: nothing that was there before is lost", where=where, fix=fix)
    if error.errno == errno.ENAMETOOLONG:
        return RunError("this name is too long", where=where[:80] + " …", fix="choose a shorter one")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return RunError("this may not be written", where=where, fix="choose a folder you may write to")
    if error.errno in (errno.EEXIST, errno.ENOTDIR, errno.ELOOP):
        explained = _explain_place(Path(path))
        if explained is not None:
            return explained
    return RunError(f"this cannot be written: {error.strerror or error}", where=where, fix="choose another folder")


def _explain_place(path: Path) -> RunError | None:
    """What is in the way of a folder: a link that leads nowhere, or a file, at `path` or above it."""
    for place in (path, *path.parents):
        if place.is_symlink() and not place.exists():
            target = place.parent / os.readlink(place)
            what = f"this is a link to {target}, which is not there"
            return RunError(what, where=str(place), fix="make that folder, remove the link, or choose another folder")
        if place.is_file():
            return RunError("this is a file, not a folder", where=str(place), fix="choose another folder")
    return None


def _target(link: Path) -> Path:
    """What a link leads to: that is replaced, and not the link."""
    try:
        return link.resolve(strict=False)
    except (RuntimeError, OSError):  # which of them is a matter of Python's version
        raise RunError("this link leads to itself", where=str(link), fix="remove it") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def sync_folder(folder: Path) -> None:
    """Flush a folder's list of names to the disk.

    Args:
        folder: which.
    """
    with contextlib.suppress(OSError):  # some file systems refuse to sync a folder; the file itself is safe
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
