"""Fuzzed input, in one process: every input ends in a result or a `SteppeError`, soon, and nothing there is changed.

A target sets itself up once and then takes one mutated input after the other, each from a generator of its own seeded
by (seed, target, number), so that a failure can be repeated: `python -m torture --again TARGET:NUMBER`.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import random
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from steppe.errors import SteppeError
from torture.found import Found

LIMIT_S = 30.0
Once = Callable[[random.Random], None]
Target = Callable[[Path], Once]


class TooLong(BaseException):
    """An input took longer than it may; no handler of ordinary exceptions hides it."""


def targets() -> dict[str, tuple[int, Target]]:
    """Name -> its share of the inputs, and how it is set up."""
    from torture import fuzz_data, fuzz_deploy, fuzz_files, fuzz_texts

    return {
        "run configuration, text": (18, fuzz_texts.run_texts),
        "run configuration, values": (14, fuzz_texts.run_values),
        "study file": (12, fuzz_texts.study_texts),
        "claim": (12, fuzz_texts.claims),
        "--set": (8, fuzz_texts.settings),
        "published.csv": (6, fuzz_texts.published),
        "command line": (3, fuzz_texts.command_lines),
        "run folder, read": (8, fuzz_files.run_folders),
        "run folder, gone on with": (1, fuzz_files.resumptions),
        "checkpoint": (4, fuzz_files.checkpoints),
        "weights": (4, fuzz_files.weights),
        "image": (12, fuzz_data.images),
        "npz": (6, fuzz_data.arrays),
        "study folder": (3, fuzz_files.study_folders),
        "search folder": (1, fuzz_files.search_folders),
        "picture to predict": (6, fuzz_deploy.pictures),
        "exported folder": (4, fuzz_deploy.exported_folders),
        "calibration.json": (3, fuzz_deploy.calibrations),
        "run folder, exported": (2, fuzz_deploy.exports),
    }


def torture(found: Found, inputs: int, seed: int, place: Path) -> None:
    """Feed mutated inputs to everything that reads.

    Args:
        found: takes the account.
        inputs: how many in all.
        seed: of the mutations.
        place: an empty folder to work in.
    """
    table = targets()
    whole = sum(share for share, _ in table.values())
    done, refused, longest = 0, 0, (0.0, "")
    with _quiet():
        for name, (share, target) in table.items():
            count = max(1, round(inputs * share / whole))
            folder = place / str(len(found.counts))
            folder.mkdir()
            took, ended, slowest = _feed(found, name, target, range(count), seed, folder)
            found.say(f"{name}: {count} inputs, {ended} refused, {took:.0f} s")
            found.counts[name] = f"{count} inputs, {ended} refused with an error meant for the user, the others read"
            done, refused, longest = done + count, refused + ended, max(longest, (slowest, name))
    found.counts = {
        "inputs": str(done),
        "refused with an error meant for the user": str(refused),
        "longest": f"{longest[0]:.1f} s ({longest[1]})",
        **found.counts,
    }


def again(name: str, number: int | str, seed: int, place: Path) -> None:
    """Feed one input of a target again, with its traceback.

    Args:
        name: the target's.
        number: the input's.
        seed: of the mutations.
        place: an empty folder to work in.
    """
    once = targets()[name][1](place)
    try:
        once(random.Random(f"{seed} {name} {number}"))
    except SteppeError as error:
        print(f"refused: {error}")


def _feed(found: Found, name: str, target: Target, numbers: range, seed: int, folder: Path) -> tuple[float, int, float]:
    began = time.monotonic()
    once = target(folder)
    refused, slowest = 0, 0.0
    kinds: dict[str, list[int]] = {}
    for number in numbers:
        at = time.monotonic()
        try:
            with limited(LIMIT_S):
                once(random.Random(f"{seed} {name} {number}"))
        except SteppeError as error:
            refused += 1
            try:
                str(error).encode(errors="surrogateescape")
            except UnicodeEncodeError:
                kinds.setdefault("the error cannot be printed", []).append(number)
        except TooLong:
            kinds.setdefault(f"longer than {LIMIT_S:.0f} s", []).append(number)
        except Exception as error:
            kinds.setdefault(_place_of(error), []).append(number)
        slowest = max(slowest, time.monotonic() - at)
    for kind, which in kinds.items():
        found.fail(f"{name}: {len(which)} inputs ({', '.join(map(str, which[:5]))}): {kind}")
    return time.monotonic() - began, refused, slowest


def _place_of(error: Exception) -> str:
    """What it is and where it came from: the last line of ours."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/steppe/" in f.filename] or frames
    last = ours[-1]
    return f"{type(error).__name__}: {str(error)[:160]!r} at {last.filename.rsplit('/steppe/', 1)[-1]}:{last.lineno}"


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Inside, what takes longer ends in `TooLong`.

    Args:
        seconds: so long.
    """

    def stop(number: int, frame: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what commands print; a progress line of ours is printed to the true output.

    A command line that is refused halfway through leaves its context, and what that did to the output, to the garbage
    collector: the output is put back in the end.
    """
    import logging

    logging.disable(logging.WARNING)
    os.environ["HF_HUB_OFFLINE"] = "1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            gc.collect()
            sys.stdout = sys.__stdout__
            logging.disable(logging.NOTSET)


def silent(call: Callable[[], Any]) -> None:
    """Call something whose output nobody reads."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        call()


def command(main: Callable[[list[str]], None], arguments: list[str]) -> None:
    """A command; its refusal counts as one.

    Args:
        main: the command line's.
        arguments: of it.
    """
    code = 0
    try:
        silent(lambda: main(arguments))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    if code == 2:
        raise SteppeError("refused")
    assert code == 0, f"exit code {code}"
