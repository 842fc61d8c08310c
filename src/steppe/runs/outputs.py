"""Files that a user names with -o: an earlier output of the same kind is replaced, and nothing else is.

Each kind is known by its content: a JSON file by its first key, a page or a picture by what its format has for the
name of the program, a CSV file by its columns.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from steppe.errors import RunError
from steppe.plain_files import open_plain
from steppe.runs.files import write_atomically

LOOKED_AT = 8192
"""So many bytes at the beginning of a file, and as many at its end, are searched."""


@dataclass(frozen=True)
class Output:
    """A kind of file that a command writes.

    Args:
        name: what it is, for the error: "a page", "a comparison".
        pattern: what its beginning or its end matches.
    """

    name: str
    pattern: re.Pattern[bytes]

    def check(self, path: Path, *, force: bool = False) -> None:
        """Refuse a place where there is something that is not an earlier output of this kind.

        Args:
            path: where it is to be written.
            force: replace any plain file.

        Raises:
            RunError: there is a folder, a pipe or a device, or a file of another kind without `force`.
        """
        fix = "choose another name with -o"
        try:
            if not path.exists():
                return
            if not path.is_file():
                what = f"this is not a plain file, so {self.name} cannot be written there"
                raise RunError(what, where=str(path), fix=fix)
            if force:
                return
            with open_plain(path) as file:
                held = file.read(LOOKED_AT)
                file.seek(max(LOOKED_AT, os.fstat(file.fileno()).st_size - LOOKED_AT))
                held += b"\n" + file.read(LOOKED_AT)
        except OSError as error:
            what = f"{self.name} cannot be written there: {error.strerror}"
            raise RunError(what, where=str(path)[:200], fix=fix) from None
        if held.strip() and not self.pattern.search(held):
            what = f"this file is there already, and is not {self.name} that steppe wrote"
            raise RunError(what, where=str(path), fix=f"{fix}, or say --force to replace the file")

    def write(self, path: Path, content: bytes | str, *, force: bool = False) -> None:
        """Write it, in the place of an earlier output of this kind alone; see `check`.

        Args:
            path: where.
            content: all of it.
            force: replace any plain file.
        """
        self.check(path, force=force)
        write_atomically(path, content)


def json_of(name: str, program: str) -> Output:
    """A JSON object whose first key, `made_by`, names the program.

    Args:
        name: what it is, for the error.
        program: such as "steppe compare".
    """
    return Output(name, re.compile(rb'\A\s*\{\s*"made_by": "' + re.escape(program.encode()) + b'"'))
