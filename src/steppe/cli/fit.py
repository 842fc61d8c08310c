"""`steppe fit`: the best model within a given time."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress

from steppe.cli.place import (
    AddressOption,
    CacheOption,
    DataRootOption,
    DeviceOption,
    Keep,
    KeepOption,
    MemoryOption,
    OnOption,
    Place,
    ReadersOption,
    ResidentOption,
    check_place,
    gibibytes,
)
from steppe.cli.show import JsonOption, ReadingProgress, console, print_json, progress_bar
from steppe.config import DataConfig, RunConfig, parse

if TYPE_CHECKING:
    from steppe.search.trial import Outcome


def fit(
    data: Annotated[str, typer.Argument(help="a name from `steppe data`, a folder of class folders, or a .npz")],
    budget: Annotated[
        str, typer.Option(help="time for everything, such as 90s, 20m or 1h30m; or, without a clock, 200epochs")
    ] = "20m",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="the search's folder  \\[default: runs/fit-<data>]")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="try only this model; may be given several times  \\[default: those that suit the images]"),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="also try fine-tuning and a frozen body from these; as `weights` of `steppe train`"),
    ] = None,
    image_size: Annotated[int | None, typer.Option(help="side in pixels  \\[default: the data's own]")] = None,
    seed: Annotated[int, typer.Option(min=0, help="seed of the search and of every run")] = 0,
    data_root: DataRootOption = None,
    device: DeviceOption = None,
    on: OnOption = Place.here,
    address: AddressOption = None,
    keep: KeepOption = Keep.auto,
    cache: CacheOption = None,
    memory_limit: MemoryOption = None,
    readers: ReadersOption = 0,
    resident: ResidentOption = None,
    json: JsonOption = False,
) -> None:
    """Find the best model for some images within a budget, and train it. The same command again goes on."""
    began = _start_of_this_command()
    from steppe.search.budget import parse_budget

    check_place(on, address)
    given = parse_budget(budget)
    values = {"name": data} | ({} if image_size is None else {"image_size": image_size})
    about_data = parse(DataConfig, values, where="the command line")
    folder = out or Path("runs") / f"fit-{_slug(data)}"

    from steppe.data import Keeping
    from steppe.report import print_table, row_values, summarise, write_report
    from steppe.runs import read_json
    from steppe.search.fitting import Wanted, fit

    with progress_bar() as bar:
        found = fit(
            Wanted(about_data, tuple(model or ()), weights, seed),
            given,
            folder,
            data_root=str(data_root) if data_root else None,
            device=device,
            keeping=Keeping(keep.value, gibibytes(memory_limit), cache, readers, resident),
            progress=ReadingProgress(bar),
            notify=_Shown(bar, folder),
            began=began,
            on_ray=on is Place.ray,
            address=address,
        )
    study = read_json(folder / "study.json")
    finished = [run for run in found.runs if run.finished]
    rows = summarise(finished, study)
    if not json:
        print_table(rows[:8], console)
    page = write_report(found.runs, folder / "report.html", title=study["title"], study=study)
    found.clock.beat(now=True)
    took_s = found.clock.elapsed_s
    if json:
        files = {"folder": folder, "best": found.best.path, "pareto": folder / "pareto.csv", "report": page}
        times = {"took_s": round(took_s, 2), found.budget.key("budget"): found.budget.amount}
        times |= {} if found.budget.timed else {"spent_epochs": found.spent}
        print_json({"answer": found.answer, **files, **times, "rows": [row_values(row) for row in rows]})
        return
    console.print(found.answer, markup=False, soft_wrap=True, style="bold")
    console.print(f"best run: {found.best.path}", markup=False, soft_wrap=True)
    console.print(f"accuracy against cost: {folder / 'pareto.csv'}", markup=False, soft_wrap=True)
    console.print(f"report: {page}", markup=False, soft_wrap=True)
    told = f"took {took_s:.1f} of {found.budget.amount:g} s"
    if not found.budget.timed:
        told = f"spent {found.spent:.1f} of {found.budget}, in {took_s:.1f} s"
    console.print(told, markup=False)


class _Shown:
    """Prints a line for every trial, or moves a bar."""

    def __init__(self, bar: Progress | None, folder: Path) -> None:
        self.bar, self.folder, self.count = bar, folder, 0
        console.print(f"search in {folder}", markup=False, soft_wrap=True)
        self.task = bar.add_task("searching", total=None) if bar else None

    def __call__(self, event: str, config: RunConfig, outcome: Outcome | None) -> None:
        from steppe.search.space import describe

        words = describe(config)
        length = f"{words['seconds']} s" if "seconds" in words else f"{words['gradients']} gradients"
        name = f"{words['model']} · {words['training']} · {length}"
        if event == "final":
            self._say(f"training the winner for {length}: {name} ({words['settings']})")
        if outcome is None:
            if self.bar and self.task is not None:
                self.bar.update(self.task, description=name)
            return
        self.count += 1
        score = "" if outcome.val_accuracy is None else f", {outcome.val_accuracy:.1%} validation"
        how = {"complete": "", "pruned": ": given up", "late": ": out of time", "failed": f": {outcome.reason}"}
        self._say(f"[{self.count}] {name}{how[outcome.state]}{score}")

    def _say(self, text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)


def _slug(data: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "_", Path(data).name).strip("_.") or "data"


def _start_of_this_command() -> float:
    """When this process began, on the monotonic clock: loading Python and torch is part of the time somebody waits."""
    now = time.monotonic()
    program = Path(sys.argv[0]).parts[-2:]
    if program[-1:] != ("steppe",) and program != ("steppe", "__main__.py"):  # a program that has lived for a while
        return now
    try:
        fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return now
    return now - max(0.0, age)
