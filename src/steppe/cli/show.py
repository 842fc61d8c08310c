"""How progress looks: a bar on a terminal, one plain line an epoch elsewhere."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import PurePath
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from steppe.config import PlannedRun
from steppe.runs import Observer, Run, Status

EPOCH_SILENCE_S = 60.0
"""Off a terminal, a line tells how far an epoch is when it takes longer than this."""
FIRST_S, EVERY_S = 2.0, 10.0
"""Off a terminal, something slow prints a line after so long, and then so often."""


class _Console(Console):
    """A console that goes on in silence when its reader (`| head`) has left: training is not for the screen alone."""

    def on_broken_pipe(self) -> None:
        """Send what follows nowhere."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


_quiet = os.environ.get("RANK", "0") != "0"  # of the processes that torchrun started the first one speaks
console = _Console(highlight=False, quiet=_quiet)
errors = _Console(stderr=True, highlight=False, quiet=_quiet)
_document = _Console(highlight=False, markup=False, emoji=False, quiet=_quiet)


def _keep_stdout(context: typer.Context, asked: bool) -> bool:
    """With --json the standard output is for one document: whatever else is printed goes to the standard error."""
    if asked:
        _document.file = sys.stdout
        context.with_resource(_messages_on_stderr())
    return asked


@contextmanager
def _messages_on_stderr() -> Iterator[None]:
    """Turn what is printed to the standard error: in colours where that is a terminal, whatever the output is.

    rich looks for colours once, when a console is made, and the console's file was the standard output then.
    """
    before, console._color_system = console._color_system, errors._color_system
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        console._color_system = before


JsonOption = Annotated[
    bool, typer.Option("--json", callback=_keep_stdout, help="print JSON instead of a table; messages go to stderr")
]


def print_json(value: Any) -> None:
    """Print the document of a command that was asked for --json: nothing is wrapped, shortened or coloured."""
    text = json_text(value)
    try:
        text.encode(_document.encoding)
    except UnicodeEncodeError:
        text = json_text(value, ascii_alone=True)
    _document.print(text, soft_wrap=True)


ForceOption = Annotated[
    bool, typer.Option("--force", help="replace the file of --out whatever it is; else only an earlier one of its kind")
]


def json_text(value: Any, *, ascii_alone: bool = False) -> str:
    """A value as readable JSON: paths as text, NaN and infinity as null."""
    text = json.dumps(_plain(value), indent=2, ensure_ascii=ascii_alone, allow_nan=False)
    return text.encode("utf-8", "backslashreplace").decode()  # a file's name may be no Unicode: as JSON escapes it


def _plain(value: Any) -> Any:
    """What JSON can hold: paths as text, numbers that are not finite as None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, PurePath) else value


def epoch_line(record: dict[str, Any], total: float | None) -> str:
    """One epoch in one line; of a run with a budget of seconds nobody knows how many there will be."""
    stage = f"{record['stage']}  " if record.get("stage") else ""
    of_all = "" if total is None else f"/{total:g}"
    return (
        f"epoch {record['epoch']:>3}{of_all}  {stage}train loss {record['train_loss']:.4f}  "
        f"{_judged(record)}lr {record['lr']:.2e}  {record['time_s']:.1f} s"
    )


def _judged(record: dict[str, Any]) -> str:
    """The validation figures of an epoch; its training accuracy where the run learns from the validation images."""
    if record["val_loss"] is None:
        return f"train acc {_percent(record['train_accuracy']):>6}  "
    return f"val loss {record['val_loss']:.4f}  val acc {_percent(record['val_accuracy']):>6}  "


def _percent(accuracy: float | None) -> str:
    """An accuracy, or a dash while there is no classifier."""
    return "–" if accuracy is None else f"{accuracy:.2%}"


class Ticker:
    """Says when a plain line about something slow is due: two seconds after it began, then every ten."""

    def __init__(self) -> None:
        self.next: float | None = None

    def is_due(self) -> bool:
        """Whether to print one now; the first question is the beginning."""
        now = time.monotonic()
        if self.next is None:
            self.next = now + FIRST_S
        if now < self.next:
            return False
        self.next = now + EVERY_S
        return True


class TrainingProgress(Observer):
    """Shows one run's training."""

    def __init__(self, bar: Progress | None) -> None:
        self.bar = bar
        self.total_epochs: float | None = 0.0
        self.budget_s: float | None = None
        self.spent_s, self.since = 0.0, 0.0
        self.task: TaskID | None = None
        self.final: TaskID | None = None
        self.ticker, self.said_at = Ticker(), time.monotonic()

    def start(self, run: Run, total_epochs: float, done_epochs: float) -> None:
        """Say which run it is, and whether it goes on."""
        self.budget_s = run.config.budget.seconds
        self.total_epochs = None if self.budget_s else total_epochs
        again = f", going on after epoch {done_epochs:g}" if done_epochs else ""
        console.print(f"run {run.path}{again}", markup=False, soft_wrap=True)
        records = run.metrics()
        self.spent_s, self.since = float(records[-1].get("time_s", 0.0)) if records else 0.0, time.monotonic()
        if self.bar:
            if self.task is not None:  # begun again, with less memory
                self.bar.remove_task(self.task)
            total, done = (self.budget_s, self.spent_s) if self.budget_s else (total_epochs, done_epochs)
            self.task = self.bar.add_task("training", total=total, completed=done)  # type: ignore[arg-type]

    def step(self, epochs: float) -> None:
        """Move the bar: by epochs, or by seconds where they are the budget."""
        if self.bar and self.task is not None:
            done = epochs
            if self.budget_s:
                done = self.spent_s + time.monotonic() - self.since
            self.bar.update(self.task, completed=min(done, self.budget_s or self.total_epochs or done))
        elif not self.bar and time.monotonic() - self.said_at >= EPOCH_SILENCE_S:
            self.said_at = time.monotonic()
            of = "" if self.total_epochs is None else f" of {self.total_epochs:g}"
            console.print(f"epoch {epochs:.2f}{of}", soft_wrap=True)

    def epoch(self, record: dict[str, Any]) -> None:
        """Print the epoch, or write it beside the bar."""
        self.spent_s, self.since = float(record["time_s"]), time.monotonic()
        self.said_at = time.monotonic()
        if self.bar and self.task is not None:
            self.bar.update(self.task, description=_judged(record).rstrip())
        else:
            console.print(epoch_line(record, self.total_epochs), markup=False, soft_wrap=True)

    def evaluate(self, done: int, total: int) -> None:
        """Show the final evaluation: a bar of its own, or a line now and then."""
        if self.bar:
            if self.final is None:
                end_bar(self.bar, self.task)
                self.final = self.bar.add_task("final evaluation", total=total)
            self.bar.update(self.final, completed=done)
        elif self.ticker.is_due():
            console.print(f"final evaluation: {done} of {total} images", soft_wrap=True)

    def say(self, text: str) -> None:
        """Print a note."""
        console.print(f"note: {text}", markup=False, soft_wrap=True)

    def end(self, run: Run, status: Status) -> None:
        """Bring the bars to their ends, wherever the training has come to its own."""
        if self.bar and status == "finished":
            end_bar(self.bar, self.task)
            end_bar(self.bar, self.final)


class StudyProgress:
    """Shows how a study goes: a bar over its gradient evaluations, or a line for every run that ends."""

    def __init__(self, bar: Progress | None, runs: int) -> None:
        self.bar, self.runs, self.ended = bar, runs, 0
        self.began: dict[str, float] = {}
        self.reasons: set[str] = set()
        self.task = bar.add_task("runs", total=runs) if bar else None

    def __call__(self, event: str, run: PlannedRun, details: dict[str, Any]) -> None:
        """Take an event of `run_study`."""
        name = " ".join([*run.labels.values(), f"seed {run.config.seed}"]) or run.config.run_id
        if event == "start":
            self.began[run.config.run_id] = time.monotonic()
        elif event == "epoch" and self.bar and self.task is not None:
            text = f"{name}: epoch {details['epoch']}, {_judged(details).rstrip()}"
            self.bar.update(self.task, description=text)
        elif event == "note":
            console.print(f"{name}: note: {details['text']}", markup=False, soft_wrap=True)
        elif event in ("done", "failed", "kept"):
            self.ended += 1
            if self.bar and self.task is not None:
                self.bar.update(self.task, completed=self.ended)
            if event == "failed":
                why = " for the same reason" if details["reason"] in self.reasons else f": {details['reason']}"
                self.reasons.add(details["reason"])
                console.print(f"{name} failed{why}", markup=False, style="red", soft_wrap=True)
            elif not self.bar:
                took = f" in {time.monotonic() - self.began[run.config.run_id]:.1f} s" if event == "done" else ""
                what = {"done": "done", "kept": "finished before"}[event]
                console.print(f"[{self.ended}/{self.runs}] {name}: {what}{took}", markup=False, soft_wrap=True)


class ReadingProgress:
    """Shows how a slow reading of data goes."""

    def __init__(self, bar: Progress | None, on: Console = console) -> None:
        self.bar, self.on, self.said, self.what = bar, on, 0.0, ""
        self.task: TaskID | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        """Take a report of `steppe.data.load`."""
        if self.bar:
            if self.task is not None and what != self.what:
                self._end()
            if self.task is None:
                self.task, self.what = self.bar.add_task(what, total=total), what
            self.bar.update(self.task, completed=done, total=total)
            if done >= total:
                self._end()
        elif time.monotonic() - self.said > 2:
            if self.said:
                self.on.print(f"{what}: {done} of {total}")
            self.said = time.monotonic()

    def _end(self) -> None:
        if self.bar and self.task is not None:
            end_bar(self.bar, self.task)
            self.bar.update(self.task, visible=False)
            self.task = None


def end_bar(bar: Progress, task: TaskID | None) -> None:
    """Draw a bar full, at what was done: a budget may end before what was expected of it.

    Args:
        bar: that shows it.
        task: which; None where it was not begun.
    """
    known = next((one for one in bar.tasks if one.id == task), None)
    if known is None:
        return
    if not known.finished:
        done = known.completed or known.total or 1
        bar.update(known.id, total=done, completed=done)
    bar.refresh()


@contextmanager
def progress_bar(on: Console = console) -> Iterator[Progress | None]:
    """A bar on a terminal, None elsewhere; on `errors` where the standard output is for other programs."""
    if not on.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=on, transient=True) as bar:
        yield bar
