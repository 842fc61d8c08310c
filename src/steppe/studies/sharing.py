"""Which run of a study is next, among several processes that may work in the same folder.

A run is taken by a lock of its own, `locks/<run id>`, which its process holds from the first step to the last measure;
it goes with the process. What is taken elsewhere is left for later: once it is free it is either complete, or failed
there, or was given up there and is taken here. A run that begins from another's weights waits for that one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from steppe.config import PlannedRun
from steppe.runs import Run, try_lock

Ended = Callable[[str, PlannedRun, dict[str, str]], None]
"""Called with "kept" or "failed" for a run that is not made here after all."""

LOOK_AGAIN_S = 0.3


def seed_by_seed(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """All runs of one seed before those of the next, so that what is stopped has whole seeds.

    Args:
        runs: in the order of the plan, where a run comes before those that begin from its weights; it still does.
    """
    seeds = {run.config.run_id: run.config.seed for run in runs}
    for run in reversed(runs):
        if run.needs in seeds:
            seeds[run.needs] = min(seeds[run.needs], seeds[run.config.run_id])
    return sorted(runs, key=lambda run: seeds[run.config.run_id])


class RunQueue:
    """The runs of a study that are not complete, handed out to the slots of this process."""

    def __init__(
        self,
        out: Path,
        todo: Sequence[PlannedRun],
        *,
        complete: Callable[[PlannedRun], bool],
        ended: Ended,
        stop: threading.Event,
    ) -> None:
        """Begin with these runs.

        Args:
            out: the study's folder.
            todo: the runs to make, in this order.
            complete: tells whether a run is complete now.
            ended: told about runs that ended without being made here.
            stop: set when nothing more shall be handed out.
        """
        self.out, self._complete, self._ended, self._stop = out, complete, ended, stop
        self._waiting = list(todo)
        self._here: set[str] = set()
        self._seen_elsewhere: set[str] = set()
        self._failed: set[str] = set()
        self._handles: dict[str, int] = {}
        self._lock = threading.Lock()

    def take(self) -> PlannedRun | None:
        """The next run, locked for this process; None when there is nothing more to do. May wait for others."""
        while not self._stop.is_set():
            with self._lock:
                for run in list(self._waiting):
                    if self._settle(run):
                        return run
                if not self._waiting:
                    return None
            time.sleep(LOOK_AGAIN_S)
        return None

    def release(self, run: PlannedRun, *, failed: bool = False, again: bool = False) -> None:
        """Let a run go.

        Args:
            run: one that `take` gave.
            failed: what needs it cannot be made.
            again: it could not be made now, and goes back into the queue.
        """
        name = run.config.run_id
        with self._lock:
            if failed:
                self._failed.add(name)
            if again:
                self._waiting.append(run)
                self._seen_elsewhere.add(name)
            self._here.discard(name)
            os.close(self._handles.pop(name))

    def _settle(self, run: PlannedRun) -> bool:
        """Take a run out of the queue if that can be done now; say whether it is to be made here."""
        name = run.config.run_id
        if run.needs in self._failed:
            self._failed.add(name)
            self._drop("failed", run, reason=f"it begins from the weights of {run.needs}, which failed")
            return False
        if run.needs and not self._ready(run.needs):
            return False
        handle = try_lock(self.out / "locks" / name)
        if handle is None:
            self._seen_elsewhere.add(name)
            return False
        if self._complete(run):
            self._drop("kept", run)
        elif name in self._seen_elsewhere and (reason := self._failure(name)):
            self._failed.add(name)
            self._drop("failed", run, reason=reason)
        else:
            self._waiting.remove(run)
            self._here.add(name)
            self._handles[name] = handle
            return True
        os.close(handle)
        return False

    def _drop(self, event: str, run: PlannedRun, **details: str) -> None:
        self._waiting.remove(run)
        self._ended(event, run, details)

    def _ready(self, name: str) -> bool:
        """Whether the weights of a run are there: it is finished, and nobody is at it."""
        path = self.out / name
        busy = name in self._here or any(run.config.run_id == name for run in self._waiting)
        return not busy and (path / "config.toml").exists() and Run(path).finished

    def _failure(self, name: str) -> str | None:
        """Why a run failed in another process, if it did."""
        with suppress(Exception):  # no folder yet, or a damaged one: then it is made here
            summary = Run(self.out / name).read_or_empty("summary.json")
            if summary.get("status") == "failed":
                return str(summary.get("reason") or "it failed in another process")
        return None
