"""`steppe` as a process that can be killed, without paying five seconds of imports for every kill.

The suite imports steppe once and forks: the child runs the same `main` on the same arguments in a process
of its own. So a kill falls into the work and not into an import. The parent computes nothing before it forks.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Process:
    """A command under way.

    Args:
        pid: its number.
        log: what it says.
    """

    pid: int
    log: Path
    code: int | None = None

    def alive(self) -> bool:
        """Whether it still runs."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is None

    def wait(self, seconds: float) -> bool:
        """Wait for its end so long; say whether it came."""
        until = time.monotonic() + seconds
        while self.alive():
            if time.monotonic() > until:
                return False
            time.sleep(0.002)
        return True

    def kill(self, everyone: bool = False) -> bool:
        """SIGKILL it, alone or with the processes it started; say whether it was alive."""
        if not self.alive():
            return False
        children = self.children() if everyone else []
        for pid in (self.pid, *children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        self.code = os.waitstatus_to_exitcode(status)
        return self.code == -signal.SIGKILL

    def children(self) -> list[int]:
        """The processes it started, which have groups of their own."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                if int(stat.read_text().rsplit(")", 1)[1].split()[1]) == self.pid:
                    found.append(int(stat.parent.name))
        return found

    def kill_child(self, rng: random.Random) -> bool:
        """SIGKILL one of the processes it started, if there is one."""
        children = self.children() if self.alive() else []
        if not children:
            return False
        try:
            os.kill(rng.choice(children), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    @property
    def said(self) -> str:
        """The end of what it printed."""
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""


def preload() -> None:
    """Import what a command needs, so that a fork has it."""
    import sklearn.datasets  # noqa: F401

    with contextlib.suppress(ImportError):
        import optuna  # noqa: F401


def start(arguments: Sequence[object], folder: Path, log: Path, before: Callable[[], None] | None = None) -> Process:
    """Start `steppe` on these arguments in a folder.

    Args:
        arguments: as on the command line.
        folder: where.
        log: takes what it prints.
        before: done in the new process first: limits, a wrong clock.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return Process(pid, log)
    code = 70
    try:
        os.setsid()
        os.chdir(folder)
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        import torch

        from steppe.cli.main import main

        torch.set_num_threads(1)
        if before:
            before()
        code = 0
        main([str(a) for a in arguments])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        code = 1
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def run(
    arguments: Sequence[object],
    folder: Path,
    log: Path,
    before: Callable[[], None] | None = None,
    limit_s: float = 300.0,
) -> Process:
    """Start `steppe` and wait for its end; one that does not come is killed, and its code is that of the kill."""
    process = start(arguments, folder, log, before)
    if not process.wait(limit_s):
        process.kill(everyone=True)
    return process
