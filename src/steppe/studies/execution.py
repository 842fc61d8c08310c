"""Run a study: every run that is not complete yet is a job, made by worker processes or on a Ray cluster.

A finished run is not run again. A failed one is reported with its reason and does not stop the others. A run whose
worker dies (out of memory, killed) is tried again, from its last checkpoint. Several processes may run a study in one
folder, on one machine or on several that share it: each takes runs that no other has, see `run_queue`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from steppe.config import MeasureConfig, PlannedRun, StudyConfig
from steppe.data import Keeping
from steppe.errors import Interrupted, RunError
from steppe.jobs import ENDS, Event, Job, Link, Processes, RayWorkers, check_cluster, default_workers, threads_for
from steppe.runs import Observer, Run, Several, make_trackers
from steppe.studies.pipeline import execute_on
from steppe.studies.recorded_data import RecordedData, check_recorded
from steppe.studies.run_queue import RunQueue, seed_by_seed
from steppe.studies.study_folder import is_complete, note_failures, open_folder

Notify = Callable[[str, PlannedRun, dict[str, Any]], None]
"""Called with an event ("start", "epoch", "note", "done", "failed", "kept"), the run it concerns, and its details."""


@dataclass(frozen=True)
class RunSettings:
    """What a study's run needs beside its configuration.

    Args:
        measure: what is measured on it.
        track: names of trackers.
        recorded: the data that the folder's runs learned from, from `RecordedData.of`.
    """

    measure: MeasureConfig
    track: tuple[str, ...]
    recorded: dict[str, Any] | None


def run_study(
    study: StudyConfig,
    planned: list[PlannedRun],
    out: str | Path,
    *,
    data_root: str | None = None,
    device: str | None = None,
    workers: int | None = None,
    notify: Notify | None = None,
    keeping: Keeping | None = None,
    track: Sequence[str] = (),
    chosen: Sequence[PlannedRun] | None = None,
    on_ray: bool = False,
    address: str | None = None,
) -> dict[str, str]:
    """Run what is not finished yet; return the reasons of the runs that failed, by run id.

    Runs that another process is making are waited for, and count as kept when they are complete.

    Args:
        study: the study.
        planned: its runs, from `plan`.
        out: the study's folder; every run has a folder of its own in it.
        data_root: where named data sets live, on every machine.
        device: by default the GPU where there is one; on Ray, a GPU for each run where the cluster has any.
        workers: how many runs at a time, on Ray on this machine's own cluster; by default one a GPU, where workers take
            the GPUs in turn, else one a core. The threads of a run are settled when the folder is made, and stay: sums,
            and so the last digits, depend on them.
        notify: told about progress.
        keeping: where the images are kept, and how each worker reads them.
        track: trackers of every run, by name; see `steppe.runs.TRACKERS`.
        chosen: those of the planned runs that are to be made, from `choose`; all by default.
        on_ray: make the runs on a Ray cluster. Machines that do not see the folder send their results here.
        address: of that cluster; by default $RAY_ADDRESS, else one on this machine that ends with the study.

    Raises:
        ConfigError: Ray is not installed, or the cluster does not answer.
        DataError: runs that are in the folder learned from different images.
        Interrupted: Ctrl-C or SIGTERM; every worker has kept its run.
    """
    make_trackers(track, print)  # a missing package is reported before anything is run
    folder, wanted = Path(out), planned if chosen is None else chosen
    workers = workers or default_workers(device)
    if on_ray:
        check_cluster(address)
        data_root = str(Path(data_root).absolute()) if data_root else None
    recorded = RecordedData(folder, planned)
    recorded.check()
    threads = open_folder(study, planned, folder, threads_for(workers))
    failed: dict[str, str] = {}

    def tell(event: str, run: PlannedRun, details: dict[str, Any]) -> None:
        if event == "failed":
            failed[run.config.run_id] = details["reason"]
        if notify:
            notify(event, run, details)

    todo = seed_by_seed([run for run in wanted if not is_complete(folder, run, study)])
    for run in wanted:
        if run not in todo:
            tell("kept", run, {})
    queue = RunQueue(folder, todo, lambda run: is_complete(folder, run, study), tell)
    executor: Processes | RayWorkers = Processes(min(workers, len(todo)), threads, folder)
    if on_ray:
        executor = RayWorkers(folder, threads, workers, len(todo), address=address, device=device, copies=True)
    try:
        with executor if todo else nullcontext():
            while queue.waiting or queue.running:
                while executor.has_room() and (next_ := queue.take()):
                    settings = RunSettings(study.measure, tuple(track), recorded.of(next_.config.data))
                    job = Job(next_.config, folder / next_.config.run_id, make_run, settings, device, data_root)
                    executor.submit(replace(job, keeping=keeping or Keeping(), needs=next_.needs))
                    tell("start", next_, {})
                if not queue.waiting:
                    executor.dismiss()
                if queue.waiting or queue.running:
                    for event in executor.wait():
                        _take(event, queue, tell)
    except Interrupted:
        left = sum(not is_complete(folder, run, study) for run in wanted)
        what = f"stopped with {left} of {len(wanted)} runs to go; nothing is lost"
        fix = "run the same command again to go on from here"
        raise Interrupted(what, where=str(folder), fix=fix) from None
    finally:
        queue.close()
    note_failures(study, planned, folder, failed)
    return failed


def _take(event: Event, queue: RunQueue, tell: Notify) -> None:
    """Report an event of a run, and let the run go if it ends."""
    name = event.job.folder.name
    run = queue.running[name]
    if event.name == "epoch":
        tell("epoch", run, event.details)
    elif event.name in ("note", "done", "failed"):
        tell(event.name, run, {"text" if event.name == "note" else "reason": event.details})
    if event.name in ENDS:
        queue.release(name, failed=event.name == "failed", again=event.name == "busy")


def make_run(job: Job, link: Link) -> None:
    """Make one run of a study, in any process: train, then measure.

    Args:
        job: with `RunSettings`.
        link: takes epochs and notes.
    """
    settings: RunSettings = job.settings
    if link.away and "mlflow" in settings.track and not os.environ.get("MLFLOW_TRACKING_URI"):
        raise RunError("mlflow: set $MLFLOW_TRACKING_URI, this machine does not see its database")
    dataset = link.load(job.config.data, job)
    check_recorded(settings.recorded, dataset, job.folder.parent)
    observer = _Teller(link)
    execute_on(
        dataset,
        job.config,
        job.folder,
        data_root=job.data_root,
        device=job.device,
        measure=settings.measure,
        observer=Several([observer, *make_trackers(settings.track, observer.say)]),
        keeping=job.keeping,
        stop=link.stop,
    )


class _Teller(Observer):
    def __init__(self, link: Link) -> None:
        self.link = link

    def epoch(self, record: dict[str, Any]) -> None:
        self.link.tell("epoch", record)

    def say(self, text: str) -> None:
        self.link.tell("note", text)

    def saved(self, run: Run) -> None:
        self.link.saved()
        if self.link.stop.is_set() and run.finished:  # trained; the measures can wait
            raise Interrupted("stopped")
