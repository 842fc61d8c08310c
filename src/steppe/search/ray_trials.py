"""The trials of a search on a Ray cluster.

A worker is an actor that makes one trial after the other. It is given its first one when it is ready, with everything
imported and the images read: so what Ray takes to start a process is no part of what any trial costs, and the forecast
of the next one needs no guess whether its worker will be a new one.

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
from pathlib import Path
from typing import Any

import torch

from steppe import data
from steppe.config import DataConfig
from steppe.data import Dataset, Keeping
from steppe.errors import ConfigError, Interrupted, RunError, SteppeError
from steppe.runs.home import Marker, left_marker, sees
from steppe.search.executor import Job, reporter
from steppe.search.journal import import_optuna, join_journal
from steppe.search.trial import Outcome, State, run_trial
from steppe.studies.ray import (
    LOOK_AGAIN_S,
    RETRIES,
    STOPPING_S,
    count_gpus,
    import_ray,
    join_cluster,
)
from steppe.studies.stopping import take_stop_requests
from steppe.train import available_cores

OVERDUE_S = 10.0
"""A worker that has not ended its trial so long after its time is lost."""


@dataclass(frozen=True)
class TrialPlace:
    """What every worker needs to know."""

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


class TrialWorker:
    """A process of the cluster; an actor with two threads, so that it can be asked to stop."""

    def __init__(self, place: TrialPlace) -> None:
        self.place = place
        self.dataset: Dataset | None = None
        self.job: Job | None = None
        self.stopping = threading.Event()

    def get_ready(self) -> Unseen | None:
        """Read the images, unless they are there; say so if this machine does not see the search's folder."""
        place = self.place
        if not sees(Marker(*place.marker)):
            return Unseen(socket.gethostname())
        with suppress(OSError):
            os.chdir(place.cwd)
        torch.set_num_threads(place.threads)  # of this thread of Python
        if self.dataset is None:
            import_optuna()
            self.dataset = data.load(place.data, place.data_root, keeping=place.keeping)
        return None

    def make(self, job: Job) -> Outcome | Unseen:
        """Run one trial."""
        began = time.monotonic()
        self.job, self.stopping = job, threading.Event()
        if unseen := self.get_ready():  # again: Ray may have begun this process in place of one that died
            return unseen
        assert self.dataset is not None
        try:
            return run_trial(
                job.config,
                self.dataset,
                self.place.folder / job.config.run_id,
                allowed_s=job.allowed_s,
                device=self.place.device,
                captured=job.captured,
                keeping=self.place.keeping,
                report=reporter(join_journal(self.place.folder), job) if job.trial is not None else None,
                stop=self.stopping,
            )
        except Interrupted:
            return Outcome("late", None, time.monotonic() - began)

    def stop(self, job: Job) -> None:
        """Ask for a trial to be kept as it is, if it is still under way."""
        if self.job == job:
            self.stopping.set()


@dataclass(frozen=True)
class _Running:
    job: Job
    worker: Any
    began: float


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
        self._count = max(1, int(there.get("GPU", 0) if gpus else there.get("CPU", 1)))
        root = str(Path(data_root).absolute()) if data_root else None
        where = "cuda" if gpus else "cpu"
        marker = self._open.enter_context(left_marker(folder))
        self.place = TrialPlace(folder.absolute(), data_config, root, keeping, where, 1, os.getcwd(), marker)
        lives = {"max_restarts": RETRIES, "max_task_retries": RETRIES}
        self._kind = self.ray.remote(num_cpus=1, num_gpus=gpus, max_concurrency=2, **lives)(TrialWorker)
        self._starting: dict[Any, Any] = {}
        self._idle: list[Any] = []
        self._running: dict[Any, _Running] = {}
        self._begun = False
        self._trouble: SteppeError | None = None
        self._stop = threading.Event()
        self._open.enter_context(take_stop_requests(self._stop))

    def close(self) -> None:
        """Leave the cluster."""
        self._idle += [running.worker for running in self._running.values()]
        self._dismiss()
        self._open.close()

    def has_room(self, beat: Callable[[], None], allowed_s: float) -> bool:
        """Whether a worker is ready; while none is at work, wait for one.

        Raises:
            Interrupted: Ctrl-C or SIGTERM.
            SteppeError: what keeps every worker from getting ready.
        """
        if not self._begun:  # not before: the models are timed by now, which would have been disturbed
            self._begun = True
            workers = [self._kind.remote(self.place) for _ in range(self._count)]
            self._starting = {worker.get_ready.remote(): worker for worker in workers}
        until = time.monotonic() + allowed_s
        while True:
            waiting = not self._idle and not self._running
            ready, _ = (
                self.ray.wait(list(self._starting), timeout=LOOK_AGAIN_S if waiting else 0)
                if self._starting
                else ([], [])
            )
            self._welcome(ready)
            if self._idle or self._running:
                return bool(self._idle)
            if self._trouble and not self._starting:
                raise self._trouble
            beat()
            if self._stop.is_set():
                raise Interrupted("stopped")
            if not self._starting or time.monotonic() > until:
                return False

    def submit(self, job: Job) -> None:
        """Send a job to a worker that is ready. The winner's training is the last: the others may go."""
        worker = self._idle.pop()
        if job.trial is None:
            self._dismiss()
        self._running[worker.make.remote(job)] = _Running(job, worker, time.monotonic())

    def wait(self, beat: Callable[[], None]) -> list[tuple[Job, Outcome]]:
        """Wait until a trial is done, or another worker is ready; a trial that outstays its time is stopped."""
        while True:
            beat()
            done, _ = self.ray.wait([*self._running, *self._starting], timeout=LOOK_AGAIN_S)
            if self._stop.is_set():
                self._stop_all()
                raise Interrupted("stopped")
            for running in self._running.values():
                over_s = time.monotonic() - running.began - running.job.allowed_s
                if over_s > OVERDUE_S:
                    self.ray.kill(running.worker)
                elif over_s > 1:
                    running.worker.stop.remote(running.job)
            if done:
                self._welcome([task for task in done if task in self._starting])
                return [self._end(task) for task in done if task in self._running]

    def _welcome(self, ready: list[Any]) -> None:
        """Take in workers that are ready, and what keeps others from being so."""
        for task in ready:
            worker = self._starting.pop(task)
            try:
                answer = self.ray.get(task)
                self._idle.append(worker)
                self._check_seen(answer)
            except self.ray.exceptions.RayTaskError as error:
                if not isinstance(error.cause, SteppeError):
                    raise
                self._trouble = error.cause
            except self.ray.exceptions.RayError as error:
                first = str(error).strip().split("\n")[0]
                self._trouble = RunError(f"the workers of the cluster die: {first}", where=str(self.place.folder))

    def _end(self, task: Any) -> tuple[Job, Outcome]:
        running = self._running.pop(task)
        job, wall_s = running.job, time.monotonic() - running.began
        try:
            outcome: Outcome | Unseen | None = self.ray.get(task)
        except self.ray.exceptions.RayError as error:
            dead = isinstance(error, self.ray.exceptions.RayActorError)
            if not dead:
                self._idle.append(running.worker)
            state: State = "late" if wall_s > job.allowed_s else "failed"
            return job, Outcome(state, None, wall_s, reason=str(error).strip().split("\n")[0])
        self._idle.append(running.worker)
        self._check_seen(outcome)
        assert isinstance(outcome, Outcome)
        if outcome.factor is None:
            return job, outcome
        return job, replace(outcome, wall_s=wall_s, fixed_s=outcome.fixed_s + max(0.0, wall_s - outcome.wall_s))

    def _check_seen(self, answer: Outcome | Unseen | None) -> None:
        if isinstance(answer, Unseen):
            self._stop_all()
            what = f"{answer.host}, a machine of the cluster, does not see the search's folder"
            mend = "put it where all machines see it under the same path; `steppe study run --on ray` can do without"
            raise ConfigError(what, where=str(self.place.folder), mend=mend)

    def _stop_all(self) -> None:
        """Have every trial kept as it is."""
        for running in self._running.values():
            running.worker.stop.remote(running.job)
        if self._running:
            self.ray.wait(list(self._running), num_returns=len(self._running), timeout=STOPPING_S)

    def _dismiss(self) -> None:
        """Let all workers go that are not at work."""
        for worker in (*self._idle, *self._starting.values()):
            self.ray.kill(worker)
        self._idle, self._starting = [], {}
