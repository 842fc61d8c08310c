"""Run a study on a Ray cluster: the same plan, one Ray task a run, results in the same folders.

A task takes its run's lock in the study's folder, so nothing is computed twice, be it by another task, another cluster
or `steppe study run` without Ray. A worker or node that dies costs its run what it did since the last checkpoint: Ray
starts the task again, and the run goes on from its folder. A run that begins from another's weights waits for that
task. A machine that does not see the study's folder works in one of its own and brings home what it makes, checkpoint
by checkpoint, see `steppe.studies.away`.

Ray is imported when it is used: see the extra `ray`.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from steppe.config import MeasureConfig, PlannedRun, StudyConfig
from steppe.data import Keeping
from steppe.errors import ConfigError, RunError
from steppe.measuring import ignore
from steppe.runs import Run, make_trackers, try_lock
from steppe.runs.home import Home, Marker, left_marker, sees
from steppe.studies.away import BEAT_S, make_away
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
from steppe.studies.recorded_data import RecordedData
from steppe.studies.sharing import seed_by_seed
from steppe.studies.stopping import take_stop_requests

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
        out: the study's folder; machines that do not see it under the same path bring their results here.
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
        DataError: runs that are in the folder learned from different images.
        Interrupted: Ctrl-C or SIGTERM; every task has kept its run.
    """
    make_trackers(track, print)
    wanted = planned if chosen is None else chosen
    ray = import_ray()
    _check_address(address)
    folder = Path(out).absolute()
    place = describe_place(str(Path(data_root).absolute()) if data_root else None, device, keeping, track)
    slots = workers or default_workers(device)
    recorded = RecordedData(folder, planned)
    recorded.check()
    threads = open_folder(study, planned, folder, threads_for(slots))
    with ExitStack() as opened:
        marker = opened.enter_context(left_marker(folder))
        opened.enter_context(join_cluster(ray, address, cpus=slots * threads))
        home = opened.enter_context(_open_home(ray, folder, marker, planned))
        gpus = count_gpus(ray, device)
        place["device"] = "cuda" if gpus else "cpu"  # Ray shows a task its own GPU alone
        task = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=RETRIES)(make_run)
        tasks = _Tasks(ray, study, folder, notify, home)
        for run in seed_by_seed(wanted):
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
                "needs": run.needs,
                "marker": marker,
                "recorded": recorded.of(run.config.data),
            }
            tasks.add(run, task.remote(job, tasks.of(run.needs), home))
        tasks.complete()
    if tasks.stop.is_set():
        raise stopped(study, wanted, folder)
    note_failures(study, planned, folder, tasks.failed)
    return tasks.failed


def make_run(job: dict[str, Any], needed: dict[str, Any] | None, home: Any) -> dict[str, Any]:
    """Make one run, in a worker of the cluster; give the event it ended with.

    Args:
        job: as of `steppe.studies.worker`, with `threads`, `cwd`, `needs` and `marker`.
        needed: how the run it begins from ended, where that is made here too.
        home: takes the results where this machine does not see the study's folder; see `steppe.studies.away`.
    """
    import torch

    if needed and needed["event"] == "failed":
        return {"event": "failed", "reason": "it begins from the weights of a run which failed"}
    if needed and needed["event"] == "interrupted":
        return needed
    with suppress(OSError):  # relative paths mean the same here, where the folder is there
        os.chdir(job["cwd"])
    torch.set_num_threads(job["threads"])
    try:
        return _make_here(job) if sees(Marker(*job["marker"])) else make_away(job, home, _make)
    except KeyboardInterrupt:  # asked to stop between two trainings
        return {"event": "interrupted"}


def _make_here(job: dict[str, Any]) -> dict[str, Any]:
    """Make a run in its own folder, under its lock."""
    path = Path(job["out"])
    while (handle := try_lock(path.parent / "locks" / path.name)) is None:
        time.sleep(LOOK_AGAIN_S)
    try:
        while (answer := _make(job))["event"] == "busy":
            time.sleep(BUSY_S)
        return answer
    finally:
        os.close(handle)


def _make(job: dict[str, Any], saved: Callable[[], None] = ignore) -> dict[str, Any]:
    """Make a run, unless somebody has made it meanwhile."""
    from steppe.studies.worker import work

    path, measure = Path(job["out"]), MeasureConfig.model_validate(job["measure"])
    if (path / "config.toml").exists() and has_measures(Run(path), measure):
        return {"event": "kept"}
    return work(job, saved=saved)


@contextmanager
def _open_home(ray: Any, folder: Path, marker: Marker, planned: Sequence[PlannedRun]) -> Iterator[Any]:
    """An actor on this machine that serves the study's folder to those which do not see it."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": here}
    home = ray.remote(**options)(Home).remote(str(folder), marker, [p.config.run_id for p in planned])
    try:
        yield home
    finally:
        ray.kill(home)


class _Tasks:
    """The tasks under way, and what is told about them."""

    def __init__(self, ray: Any, study: StudyConfig, folder: Path, notify: Notify | None, home: Any) -> None:
        self.ray, self.study, self.folder, self.notify, self.home = ray, study, folder, notify, home
        self.running: dict[Any, PlannedRun] = {}
        self.by_id: dict[str, Any] = {}
        self.failed: dict[str, str] = {}
        self.told: dict[str, int] = {}
        self.stop = threading.Event()
        self.look, self.looked_at = home.look.remote(), time.monotonic()

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
                        self.ray.cancel(task, force=False, recursive=False)  # what it asks of home goes on
                for task in done:
                    self._end(task)
                for run in self.running.values():
                    self._tell_epochs(run)
                if deadline and time.monotonic() > deadline:
                    return
                self._look()

    def _look(self) -> None:
        """Have the locks of dead workers let go at home; one look at a time, or a slow home would take all for dead."""
        due = time.monotonic() > self.looked_at + BEAT_S
        if due and self.ray.wait([self.look], timeout=0)[0]:
            self.look, self.looked_at = self.home.look.remote(), time.monotonic()

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
        raise _no_answer(where, str(error).strip().splitlines()[0], there=where != "local") from None
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


def _no_answer(address: str, reason: str, there: bool = False) -> ConfigError:
    """The error of a cluster that cannot be joined; `there`: something listens at its address."""
    mend = "start one with `ray start --head`, or leave --address away to have one on this machine"
    if there and "RAY_AUTH_MODE" not in os.environ:
        mend = "set RAY_AUTH_MODE=token: the cluster may ask for a token, which Ray sends to an --address only then"
    return ConfigError(f"the Ray cluster does not answer: {reason}", where=f"--address {address}", mend=mend)


def count_gpus(ray: Any, device: str | None) -> int:
    """One GPU for a run, where it is asked for or the cluster has any."""
    there = int(ray.cluster_resources().get("GPU", 0))
    if device and not device.startswith("cpu") and not there:
        raise ConfigError(f"the cluster has no GPU for --device {device}", where="--device", mend="leave it away")
    return 1 if there and not (device or "").startswith("cpu") else 0


def import_ray() -> Any:
    """Import Ray, or say which extra is missing."""
    try:
        import ray
    except ImportError:
        mend = "pip install 'steppe[ray]'"
        raise ConfigError("--on ray needs the package ray, which is not installed", where="--on", mend=mend) from None
    return ray
