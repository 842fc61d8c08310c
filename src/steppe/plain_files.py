"""Reading what may have been put into a folder by anyone: plain files of a sane size, and nothing else.

A named pipe would be waited for without end, and a link to /dev/zero would be read without end. A file is opened
without waiting, and looked at through its handle: nothing can take its place between the look and the reading.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

LARGEST = 256 * 2**20
"""So many bytes of a text or a JSON file are read at the most."""


class NotPlainError(OSError):
    """The name leads to something that is not a plain file, or to one that is too large."""

    def __init__(self, reason: str) -> None:
        """Keep the reason where other errors of the system have theirs."""
        super().__init__(errno.EINVAL, reason)

    def __str__(self) -> str:
        """Give the reason alone."""
        return str(self.strerror)


def open_plain(path: str | Path) -> BufferedReader:
    """Open a plain file for reading, and wait for nothing.

    Args:
        path: its name; a link is followed.

    Raises:
        NotPlainError: it is a named pipe, a socket or a device.
        OSError: it is not there, is a folder, or may not be read.
    """
    file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115 - it is handed to the caller
    mode = os.fstat(file.fileno()).st_mode
    if not stat.S_ISREG(mode):
        file.close()
        raise NotPlainError(f"this is not a plain file but {_kind(mode)}")
    return file


def check_plain(path: str | Path) -> None:
    """Refuse what is not a plain file, for readers that take a name and no handle.

    Args:
        path: its name.

    Raises:
        NotPlainError: it is a named pipe, a socket or a device.
        OSError: it is not there, is a folder, or may not be read.
    """
    open_plain(path).close()


def read_plain(path: str | Path, largest: int = LARGEST) -> bytes:
    """Read the whole of a plain file.

    Args:
        path: its name.
        largest: a file of more bytes is refused.

    Raises:
        NotPlainError: it is not a plain file, or too large.
        OSError: it is not there, or cannot be read.
    """
    with open_plain(path) as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise NotPlainError(f"this file is too large: at most {largest / 2**20:g} MiB of it would be read")
    return content


def read_plain_text(path: str | Path, largest: int = LARGEST) -> str:
    """Read the whole of a plain file as UTF-8; see `read_plain`.

    Args:
        path: its name.
        largest: a file of more bytes is refused.
    """
    return read_plain(path, largest).decode("utf-8")


def _open_without_waiting(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:  # what the system says of sockets
            raise NotPlainError("this is not a plain file but a socket or a device") from None
        raise


def _kind(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a named pipe"
    return "a device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else "something else"
