"""Run a study on a Ray cluster: the same plan, one Ray task a run, results in the same folders.

The study's folder must be one path for all machines. A task takes its run's lock there, so nothing is computed twice,
be it by another task, another cluster or `steppe study run` without Ray. A worker or node that dies costs its run what
it did since the last checkpoint: Ray starts the task again, and the run goes on from its folder. A run that begins from
another's weights waits for that task.

Ray is imported when it is used: see the extra `ray`.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from steppe.config import MeasureConfig, PlannedRun, RunConfig, StudyConfig
from steppe.data import Keeping
from steppe.errors import ConfigError, RunError
from steppe.runs import Run, make_trackers, try_lock
from steppe.studies.pipeline import has_measures
from steppe.studies.pool import (
    BUSY_S,
    Notify,
    default_workers,
    describe_place,
    is_complete,
    note_failures,
    open_folder,
    stopped,
    threads_for,
)

RETRIES = 3
"""How often a run is tried again after its worker or node died."""
LOOK_AGAIN_S = 0.3
STOPPING_S = 60.0
"""How long tasks have to keep their runs after Ctrl-C."""


def run_study_on_ray(
    study: StudyConfig,
    planned: list[PlannedRun],
    out: str | Path,
    *,
    address: str | None = None,
    data_root: str | None = None,
    device: str | None = None,
    workers: int | None = None,
    notify: Notify | None = None,
    keeping: Keeping | None = None,
    track: Sequence[str] = (),
    chosen: Sequence[PlannedRun] | None = None,
) -> dict[str, str]:
    """As `run_study`, on a Ray cluster.

    Args:
        study: the study.
        planned: its runs, from `plan`.
        out: the study's folder, the same path on every machine.
        address: of the cluster; by default $RAY_ADDRESS, else one on this machine that ends with the study.
        data_root: where named data sets live, on every machine.
        device: by default a GPU for each run where the cluster has any.
        workers: on this machine's own cluster, how many runs at a time.
        notify: told about progress.
        keeping: where the images are kept, and how they are read.
        track: trackers of every run, by name.
        chosen: those of the planned runs that are to be made; all by default.

    Raises:
        ConfigError: Ray is not installed, or the cluster does not answer.
        Interrupted: Ctrl-C or SIGTERM; every task has kept its run.
    """
    make_trackers(track, print)
    wanted = planned if chosen is None else chosen
    ray = import_ray()
    _check_address(address)
    folder = Path(out).absolute()
    place = describe_place(str(Path(data_root).absolute()) if data_root else None, device, keeping, track)
    slots = workers or default_workers(device)
    threads = open_folder(study, planned, folder, threads_for(slots))
    with join_cluster(ray, address, cpus=slots * threads):
        gpus = count_gpus(ray, device)
        place["device"] = "cuda" if gpus else "cpu"  # Ray shows a task its own GPU alone
        task = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=RETRIES)(make_run)
        tasks = _Tasks(ray, study, folder, notify)
        for run in wanted:
            if is_complete(folder, run, study):
                tasks.tell("kept", run, {})
                continue
            job = {
                "config": run.config.model_dump(mode="json"),
                "out": str(folder / run.config.run_id),
                **place,
                "measure": study.measure.model_dump(mode="json"),
                "command": sys.argv,
                "threads": threads,
                "cwd": os.getcwd(),
            }
            tasks.add(run, task.remote(job, tasks.of(run.needs)))
        tasks.complete()
    if tasks.stop.is_set():
        raise stopped(study, wanted, folder)
    note_failures(study, planned, folder, tasks.failed)
    return tasks.failed


def make_run(job: dict[str, Any], needed: dict[str, Any] | None) -> dict[str, Any]:
    """Make one run, in a worker of the cluster; give the event it ended with.

    Args:
        job: as of `steppe.studies.worker`, with `threads` and `cwd`.
        needed: how the run it begins from ended, where that is made here too.
    """
    import torch

    from steppe.studies.worker import work

    name = RunConfig.model_validate(job["config"]).run_id
    if needed and needed["event"] == "failed":
        return {"event": "failed", "reason": "it begins from the weights of a run which failed"}
    if needed and needed["event"] == "interrupted":
        return needed
    with suppress(OSError):  # relative paths mean the same here, where the folder is there
        os.chdir(job["cwd"])
    torch.set_num_threads(job["threads"])
    path, measure = Path(job["out"]), MeasureConfig.model_validate(job["measure"])
    while (handle := try_lock(path.parent / "locks" / name)) is None:
        time.sleep(LOOK_AGAIN_S)
    try:
        if (path / "config.toml").exists() and has_measures(Run(path), measure):
            return {"event": "kept"}
        while (answer := work(job))["event"] == "busy":
            time.sleep(BUSY_S)
        return answer
    except KeyboardInterrupt:  # asked to stop between two trainings
        return {"event": "interrupted"}
    finally:
        os.close(handle)


class _Tasks:
    """The tasks under way, and what is told about them."""

    def __init__(self, ray: Any, study: StudyConfig, folder: Path, notify: Notify | None) -> None:
        self.ray, self.study, self.folder, self.notify = ray, study, folder, notify
        self.running: dict[Any, PlannedRun] = {}
        self.by_id: dict[str, Any] = {}
        self.failed: dict[str, str] = {}
        self.told: dict[str, int] = {}
        self.stop = threading.Event()

    def add(self, run: PlannedRun, task: Any) -> None:
        """Keep a task; what its folder says of earlier sessions is not told again."""
        self.running[task] = run
        self.by_id[run.config.run_id] = task
        self.told[run.config.run_id] = -1 - self._epochs(run)

    def of(self, run_id: str | None) -> Any:
        """The task of a run, to wait for; None where it needs none."""
        return self.by_id.get(run_id or "")

    def tell(self, event: str, run: PlannedRun, details: dict[str, Any]) -> None:
        """Pass an event on."""
        if event == "failed":
            self.failed[run.config.run_id] = details["reason"]
        if self.notify:
            self.notify(event, run, details)

    def complete(self) -> None:
        """Wait for every task, telling how they go; at Ctrl-C ask them to keep their runs and stop."""
        deadline = None
        with take_stop_requests(self.stop):
            while self.running:
                done, _ = self.ray.wait(list(self.running), timeout=LOOK_AGAIN_S)
                if self.stop.is_set() and deadline is None:
                    deadline = time.monotonic() + STOPPING_S
                    for task in self.running:
                        self.ray.cancel(task, force=False)
                for task in done:
                    self._end(task)
                for run in self.running.values():
                    self._tell_epochs(run)
                if deadline and time.monotonic() > deadline:
                    return

    def _end(self, task: Any) -> None:
        run = self.running.pop(task)
        try:
            answer = self.ray.get(task)
        except self.ray.exceptions.TaskCancelledError:
            return
        except self.ray.exceptions.RayError as error:
            first = str(error).strip().split("\n")[0]
            answer = {"event": "failed", "reason": f"its worker died {RETRIES + 1} times: {first}"}
        self._tell_epochs(run, begun=answer["event"] == "done")
        if answer["event"] in ("done", "failed", "kept"):
            self.tell(answer["event"], run, answer)

    def _tell_epochs(self, run: PlannedRun, begun: bool = False) -> None:
        """Tell what is new in a run's folder; below zero means that it has not begun in this session."""
        name, epochs = run.config.run_id, self._epochs(run)
        known = self.told[name]
        if known < 0 and (begun or epochs > -1 - known):
            self.tell("start", run, {})
            known = -1 - known
        if known >= 0 and epochs > known:
            with suppress(RunError, IndexError):
                self.tell("epoch", run, Run(self.folder / name).metrics()[-1])
            known = epochs
        self.told[name] = known

    def _epochs(self, run: PlannedRun) -> int:
        with suppress(RunError, OSError):
            return len(Run(self.folder / run.config.run_id).metrics())
        return 0


@contextmanager
def join_cluster(ray: Any, address: str | None, cpus: int) -> Iterator[None]:
    """Join a cluster, or make one on this machine for the time being. One that is joined already is used."""
    if ray.is_initialized():
        yield
        return
    where = address or os.environ.get("RAY_ADDRESS") or "local"
    _check_address(where)
    options: dict[str, Any] = {"num_cpus": cpus, "include_dashboard": False} if where == "local" else {}
    try:
        ray.init(address=where, log_to_driver=False, logging_level="error", **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _no_answer(where, str(error).strip().splitlines()[0]) from None
    try:
        yield
    finally:
        ray.shutdown()


def _check_address(address: str | None) -> None:
    """Knock at the cluster's door: Ray itself would wait there for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not port.isdigit():  # none, "auto" or "local"
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise _no_answer(str(address), str(error)) from None


def _no_answer(address: str, reason: str) -> ConfigError:
    mend = "start one with `ray start --head`, or leave --address away to have one on this machine"
    return ConfigError(f"the Ray cluster does not answer: {reason}", where=f"--address {address}", mend=mend)


def count_gpus(ray: Any, device: str | None) -> int:
    """One GPU for a run, where it is asked for or the cluster has any."""
    there = int(ray.cluster_resources().get("GPU", 0))
    if device and not device.startswith("cpu") and not there:
        raise ConfigError(f"the cluster has no GPU for --device {device}", where="--device", mend="leave it away")
    return 1 if there and not (device or "").startswith("cpu") else 0


@contextmanager
def take_stop_requests(stop: threading.Event) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into a request."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for kind in map(int, (signal.SIGINT, signal.SIGTERM)):
            before[kind] = signal.signal(kind, lambda number, frame: stop.set())
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def import_ray() -> Any:
    """Import Ray, or say which extra is missing."""
    try:
        import ray
    except ImportError:
        mend = "pip install 'steppe[ray]'"
        raise ConfigError("--on ray needs the package ray, which is not installed", where="--on", mend=mend) from None
    return ray
