"""Which run of a study is next, among several processes that may work in the same folder.

A process takes a run by a lock of its own, `locks/<run id>`, and holds it from the first step to the last measure; the
lock ends with the process. Runs taken elsewhere are left for later: once free, such a run is complete, has failed
there, or was given up there and is taken here. A run that starts from another's weights waits for that one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from steppe.config import PlannedRun
from steppe.runs import Run, try_lock

Ended = Callable[[str, PlannedRun, dict[str, str]], None]
"""Called with "kept" or "failed" for a run that is not made here after all."""

BUSY_S = 1.0
"""How long to leave a run alone that another process is writing outside of a study."""


def seed_by_seed(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Sort all runs of one seed before those of the next, so that an interrupted study has complete seeds.

    Args:
        runs: in the order of the plan, where a run comes before those that start from its weights; it still does.
    """
    seeds = {run.config.run_id: run.config.seed for run in runs}
    for run in reversed(runs):
        if run.needs in seeds:
            seeds[run.needs] = min(seeds[run.needs], seeds[run.config.run_id])
    return sorted(runs, key=lambda run: seeds[run.config.run_id])


class RunQueue:
    """The runs of a study that are not complete."""

    def __init__(
        self, out: Path, todo: Sequence[PlannedRun], complete: Callable[[PlannedRun], bool], ended: Ended
    ) -> None:
        """Begin with these runs.

        Args:
            out: the study's folder.
            todo: the runs to make, in this order.
            complete: returns whether a run is complete now.
            ended: told about runs that ended without being made here.
        """
        self.out, self._complete, self._ended = out, complete, ended
        self.waiting = list(todo)
        self.running: dict[str, PlannedRun] = {}
        self._locks: dict[str, int] = {}
        self._seen_elsewhere: set[str] = set()
        self._not_before: dict[str, float] = {}
        self._failed: set[str] = set()

    def take(self) -> PlannedRun | None:
        """Lock the next run for this process and return it; None when there is none at present."""
        return next((run for run in list(self.waiting) if self._settle(run)), None)

    def release(self, name: str, *, failed: bool = False, again: bool = False) -> PlannedRun:
        """Let a run go and return it.

        Args:
            name: id of a run that `take` returned.
            failed: runs that need it cannot be made.
            again: it could not be made now, and goes back into the queue.
        """
        run = self.running.pop(name)
        if failed:
            self._failed.add(name)
        if again:
            self.waiting.append(run)
            self._seen_elsewhere.add(name)
            self._not_before[name] = time.monotonic() + BUSY_S
        os.close(self._locks.pop(name))
        return run

    def close(self) -> None:
        """Let every run go."""
        for name in list(self.running):
            self.release(name)

    def _settle(self, run: PlannedRun) -> bool:
        """Take a run out of the queue if that can be done now; return whether it is to be made here."""
        name = run.config.run_id
        if run.needs in self._failed:
            self._failed.add(name)
            self._drop("failed", run, reason=f"it begins from the weights of {run.needs}, which failed")
            return False
        if time.monotonic() < self._not_before.get(name, 0.0) or (run.needs and not self._is_ready(run.needs)):
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
            self.waiting.remove(run)
            self.running[name], self._locks[name] = run, handle
            return True
        os.close(handle)
        return False

    def _drop(self, event: str, run: PlannedRun, **details: str) -> None:
        self.waiting.remove(run)
        self._ended(event, run, details)

    def _is_ready(self, name: str) -> bool:
        """Return whether the weights of a run are there: it is finished, and not under way or waiting here."""
        path = self.out / name
        busy = name in self.running or any(run.config.run_id == name for run in self.waiting)
        return not busy and (path / "config.toml").exists() and Run(path).finished

    def _failure(self, name: str) -> str | None:
        """Return why a run failed in another process, if it did."""
        with suppress(Exception):  # no folder yet, or a damaged one: then it is made here
            summary = Run(self.out / name).read_or_empty("summary.json")
            if summary.get("status") == "failed":
                return str(summary.get("reason") or "it failed in another process")
        return None
