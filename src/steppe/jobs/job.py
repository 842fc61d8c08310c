"""A job, the link between its maker and whoever submitted it, and the protocol of executors."""

from __future__ import annotations

import math
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol

from steppe import data
from steppe.config import DataConfig, RunConfig
from steppe.data import Dataset, Keeping
from steppe.errors import Busy, Interrupted, SteppeError
from steppe.measuring import ignore

Name = Literal["epoch", "note", "done", "failed", "stopped", "busy"]
ENDS = ("done", "failed", "stopped", "busy")
"""Events that end a job."""


@dataclass(frozen=True)
class Job:
    """A run to make.

    Args:
        config: the run.
        folder: its folder.
        make: makes it, in any process: a function at the top level of a module, because pickle stores its name only.
        settings: further arguments of `make`; pickle must be able to store them.
        device: where to compute; by default the GPU where there is one.
        data_root: where named data sets live.
        keeping: where images are kept, and how they are read.
        allowed_s: the run is asked to stop after so many seconds.
        needs: another run in the same parent folder, whose weights this one starts from.
    """

    config: RunConfig
    folder: Path
    make: Callable[[Job, Link], Any]
    settings: Any = None
    device: str | None = None
    data_root: str | None = None
    keeping: Keeping = field(default_factory=Keeping)
    allowed_s: float = math.inf
    needs: str | None = None


@dataclass(frozen=True)
class Event:
    """Something that happened to a job.

    Args:
        job: the job.
        name: `epoch`; `note`; or how it ended: `done`, `failed`, `stopped` because its time was over, or `busy`
            because another process writes into its folder.
        details: the record of an epoch; the text of a note; what `make` returned; the reason of a failure.
    """

    job: Job
    name: Name
    details: Any = None


@dataclass
class Link:
    """Connect the maker of a job with whoever submitted it.

    Args:
        tell: takes the name and details of an event.
        saved: to be called when the folder could be resumed from as it is, and nothing is being written.
        beat: to be called often.
        stop: set when the maker shall stop as soon as nothing is lost.
        loaded: the images, where this process has them already.
        away: whether the folder is a copy on another machine.
    """

    tell: Callable[[Name, Any], object] = ignore
    saved: Callable[[], object] = ignore
    beat: Callable[[], object] = ignore
    stop: threading.Event = field(default_factory=threading.Event)
    loaded: Dataset | None = None
    away: bool = False

    def load(self, config: DataConfig, job: Job) -> Dataset:
        """Load the images of a job, or return those that are loaded."""
        return self.loaded or load_once(config, job.data_root, job.keeping)


class Executor(Protocol):
    """Takes jobs and reports events."""

    def has_room(self, beat: Callable[[], object] = ignore, wait_s: float = 0.0) -> bool:
        """Return whether a job submitted now begins at once.

        Args:
            beat: called while waiting.
            wait_s: while no job is under way, wait so long for a worker to be ready.
        """

    def submit(self, job: Job) -> None:
        """Take a job."""

    def wait(self, beat: Callable[[], object] = ignore) -> list[Event]:
        """Wait a moment and return what happened; call `beat` meanwhile.

        Raises:
            Interrupted: Ctrl-C or SIGTERM, once every job under way has been stopped and kept.
        """

    def dismiss(self) -> None:
        """Let idle workers go: no job will be submitted before all that are under way have ended."""


@lru_cache(maxsize=2)
def load_once(config: DataConfig, root: str | None, keeping: Keeping) -> Dataset:
    """Load a data set once in a process."""
    return data.load(config, root, keeping=keeping)


def perform(job: Job, link: Link) -> tuple[Name, Any]:
    """Make a job's run; return the name and details of the event that ends it."""
    try:
        return "done", job.make(job, link)
    except (Interrupted, KeyboardInterrupt):
        return "stopped", None
    except Busy as error:
        return "busy", str(error)
    except SteppeError as error:
        return "failed", str(error)


def perform_in_worker(job: Job, link: Link) -> tuple[Name, Any]:
    """As `perform`; a bug ends the job, not the worker."""
    try:
        return perform(job, link)
    except Exception as error:
        traceback.print_exc()
        return "failed", f"{type(error).__name__}: {error} (a bug; the traceback is in the log)"
