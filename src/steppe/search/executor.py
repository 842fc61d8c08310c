"""Where the trials of a search are run: here, one after the other, or elsewhere, several at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from steppe.config import RunConfig
from steppe.data import Dataset, Keeping
from steppe.errors import Interrupted
from steppe.search.trial import Outcome, Report, run_trial

if TYPE_CHECKING:
    import optuna

MARKS = 10
"""Trials are compared at each of so many parts of their budget, from the third on."""


@dataclass(frozen=True)
class Job:
    """A run to make.

    Args:
        config: the run.
        allowed_s: it is stopped when it has taken longer.
        trial: Optuna's id of the trial; None for the winner's final training, which is not given up.
        rung: of the trial.
        captured: on CUDA, record the step as a graph.
    """

    config: RunConfig
    allowed_s: float
    trial: int | None = None
    rung: int = 0
    captured: bool = False


class Executor(Protocol):
    """Takes jobs and gives outcomes."""

    def has_room(self, beat: Callable[[], None], allowed_s: float) -> bool:
        """Whether it takes another job now; while it has none, it may wait so long to be able to, calling `beat`."""

    def submit(self, job: Job) -> None:
        """Take a job."""

    def wait(self, beat: Callable[[], None]) -> list[tuple[Job, Outcome]]:
        """Wait until one is done or there is more room, calling `beat` now and then.

        Raises:
            Interrupted: Ctrl-C or SIGTERM; the runs are kept.
        """


class Here:
    """Runs trials in this process, one at a time."""

    def __init__(
        self, study: optuna.Study, dataset: Dataset, folder: Path, device: str, keeping: Keeping | None
    ) -> None:
        """Keep where and how."""
        self.study, self.dataset, self.folder, self.device, self.keeping = study, dataset, folder, device, keeping
        self.jobs: list[Job] = []
        self.stop = threading.Event()

    def has_room(self, beat: Callable[[], None], allowed_s: float) -> bool:
        """Whether nothing is under way."""
        return not self.jobs

    def submit(self, job: Job) -> None:
        """Take a job; it is begun when somebody waits for it."""
        self.jobs.append(job)

    def wait(self, beat: Callable[[], None]) -> list[tuple[Job, Outcome]]:
        """Run the next one."""
        if self.stop.is_set():  # the request came when the run before was about to end
            raise Interrupted("stopped")
        job = self.jobs.pop(0)
        outcome = run_trial(
            job.config,
            self.dataset,
            self.folder / job.config.run_id,
            allowed_s=job.allowed_s,
            device=self.device,
            captured=job.captured,
            keeping=self.keeping,
            report=reporter(self.study, job),
            beat=beat,
            stop=self.stop,
        )
        return [(job, outcome)]


def reporter(study: optuna.Study, job: Job) -> Report | None:
    """What tells Optuna how a trial goes, and asks whether to go on. Each rung has marks of its own."""
    if job.trial is None:
        return None
    import optuna

    trial = optuna.Trial(study, job.trial)
    before = set(study.get_trials(deepcopy=False)[trial.number].intermediate_values)  # told by an earlier session
    told: set[int] = set()

    def report(share: float, score: float) -> bool:
        mark = int(share * MARKS)
        if mark < 3 or mark in told:
            return False
        told.add(mark)
        step = job.rung * (MARKS + 1) + mark
        if step not in before:
            trial.report(score, step)
        return trial.should_prune()

    return report
