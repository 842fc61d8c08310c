"""What worker processes here and on a cluster have in common: the queue, lost workers, overdue jobs and Ctrl-C."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from steppe.errors import Interrupted
from steppe.jobs.job import ENDS, Event, Job
from steppe.measuring import ignore
from steppe.signals import handle_stops

LOOK_S = 0.3
"""How long `wait` waits at most."""
OVERDUE_S = 10.0
"""A worker that has not ended its job so long after its time is killed."""
STOPPING_S = 60.0
"""How long workers may take to stop after Ctrl-C."""


class Lost(NamedTuple):
    """The message of a worker that died: how."""

    how: str


@dataclass
class Task:
    """A job that was submitted."""

    job: Job
    began: float
    attempts: int = 0


class Pool(ABC):
    """Hand out jobs to workers; try again those whose worker was lost; have all stopped at Ctrl-C.

    Args:
        retries: how often a job is tried again after its worker died.
    """

    def __init__(self, retries: int) -> None:
        """Prepare; workers are started when there is something to do."""
        self.stop = threading.Event()
        self._retries = retries
        self._waiting: list[Task] = []
        self._busy: dict[Any, Task] = {}
        self._stopping_until: float | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Turn Ctrl-C and SIGTERM into a request to every worker."""
        self._open.enter_context(handle_stops(self.stop.set))
        return self

    def __exit__(self, *_: object) -> None:
        """End every worker."""
        for worker in list(self._busy):
            self._kill(worker)
        self._busy.clear()
        self._waiting.clear()
        self.dismiss()
        self._open.close()

    def submit(self, job: Job) -> None:
        """Take a job."""
        self._waiting.append(Task(job, time.monotonic()))
        self._hand_out()

    def wait(self, beat: Callable[[], object] = ignore) -> list[Event]:
        """Wait a moment and return what happened.

        Raises:
            Interrupted: Ctrl-C or SIGTERM; every job under way has been stopped and kept.
        """
        beat()
        self._hand_out()
        arrived = self._receive(LOOK_S)
        events = [event for worker, message in arrived if (event := self._take(worker, message))]
        if self.stop.is_set():
            self._waiting.clear()
            if self._stopping_until is None:
                self._stopping_until = time.monotonic() + STOPPING_S
                for worker in self._busy:
                    self._ask_to_stop(worker)
            if not events and (not self._busy or time.monotonic() > self._stopping_until):
                raise Interrupted("stopped")
        for worker, task in list(self._busy.items()):
            overdue_s = time.monotonic() - task.began - task.job.allowed_s
            if overdue_s > OVERDUE_S:
                self._kill(worker)
                self._busy.pop(worker)
                events.append(Event(task.job, "stopped"))
            elif overdue_s > 1:
                self._ask_to_stop(worker)
        return events

    def _hand_out(self) -> None:
        while self._waiting and not self.stop.is_set() and (worker := self._free_worker()) is not None:
            task = self._waiting.pop(0)
            task.attempts += 1
            self._busy[worker] = task
            self._send(worker, task.job)

    def _take(self, worker: Any, message: Any) -> Event | None:
        """Turn a worker's message into an event."""
        task = self._busy.get(worker)
        if task is None:
            return None
        if isinstance(message, Lost):
            del self._busy[worker]
            return None if self.stop.is_set() else self._try_again(task, message.how)
        name, details = message
        if name in ENDS:
            del self._busy[worker]
            self._is_idle(worker)
            if name == "stopped" and self.stop.is_set():  # the user wants that; it is no end of the job
                return None
        return Event(task.job, name, details)

    def _try_again(self, task: Task, how: str) -> Event:
        """Queue the job of a lost worker, or say that it failed."""
        if task.attempts <= self._retries:
            self._waiting.insert(0, task)
            more = "once more" if task.attempts == self._retries else "again"
            text = f"the worker process died ({how}); trying {more}, from the last checkpoint"
            return Event(task.job, "note", text)
        times = {1: "", 2: " twice"}.get(task.attempts, f" {task.attempts} times")
        reason = f"the worker process died{times} ({how})"
        if how.endswith("SIGKILL"):
            reason += ", as the system does when memory runs out: try fewer --workers"
        return Event(task.job, "failed", reason)

    @abstractmethod
    def dismiss(self) -> None:
        """Let idle workers go."""

    @abstractmethod
    def _free_worker(self) -> Any:
        """Return a worker that is ready; None where there is none yet."""

    @abstractmethod
    def _is_idle(self, worker: Any) -> None:
        """Note that a worker has ended its job."""

    @abstractmethod
    def _send(self, worker: Any, job: Job) -> None:
        """Give a worker its job."""

    @abstractmethod
    def _receive(self, wait_s: float) -> list[tuple[Any, Any]]:
        """Wait for messages of workers and return them: an event's name and details, or `Lost`."""

    @abstractmethod
    def _ask_to_stop(self, worker: Any) -> None:
        """Ask a worker to stop its job as soon as nothing is lost; may be called again."""

    @abstractmethod
    def _kill(self, worker: Any) -> None:
        """End a worker at once."""
