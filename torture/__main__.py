"""`python -m torture`: run the suite, print its counts, and write dev/reliability.md."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from torture.found import Found

PARTS = ("kills", "hostile", "place", "fuzz")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts; give the exit code.

    Args:
        arguments: of the command line.
    """
    parser = argparse.ArgumentParser(
        prog="python -m torture", description="Kills, fuzzed input, hostile files, bad places."
    )
    parser.add_argument("--kills", type=int, default=100, help="SIGKILLs that have to hit")
    parser.add_argument("--killed", default="", help="kill only commands whose names begin so, such as fit")
    parser.add_argument("--fuzz", type=int, default=12_000, help="fuzzed inputs")
    parser.add_argument("--files", type=int, default=100_000, help="small files in the hostile folder")
    parser.add_argument("--seed", type=int, default=0, help="of every random choice")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, default=None, help="where the account is written")
    parser.add_argument("--again", metavar="TARGET:NUMBER", help="feed one fuzzed input again, with its traceback")
    asked = parser.parse_args(arguments)
    if asked.again:
        from torture.fuzz import again

        with tempfile.TemporaryDirectory() as folder:
            target, _, number = asked.again.rpartition(":")
            again(target, number, asked.seed, Path(folder))
        return 0
    wanted = asked.only.split(",")
    if unknown := [name for name in wanted if name not in PARTS]:
        parser.error(f"unknown part {unknown[0]!r}: choose from {', '.join(PARTS)}")
    parts: dict[str, Callable[[Found, Path], None]] = {
        "kills": lambda found, place: _kills(found, asked.kills, asked.seed, place, asked.killed),
        "hostile": lambda found, place: _hostile(found, asked.files, place),
        "place": lambda found, place: _place(found, asked.seed, place),
        "fuzz": lambda found, place: _fuzz(found, asked.fuzz, asked.seed, place),
    }
    accounts = []
    with tempfile.TemporaryDirectory(prefix="steppe-torture-", ignore_cleanup_errors=True) as folder:
        for name in PARTS:  # in this order: what forks comes before what computes
            if name in wanted:
                accounts.append(_do(name, parts[name], Path(folder) / name))
    from torture.account import write_account

    print(write_account(accounts, asked.out, arguments if arguments is not None else sys.argv[1:]))
    failures = [f"{found.part}: {text}" for found in accounts for text in found.failures]
    for text in failures:
        print(f"FAILED {text}")
    return 1 if failures else 0


def _do(name: str, part: Callable[[Found, Path], None], place: Path) -> Found:
    found = Found(name)
    place.mkdir()
    found.say("begins")
    began = time.monotonic()
    try:
        part(found, place)
    except Exception as error:  # the other parts are still run, and the account is written
        traceback.print_exc()
        found.fail(f"the part broke off: {type(error).__name__}: {error}")
    found.took_s = time.monotonic() - began
    found.say(f"took {found.took_s:.0f} s, {len(found.failures)} failures")
    return found


def _kills(found: Found, kills: int, seed: int, place: Path, killed: str) -> None:
    from torture.kills import torture

    torture(found, kills, seed, place, killed)


def _hostile(found: Found, files: int, place: Path) -> None:
    from torture.hostile import torture

    torture(found, files, place)


def _place(found: Found, seed: int, place: Path) -> None:
    from torture.place import torture

    torture(found, seed, place)


def _fuzz(found: Found, inputs: int, seed: int, place: Path) -> None:
    from torture.fuzz import torture

    torture(found, inputs, seed, place)


if __name__ == "__main__":
    sys.exit(main())
