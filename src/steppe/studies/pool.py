"""Run a study on this machine: one worker process a slot, one run at a time in each.

A finished run is not run again. A failed one is told with its reason and does not stop the others. A worker that dies
(out of memory, killed) is started again and its run tried once more, from its last checkpoint. Several such processes
may work in one folder, on one machine or on several that share it: each takes runs that no other has, see
`steppe.studies.sharing`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from steppe.config import PlannedRun, StudyConfig
from steppe.data import Keeping
from steppe.errors import Interrupted, RunError
from steppe.runs import Run, locked, make_trackers, read_json, write_json
from steppe.studies.pipeline import has_measures
from steppe.studies.recorded_data import RecordedData
from steppe.studies.sharing import RunQueue, seed_by_seed
from steppe.train import available_cores

Notify = Callable[[str, PlannedRun, dict[str, Any]], None]
"""Called with an event ("start", "epoch", "note", "done", "failed", "kept"), the run it concerns, and its details."""


BUSY_S = 1.0
"""How long to wait for a run that somebody else is writing outside of a study."""


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
) -> dict[str, str]:
    """Run what is not finished yet; give the reasons of the runs that failed, by run id.

    What another process is making is waited for, and counts as kept when it is done there.

    Args:
        study: the study.
        planned: its runs, from `plan`.
        out: the study's folder; every run has a folder of its own in it.
        data_root: where named data sets live.
        device: by default the GPU where there is one.
        workers: how many runs at a time; by default one a GPU, where slots take the GPUs in turn, else one a core. How
            many threads a run computes with is settled when the folder is made, and stays: sums, and so the last
            digits, depend on it.
        notify: told about progress; may be called from several threads, one call at a time.
        keeping: where the images are kept, and how each worker reads them.
        track: trackers of every run, by name; see `steppe.runs.TRACKERS`.
        chosen: those of the planned runs that are to be made, from `choose`; all by default.

    Raises:
        DataError: runs that are in the folder learned from different images.
        Interrupted: Ctrl-C or SIGTERM; every worker has kept its run.
    """
    make_trackers(track, print)  # a missing package is told before anything is run
    folder = Path(out)
    place = describe_place(data_root, device, keeping, track)
    workers = workers or default_workers(device)
    recorded = RecordedData(folder, planned)
    recorded.check()
    threads = open_folder(study, planned, folder, threads_for(workers))
    shared = _Shared(study, folder, place, threads=threads, notify=notify, recorded=recorded)
    wanted = planned if chosen is None else chosen
    todo = seed_by_seed([p for p in wanted if not is_complete(folder, p, study)])
    for run in wanted:
        if run not in todo:
            shared.tell("kept", run, {})
    shared.fill(todo)
    with _forward_signals(shared):
        slots = [threading.Thread(target=_Slot(shared, number).work) for number in range(min(workers, len(todo)))]
        for slot in slots:
            slot.start()
        for slot in slots:
            while slot.is_alive():
                slot.join(0.2)
    if shared.bug:
        raise shared.bug
    if shared.stop.is_set():
        raise stopped(study, wanted, folder)
    note_failures(study, planned, folder, shared.failed)
    return shared.failed


def stopped(study: StudyConfig, wanted: Sequence[PlannedRun], out: Path) -> Interrupted:
    """What is said after Ctrl-C or SIGTERM."""
    left = sum(not is_complete(out, p, study) for p in wanted)
    what = f"stopped with {left} of {len(wanted)} runs to go; nothing is lost"
    return Interrupted(what, where=str(out), mend="run the same command again to go on from here")


def describe_place(
    data_root: str | None, device: str | None, keeping: Keeping | None, track: Sequence[str]
) -> dict[str, Any]:
    """Where and how runs happen, as a part of a worker's job."""
    kept = keeping or Keeping()
    cache = str(kept.cache) if kept.cache else None
    return {
        "data_root": data_root,
        "device": device,
        "keeping": {**asdict(kept), "cache": cache},
        "track": list(track),
    }


def open_folder(study: StudyConfig, planned: list[PlannedRun], out: Path, threads: int) -> int:
    """Write what the study is, and give the threads of a run: as settled when the folder was made, else as here."""
    with locked(out, "study", wait_s=60):
        threads = known_threads(out) or threads
        write_json(out / "study.json", {**describe(study, planned), "threads": threads})
    return threads


def note_failures(study: StudyConfig, planned: list[PlannedRun], out: Path, failed: dict[str, str]) -> None:
    """Add why runs failed, here and in other processes, unless they are complete by now."""
    with locked(out, "study", wait_s=60):
        about = _about(out)
        there = about.get("failed")
        reasons = {**(there if isinstance(there, dict) else {}), **failed}
        reasons = {
            p.config.run_id: reasons[p.config.run_id]
            for p in planned
            if p.config.run_id in reasons and not is_complete(out, p, study)
        }
        write_json(out / "study.json", {**describe(study, planned), "threads": about.get("threads"), "failed": reasons})


def known_threads(out: Path) -> int | None:
    """How many threads each run of a study's folder computes with; None where that is not settled."""
    threads = _about(out).get("threads")
    return threads if isinstance(threads, int) and threads > 0 else None


def _about(out: Path) -> dict[str, Any]:
    path = out / "study.json"
    about = read_json(path) if path.is_file() else {}
    return about if isinstance(about, dict) else {}


def describe(study: StudyConfig, planned: list[PlannedRun]) -> dict[str, Any]:
    """What `study.json` says: the question, which run is which cell and, once it has run, which failed and why."""
    runs = [{"run_id": p.config.run_id, "labels": p.labels, "seed": p.config.seed} for p in planned]
    about = {"name": study.name, "title": study.title, "question": study.question, "runs": runs}
    return {**about, "scale": study.default_scale} if study.default_scale else about


def default_workers(device: str | None) -> int:
    """One run at a time on each GPU, one a core on the CPU."""
    import torch

    on_gpu = torch.cuda.is_available() if device is None else not device.startswith("cpu")
    if not on_gpu:
        return available_cores()
    return max(1, torch.cuda.device_count()) if device in (None, "cuda") else 1


def device_of_slot(device: str | None, number: int, gpus: int) -> str | None:
    """Where a slot's runs compute: of several GPUs, unless one is named, each slot takes the next.

    Args:
        device: as asked for.
        number: of the slot, from 0.
        gpus: how many there are.
    """
    return f"cuda:{number % gpus}" if device in (None, "cuda") and gpus > 1 else device


def threads_for(workers: int) -> int:
    """How many threads each worker computes with: its share of the cores, or fewer if $OMP_NUM_THREADS says so."""
    share, asked = max(1, available_cores() // workers), os.environ.get("OMP_NUM_THREADS", "")
    return min(share, max(1, int(asked))) if asked.isdecimal() else share


def is_complete(out: Path, planned: PlannedRun, study: StudyConfig) -> bool:
    """Whether a planned run is finished and measured as the study asks."""
    path = out / planned.config.run_id
    return (path / "config.toml").exists() and has_measures(Run(path), study.measure)


def _count_gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


class _Shared:
    """What the slots have in common."""

    def __init__(
        self,
        study: StudyConfig,
        out: Path,
        place: dict[str, Any],
        *,
        threads: int,
        notify: Notify | None,
        recorded: RecordedData,
    ) -> None:
        self.study, self.out, self.place = study, out, place
        self.threads, self.recorded = threads, recorded
        self.failed: dict[str, str] = {}
        self.processes: dict[int, subprocess.Popen[str]] = {}
        self.stop = threading.Event()
        self.bug: BaseException | None = None
        self._notify, self._lock = notify, threading.Lock()

    def fill(self, todo: list[PlannedRun]) -> None:
        """Say what is to be done."""
        self.queue = RunQueue(
            self.out,
            todo,
            complete=lambda run: is_complete(self.out, run, self.study),
            ended=self.tell,
            stop=self.stop,
        )

    def tell(self, event: str, run: PlannedRun, details: dict[str, Any]) -> None:
        """Pass an event on, one at a time."""
        with self._lock:
            if event == "failed":
                self.failed[run.config.run_id] = details["reason"]
            if self._notify:
                self._notify(event, run, details)


class _Slot:
    """A thread that keeps one worker process busy."""

    def __init__(self, shared: _Shared, number: int) -> None:
        self.shared, self.number = shared, number
        self.device = device_of_slot(shared.place["device"], number, _count_gpus())
        self.log = shared.out / f"worker-{number}.log"

    def work(self) -> None:
        try:
            while run := self.shared.queue.take():
                event = ""
                try:
                    event = self._complete_run(run)
                finally:
                    self.shared.queue.release(run, failed=event == "failed", again=event == "busy")
        except BaseException as error:
            self.shared.bug = error
            self.shared.stop.set()
        finally:
            self._end_process()

    def _complete_run(self, run: PlannedRun) -> str:
        """Make a run; give the event it ended with."""
        self.shared.tell("start", run, {})
        for attempt in (1, 2):
            answer = self._try_run(run)
            if answer["event"] != "died" or self.shared.stop.is_set():
                break
            if attempt == 1:
                text = f"the worker process died ({answer['how']}); trying once more, from the last checkpoint"
                self.shared.tell("note", run, {"text": text})
            else:
                reason = f"the worker process died twice ({answer['how']})"
                if answer["how"].endswith("SIGKILL"):
                    reason += ", as the system does when memory runs out: try fewer --workers"
                if self.log.exists() and self.log.stat().st_size:
                    reason += f"; see {self.log}"
                answer = {"event": "failed", "reason": reason}
        if answer["event"] in ("done", "failed"):
            self.shared.tell(answer["event"], run, answer)
        if answer["event"] == "busy":
            time.sleep(BUSY_S)
        return str(answer["event"])

    def _try_run(self, run: PlannedRun) -> dict[str, Any]:
        process = self._process()
        job = {
            "config": run.config.model_dump(mode="json"),
            "out": str(self.shared.out / run.config.run_id),
            **self.shared.place,
            "device": self.device,
            "measure": self.shared.study.measure.model_dump(mode="json"),
            "command": sys.argv,
            "recorded": self.shared.recorded.of(run.config.data),
        }
        assert process.stdin
        assert process.stdout
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                answer = json.loads(line)
                if answer["event"] not in ("epoch", "note"):
                    return answer
                self.shared.tell(answer["event"], run, answer.get("record", answer))
        except BrokenPipeError:
            pass
        code = self._end_process()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return {"event": "died", "how": how}

    def _end_process(self) -> int:
        """Let the worker go: it stops when its input ends. Give its exit code."""
        process = self.shared.processes.pop(self.number, None)
        if process is None:
            return 0
        for pipe in (process.stdin, process.stdout):
            if pipe:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        return process.wait()

    def _process(self) -> subprocess.Popen[str]:
        if self.number not in self.shared.processes:
            try:
                with open(self.log, "ab") as log:
                    self.shared.processes[self.number] = subprocess.Popen(
                        [sys.executable, "-m", "steppe.studies.worker", str(self.shared.threads)],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=log,
                        text=True,
                        start_new_session=True,  # Ctrl-C reaches us alone, and we tell the workers
                    )
                if self.shared.stop.is_set():  # the request came while it was being started
                    self.shared.processes[self.number].send_signal(signal.SIGTERM)
            except OSError as error:
                raise RunError(f"no worker process could be started: {error}", where=str(self.log)) from None
        return self.shared.processes[self.number]


class _forward_signals:  # noqa: N801
    """While a study runs, turn Ctrl-C and SIGTERM into a request to every worker to keep its run and stop."""

    def __init__(self, shared: _Shared) -> None:
        self.shared = shared
        self.before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for kind in (signal.SIGINT, signal.SIGTERM):
                self.before[kind] = signal.signal(kind, self._stop)

    def __exit__(self, *exception: object) -> None:
        for kind, handler in self.before.items():
            signal.signal(kind, handler)

    def _stop(self, number: int, frame: object) -> None:
        self.shared.stop.set()
        for process in list(self.shared.processes.values()):
            process.send_signal(signal.SIGTERM)
