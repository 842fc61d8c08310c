"""`steppe fit`: the best model within a given time."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Self

import typer
from rich.status import Status
from rich.text import Text

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
from steppe.cli.show import JsonOption, console, print_json
from steppe.config import DataConfig, parse, search_folder
from steppe.config.lookup import check_data_name, check_device_name, check_model_name, check_weights
from steppe.config.spelling import spell_model
from steppe.search.budget import DEFAULT, Budget, parse_budget
from steppe.search.observer import SearchObserver


def fit(
    data: Annotated[str, typer.Argument(help="a name from `steppe data`, a folder of class folders, or a .npz")],
    budget: Annotated[
        str, typer.Option(help="time for everything, such as 90s, 20m or 1h30m; or, without a clock, 200epochs")
    ] = DEFAULT,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="the search's folder  \\[default: runs/fit-<data>]")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="try only this model; may be given several times  \\[default: those that suit the images]"),
    ] = None,
    weights: Annotated[
        str,
        typer.Option(
            help="pretrained weights: auto, none (train from scratch), a name of `steppe weights list`, a file"
        ),
    ] = "auto",
    image_size: Annotated[int | None, typer.Option(help="side in pixels  \\[default: chosen by the search]")] = None,
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
    check_place(on, address)
    given = parse_budget(budget)
    values = {"name": data} | ({} if image_size is None else {"image_size": image_size})
    about_data = parse(DataConfig, values, where="the command line")
    folder = out or search_folder(about_data.name)
    check_data_name(about_data.name, data_root)  # mistakes are told before what takes seconds to import
    names = tuple(map(spell_model, model or ()))
    for name in names:
        check_model_name(name)
    if weights not in ("auto", "none"):
        check_weights(weights, data_root)
    if device:
        check_device_name(device)

    from steppe.data import Keeping
    from steppe.report import print_table, row_values, summarise, write_report
    from steppe.runs import read_json
    from steppe.search.fitting import Wanted, fit

    with _Shown(folder, given, began) as shown:
        found = fit(
            Wanted(about_data, names, weights, seed),
            given,
            folder,
            data_root=str(data_root) if data_root else None,
            device=device,
            keeping=Keeping(keep.value, gibibytes(memory_limit), cache, readers, resident),
            progress=shown.read,
            observer=shown,
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


class _Shown(SearchObserver):
    """Shows how a search goes: one live line on a terminal, elsewhere one plain line a minute."""

    EVERY_S = 60.0

    def __init__(self, folder: Path, budget: Budget, began: float) -> None:
        self.budget, self.began, self.said = budget, began, time.monotonic()
        console.print(f"search in {folder}, budget {budget}", markup=False, soft_wrap=True)
        self.line = Status("", console=console, spinner="dots") if console.is_terminal else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.line:
            self.line.stop()

    def say(self, text: str) -> None:
        """Print a line."""
        console.print(text, markup=False, soft_wrap=True)

    def read(self, what: str, done: int, total: int) -> None:
        """Show how far a slow reading is."""
        self.status(time.monotonic() - self.began, "", f"{what}, {done:,} of {total:,}")

    def status(self, elapsed_s: float, best: str, now: str) -> None:
        """Renew the live line, or print one when a minute has passed."""
        spent = show_elapsed(elapsed_s, self.budget)
        text = f"[{spent}] {f'best {best} · ' if best else ''}now: {now}"
        if self.line:
            self.line.start()
            self.line.update(Text(text, no_wrap=True, overflow="ellipsis"))
        elif time.monotonic() - self.said >= self.EVERY_S:
            self.said = time.monotonic()
            self.say(text)


def show_elapsed(elapsed_s: float, budget: Budget) -> str:
    """Return the time so far beside the budget, such as "3 min 10 s of 10 min"."""
    minutes, seconds = divmod(round(elapsed_s), 60)
    spent = f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
    return f"{spent} of {budget}" if budget.timed else spent


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
