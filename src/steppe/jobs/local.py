"""Jobs on this machine: in this process one after the other, or in worker processes, several at a time."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from steppe.data import Dataset
from steppe.errors import Interrupted, RunError
from steppe.jobs.job import Event, Job, Link, perform
from steppe.jobs.pool import Lost, Pool
from steppe.jobs.slots import count_gpus, device_of_worker
from steppe.measuring import ignore


class Here:
    """Make jobs in this process, one at a time.

    Args:
        loaded: the images of all of them.
    """

    def __init__(self, loaded: Dataset | None = None) -> None:
        """Prepare."""
        self._loaded = loaded
        self._jobs: list[Job] = []
        self._stop = threading.Event()

    def has_room(self, beat: Callable[[], object] = ignore, wait_s: float = 0.0) -> bool:
        """Return whether no job waits."""
        return not self._jobs

    def submit(self, job: Job) -> None:
        """Take a job; `wait` makes it."""
        self._jobs.append(job)

    def wait(self, beat: Callable[[], object] = ignore) -> list[Event]:
        """Make the job."""
        if self._stop.is_set():  # the request came when the job before was about to end
            raise Interrupted("stopped")
        job = self._jobs.pop(0)
        events: list[Event] = []
        link = Link(lambda name, details: events.append(Event(job, name, details)), beat=beat, stop=self._stop)
        link.loaded = self._loaded
        name, details = perform(job, link)
        if name == "stopped":
            raise Interrupted("stopped")
        return [*events, Event(job, name, details)]

    def dismiss(self) -> None:
        """Do nothing: there are no workers."""


@dataclass(eq=False)
class _Worker:
    number: int
    process: subprocess.Popen[bytes]
    connection: Connection
    asked: bool = False


class Processes(Pool):
    """Make jobs in worker processes, so that a crash costs one job; a worker is started once more after it died.

    Args:
        workers: how many jobs at a time.
        threads: of each.
        logs: folder for what workers print, as `worker-N.log`.
    """

    def __init__(self, workers: int, threads: int, logs: Path) -> None:
        """Prepare."""
        super().__init__(retries=1)
        self.threads, self.logs = threads, logs
        self._gpus = count_gpus()
        self._idle: list[_Worker] = []
        self._free_numbers = list(range(workers))

    def has_room(self, beat: Callable[[], object] = ignore, wait_s: float = 0.0) -> bool:
        """Return whether a worker is idle or can be started."""
        return not self.stop.is_set() and len(self._idle) + len(self._free_numbers) > len(self._waiting)

    def dismiss(self) -> None:
        """Let idle workers go: a worker ends when its connection does."""
        for worker in self._idle:
            self._end(worker)
        self._idle = []

    def _free_worker(self) -> _Worker | None:
        if self._idle:
            return self._idle.pop()
        return self._start(self._free_numbers.pop(0)) if self._free_numbers else None

    def _start(self, number: int) -> _Worker:
        """Start a worker: a module, not by multiprocessing, which would import the caller's `__main__` again."""
        ours, theirs = Pipe()
        log = self._log(number)
        command = [sys.executable, "-m", "steppe.jobs.worker", str(theirs.fileno()), str(self.threads)]
        try:
            with open(log, "ab") as output:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C reaches this process alone, which asks the workers to stop
                )
        except OSError as error:
            raise RunError(f"no worker process could be started: {error}", where=str(log)) from None
        finally:
            theirs.close()
        worker = _Worker(number, process, ours)
        with suppress(OSError):
            ours.send(sys.argv)
        return worker

    def _is_idle(self, worker: _Worker) -> None:
        self._idle.append(worker)

    def _send(self, worker: _Worker, job: Job) -> None:
        worker.asked = False
        with suppress(OSError):  # it has died: `_receive` finds out
            worker.connection.send(replace(job, device=device_of_worker(job.device, worker.number, self._gpus)))

    def _receive(self, wait_s: float) -> list[tuple[_Worker, Any]]:
        by_connection = {worker.connection: worker for worker in self._busy}
        if not by_connection:
            self.stop.wait(wait_s)
            return []
        found: list[tuple[_Worker, Any]] = []
        ready = wait(list(by_connection), wait_s)
        if not ready:  # a killed worker's own children may hold its connection open
            ready = [worker.connection for worker in self._busy if worker.process.poll() is not None]
        for connection in ready:
            worker = by_connection[connection]
            try:
                if not worker.connection.poll():
                    raise EOFError
                found.append((worker, worker.connection.recv()))
            except (EOFError, OSError):
                code = self._end(worker)
                how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                found.append((worker, Lost(how)))
        return found

    def _ask_to_stop(self, worker: _Worker) -> None:
        if not worker.asked:
            worker.asked = True
            worker.process.send_signal(signal.SIGTERM)

    def _kill(self, worker: _Worker) -> None:
        worker.process.kill()
        self._end(worker)

    def _end(self, worker: _Worker) -> int:
        """Close a worker's connection, which ends it; return its exit code."""
        worker.connection.close()
        self._free_numbers.append(worker.number)
        return worker.process.wait()

    def _try_again(self, task: Any, how: str) -> Event:
        event = super()._try_again(task, how)
        logs = [log for log in map(self._log, self._free_numbers[-1:]) if log.exists() and log.stat().st_size]
        return replace(event, details=f"{event.details}; see {logs[0]}") if event.name == "failed" and logs else event

    def _log(self, number: int) -> Path:
        return self.logs / f"worker-{number}.log"
