"""The trials of a search as tasks on a Ray cluster.

The search's folder must be one path for all machines, since trials are compared in its journal while they run. A
machine that does not see it ends the search with an error; what is done is kept.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from steppe import data
from steppe.config import DataConfig
from steppe.data import Dataset, Keeping
from steppe.errors import ConfigError, Interrupted
from steppe.runs.home import Marker, left_marker, sees
from steppe.studies.executor import Job, reporter
from steppe.studies.journal import join_journal
from steppe.studies.ray import (
    LOOK_AGAIN_S,
    RETRIES,
    STOPPING_S,
    count_gpus,
    import_ray,
    join_cluster,
)
from steppe.studies.stopping import take_stop_requests
from steppe.studies.trial import Outcome, run_trial
from steppe.train import available_cores


@dataclass(frozen=True)
class TrialPlace:
    """What every task needs to know."""

    folder: Path
    data: DataConfig
    data_root: str | None
    keeping: Keeping | None
    device: str
    threads: int
    cwd: str
    marker: Marker


@dataclass(frozen=True)
class Unseen:
    """What a machine answers that does not see the search's folder."""

    host: str


class RayTrials:
    """Runs trials on a cluster, as many at a time as there is room: a GPU each where there are any, else a core."""

    def __init__(
        self,
        folder: Path,
        *,
        address: str | None,
        data_config: DataConfig,
        data_root: str | Path | None,
        keeping: Keeping | None,
        device: str | None,
    ) -> None:
        """Join the cluster, or make one on this machine; `close` leaves it."""
        self.ray = import_ray()
        self._open = ExitStack()
        self._open.enter_context(join_cluster(self.ray, address, cpus=available_cores()))
        gpus = count_gpus(self.ray, device)
        there = self.ray.cluster_resources()
        self.slots = max(1, int(there.get("GPU", 0) if gpus else there.get("CPU", 1)))
        root = str(Path(data_root).absolute()) if data_root else None
        where = "cuda" if gpus else "cpu"
        marker = self._open.enter_context(left_marker(folder))
        self.place = TrialPlace(folder.absolute(), data_config, root, keeping, where, 1, os.getcwd(), marker)
        self._task = self.ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(make_trial)
        self._running: dict[Any, tuple[Job, float]] = {}
        self._stop = threading.Event()
        self._open.enter_context(take_stop_requests(self._stop))

    def close(self) -> None:
        """Leave the cluster."""
        self._open.close()

    def submit(self, job: Job) -> None:
        """Send a job."""
        self._running[self._task.remote(job, self.place)] = (job, time.monotonic())

    def wait(self, beat: Callable[[], None]) -> list[tuple[Job, Outcome]]:
        """Wait until a task is done; one that outstays its time is asked to stop, and counts as late."""
        while True:
            beat()
            done, _ = self.ray.wait(list(self._running), timeout=LOOK_AGAIN_S)
            if self._stop.is_set():
                self._cancel_all()
                raise Interrupted("stopped")
            for task, (job, began) in self._running.items():
                if time.monotonic() - began > job.allowed_s + 1:
                    self.ray.cancel(task, force=False)
            if done:
                return [self._end(task) for task in done]

    def _end(self, task: Any) -> tuple[Job, Outcome]:
        job, began = self._running.pop(task)
        wall_s = time.monotonic() - began
        try:
            outcome: Outcome | Unseen = self.ray.get(task)
        except self.ray.exceptions.TaskCancelledError:
            return job, Outcome("late", None, wall_s)
        except self.ray.exceptions.RayError as error:
            return job, Outcome("failed", None, wall_s, reason=str(error).strip().split("\n")[0])
        if isinstance(outcome, Unseen):
            self._cancel_all()
            what = f"{outcome.host}, a machine of the cluster, does not see the search's folder"
            mend = "put it where all machines see it under the same path; `steppe study run --on ray` can do without"
            raise ConfigError(what, where=str(self.place.folder), mend=mend)
        if outcome.factor is None:
            return job, outcome
        return job, replace(outcome, wall_s=wall_s, fixed_s=outcome.fixed_s + max(0.0, wall_s - outcome.wall_s))

    def _cancel_all(self) -> None:
        if not self._running:
            return
        for task in self._running:
            self.ray.cancel(task, force=False)
        self.ray.wait(list(self._running), num_returns=len(self._running), timeout=STOPPING_S)


def make_trial(job: Job, place: TrialPlace) -> Outcome | Unseen:
    """Run one trial, in a worker of the cluster."""
    began = time.monotonic()
    if not sees(Marker(*place.marker)):
        return Unseen(socket.gethostname())
    with suppress(OSError):
        os.chdir(place.cwd)
    torch.set_num_threads(place.threads)
    try:
        return run_trial(
            job.config,
            _load_once(place.data, place.data_root, place.keeping),
            place.folder / job.config.run_id,
            allowed_s=job.allowed_s,
            device=place.device,
            captured=job.captured,
            keeping=place.keeping,
            report=reporter(join_journal(place.folder), job) if job.trial is not None else None,
        )
    except (Interrupted, KeyboardInterrupt):
        return Outcome("late", None, time.monotonic() - began)


@lru_cache(maxsize=1)
def _load_once(config: DataConfig, root: str | None, keeping: Keeping | None) -> Dataset:
    return data.load(config, root, keeping=keeping)
