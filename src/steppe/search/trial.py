"""One trial of a search: an ordinary run that is watched, given up when it falls behind, and never out of its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from steppe import cost, models
from steppe.config import DataConfig, ModelConfig, RunConfig
from steppe.data import Dataset, Keeping
from steppe.errors import Interrupted, SteppeError
from steppe.jobs import Job, Link
from steppe.runs import Observer, Run
from steppe.search.journal import join_journal
from steppe.studies.costs import describe_training
from steppe.train import train

if TYPE_CHECKING:
    import optuna

State = Literal["complete", "pruned", "late", "failed"]

VAL_EXAMPLES = 1000
"""Trials are compared by about so many validation images at most, and see no others: evaluating is not learning."""

MARKS = 10
"""Trials are compared at each of so many parts of their budget, from the third on."""

Report = Callable[[float, float], bool]
"""Told the share of the budget spent and the score so far; True gives the trial up."""


class GivenUp(Interrupted):
    """The trial falls behind others that spent as much."""


class Late(Interrupted):
    """The time of the whole search is over."""


@dataclass(frozen=True)
class Outcome:
    """How a trial ended.

    Args:
        state: complete; pruned, when it fell behind; late, when its time was over; failed.
        score: of the validation images, see `score_of`; None without an epoch.
        wall_s: seconds it took altogether.
        factor: seconds of the loop, evaluation and all, for each second of training; None where it is not known.
        fixed_s: seconds outside the loop: building, compiling, writing.
        reason: why it failed.
        val_accuracy: after its last epoch; None without one.
        gradients: that it had evaluated then.
    """

    state: State
    score: float | None
    wall_s: float
    factor: float | None = None
    fixed_s: float = 0.0
    reason: str = ""
    val_accuracy: float | None = None
    gradients: float = 0.0


def score_of(record: dict[str, Any]) -> float:
    """What a search maximises: validation accuracy; among equals, the smaller validation loss."""
    return float(record["val_accuracy"]) - 1e-3 * min(float(record["val_loss"]), 10.0)


@dataclass(frozen=True)
class TrialSettings:
    """What the job of a trial needs beside its configuration.

    Args:
        data: the images.
        trial: Optuna's id of the trial; None for the winner's final training, which is not given up.
        rung: of the trial.
        captured: on CUDA, record the step as a graph.
        study: Optuna's, in the process of the search; another process joins the journal.
    """

    data: DataConfig
    trial: int | None = None
    rung: int = 0
    captured: bool = False
    study: optuna.Study | None = None


def make_trial(job: Job, link: Link) -> Outcome:
    """Make a trial, in any process.

    Args:
        job: with `TrialSettings`; its folder lies in that of the search, beside the journal.
        link: asks for a stop.

    Raises:
        Interrupted: the run was stopped, and can go on.
    """
    settings: TrialSettings = job.settings
    report = None
    if settings.trial is not None:
        report = reporter(settings.study or _joined(job.folder.parent), settings)
    return run_trial(
        job.config,
        link.load(settings.data, job),
        job.folder,
        allowed_s=job.allowed_s,
        device=job.device,
        captured=settings.captured,
        keeping=job.keeping,
        report=report,
        beat=link.beat,
        stop=link.stop,
    )


def _joined(folder: Path) -> optuna.Study:
    """Open a search's journal once in a process."""
    return _joined_once(folder, (folder / "optuna.journal").stat().st_ino)


@lru_cache(maxsize=1)
def _joined_once(folder: Path, inode: int) -> optuna.Study:
    return join_journal(folder)


def reporter(study: optuna.Study, settings: TrialSettings) -> Report | None:
    """Return what tells Optuna how a trial goes, and asks whether to go on. Each rung has marks of its own."""
    if settings.trial is None:
        return None
    import optuna

    trial = optuna.Trial(study, settings.trial)
    before = set(study.get_trials(deepcopy=False)[trial.number].intermediate_values)  # told by an earlier session
    told: set[int] = set()

    def report(share: float, score: float) -> bool:
        mark = int(share * MARKS)
        if mark < 3 or mark in told:
            return False
        told.add(mark)
        step = settings.rung * (MARKS + 1) + mark
        if step not in before:
            trial.report(score, step)
        return trial.should_prune()

    return report


def run_trial(
    config: RunConfig,
    dataset: Dataset,
    folder: Path,
    *,
    allowed_s: float,
    device: str | None = None,
    captured: bool = False,
    keeping: Keeping | None = None,
    report: Report | None = None,
    beat: Callable[[], object] = lambda: None,
    stop: threading.Event | None = None,
    val_examples: int | None = None,
) -> Outcome:
    """Train a run, or go on with it, and count what its model costs. One that was given up before stays so.

    Args:
        config: the run, with a budget of seconds or of gradients.
        dataset: its images.
        folder: its folder.
        allowed_s: it is stopped when it has taken longer than this, whatever is left of its budget.
        device: by default the GPU where there is one.
        captured: on CUDA, record the step as a graph.
        keeping: how images are kept and read.
        report: told after every epoch; may give the trial up.
        beat: called after every step.
        stop: set by Ctrl-C or SIGTERM, also when the run came to its end meanwhile.
        val_examples: judge it by about so many validation images at most; by default `VAL_EXAMPLES`.

    Raises:
        Interrupted: Ctrl-C or SIGTERM; the run can go on.
    """
    began = time.monotonic()
    if known := _read_stop(folder):
        return known
    watch = _Watch(config, began + allowed_s, report, beat)
    state: State = "complete"
    reason = ""
    try:
        run = train(
            config,
            dataset,
            folder,
            device=device,
            captured=captured,
            observer=watch,
            keeping=keeping,
            stop=stop,
            val_examples=val_examples or VAL_EXAMPLES,
        )
        count_cost(run, dataset)
    except (GivenUp, Late) as error:
        state, reason = ("pruned" if isinstance(error, GivenUp) else "late"), error.what
        _note_stop(Run(folder), state, reason)
    except Interrupted:
        raise
    except SteppeError as error:
        state, reason = "failed", str(error)
    wall_s = time.monotonic() - began
    if state == "failed":
        gradients = float(_last_epoch(folder).get("gradient_evaluations", 0.0))
        return Outcome(state, None, wall_s, reason=reason, gradients=gradients)
    fixed_s = max(0.0, wall_s - watch.loop_s) if watch.factor else 0.0
    return _outcome(folder, state, reason, wall_s, watch.factor, fixed_s)


def _outcome(
    folder: Path, state: State, reason: str, wall_s: float = 0.0, factor: float | None = None, fixed_s: float = 0.0
) -> Outcome:
    """How a trial ended, with what its last epoch says."""
    last = _last_epoch(folder)
    if not last:
        return Outcome(state, None, wall_s, factor, fixed_s, reason)
    accuracy, gradients = float(last["val_accuracy"]), float(last["gradient_evaluations"])
    return Outcome(state, score_of(last), wall_s, factor, fixed_s, reason, accuracy, gradients)


def _last_epoch(folder: Path) -> dict[str, Any]:
    """The last record of a run; empty without one."""
    records = Run(folder).metrics() if (folder / "config.toml").is_file() else []
    return records[-1] if records else {}


class _Watch(Observer):
    """Sees to it that a trial does not outstay its time, and measures what its time went to."""

    def __init__(self, config: RunConfig, deadline: float, report: Report | None, beat: Callable[[], object]) -> None:
        self.budget, self.deadline, self.report, self.beat = config.budget, deadline, report, beat
        self.loop_began = 0.0
        self.loop_s = 0.0
        self.factor: float | None = None
        self.resumed = False

    def start(self, run: Run, total_epochs: float, done_epochs: float) -> None:
        self.loop_began = time.monotonic()
        self.resumed = done_epochs > 0

    def step(self, epochs: float) -> None:
        self.beat()
        if time.monotonic() > self.deadline:
            raise Late("stopped: the time of the search is over")

    def epoch(self, record: dict[str, Any]) -> None:
        self.loop_s = time.monotonic() - self.loop_began
        if not self.resumed and record["time_s"] > 0:
            self.factor = max(1.0, self.loop_s / record["time_s"])
        share = self._share(record)
        if self.report and share < 1 and self.report(share, score_of(record)):
            spent = f"{record['gradient_evaluations']:g} gradients of {self.budget.gradient_evaluations}"
            if self.budget.seconds is not None:
                spent = f"{record['time_s']:.1f} s of {self.budget.seconds:g}"
            raise GivenUp(f"given up after {spent}: behind the other trials at {record['val_accuracy']:.2%} validation")

    def _share(self, record: dict[str, Any]) -> float:
        """The share of the budget that is spent; all of it where what is left may not pay for a step of SAM."""
        if self.budget.seconds is not None:
            return float(record["time_s"]) / self.budget.seconds
        assert self.budget.gradient_evaluations is not None
        spent, whole = float(record["gradient_evaluations"]), self.budget.gradient_evaluations
        return spent / whole if whole - spent >= 2 else 1.0


def count_cost(run: Run, dataset: Dataset) -> None:
    """Add what is counted, not measured: parameters, FLOPs, the speed of training. Flatness waits for the best run."""
    if "parameters" not in run.read_or_empty("cost.json"):
        shape = (dataset.channels, dataset.image_size, dataset.image_size)
        found = {**_counts(run.config.model, shape, len(dataset.classes)), "training": describe_training(run)}
        with run.lock():
            run.write("cost.json", {**run.read_or_empty("cost.json"), **found})


@lru_cache(maxsize=100)
def _counts(config: ModelConfig, shape: tuple[int, int, int], classes: int) -> dict[str, int]:
    with torch.random.fork_rng(devices=[]):
        model = models.build(config, image_size=shape[1], channels=shape[0], classes=classes, load=False)
    return {
        "parameters": cost.count_parameters(model),
        "trained_parameters": cost.count_parameters(model, trained=True),
        "flops_per_image": cost.count_flops(model, shape),
    }


def _note_stop(run: Run, state: State, reason: str) -> None:
    """Say in the folder why the run ends here, and drop its checkpoint: nobody goes on with it."""
    with run.lock():
        run.write("summary.json", {"status": "stopped", "trial": state, "reason": reason})
        run.checkpoint.unlink(missing_ok=True)


def _read_stop(folder: Path) -> Outcome | None:
    """How a trial ended that was stopped for good, should a kill have come before that could be told to Optuna."""
    if not (folder / "config.toml").is_file():
        return None
    run = Run(folder)
    noted = run.read_or_empty("summary.json")
    if noted.get("trial") not in ("pruned", "late"):
        return None
    run.checkpoint.unlink(missing_ok=True)
    return _outcome(folder, noted["trial"], str(noted.get("reason", "")))
