"""What `steppe evaluate` and `steppe geometry` share: what is measured, how it is shown, and their common flags."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress, TaskID
from rich.table import Table
from rich.text import Text

from steppe.cli.show import ReadingProgress, console, progress_bar
from steppe.errors import ConfigError

if TYPE_CHECKING:
    from steppe.measuring import Measure
    from steppe.studies.measured import Subject

RunFolder = Annotated[
    Path | None, typer.Argument(metavar="[RUN]", help="a run folder; or none, with --model, --weights and --data")
]
Only = Annotated[str | None, typer.Option(help="measure these alone: names from --list, with commas between")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="MEASURE.KEY=VALUE", help="change a setting")]
Quick = Annotated[bool, typer.Option("--quick", help="fewer points and images: for a first look, or a CPU")]
Again = Annotated[bool, typer.Option("--again", help="measure even what is there with the same settings")]
Listing = Annotated[bool, typer.Option("--list", help="list the measures and their settings, and stop")]
With = Annotated[Path | None, typer.Option("--with", metavar="RUN", help="a second run, for measures between two")]
Model = Annotated[str | None, typer.Option(help="without a run: a model's name, ours or timm's")]
Weights = Annotated[str | None, typer.Option(help="its weights: a file, timm, timm:NAME or hf-hub:NAME")]
Data = Annotated[str | None, typer.Option(help="a data set with the classes these weights know")]
ImageSize = Annotated[int | None, typer.Option(min=4, max=1024, help="side of its images; default: the data's own")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="without a run: where results go")]
DataRoot = Annotated[
    Path | None, typer.Option(help="where named data sets live  \\[default: $STEPPE_DATA, else ./data]")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …  \\[default: the GPU where there is one]")]
BatchSize = Annotated[int, typer.Option(min=1, help="images at a time; halved where memory runs out")]


class MeasuringProgress:
    """Shows which measure is being made and how far it is; each result in one line."""

    def __init__(self, bar: Progress | None, headlines: Mapping[str, str]) -> None:
        """Show on `bar`; `headlines` says which figure of a result is printed: measure -> path, dots between."""
        self.bar, self.headlines = bar, headlines
        self.tasks: dict[str, TaskID] = {}

    def __call__(self, event: str, name: str, details: dict[str, Any]) -> None:
        """Take an event of `add_results`."""
        if event == "start":
            if self.bar:
                self.tasks[name] = self.bar.add_task(name, total=None)
        elif event == "part":
            if self.bar:
                self.bar.update(self.tasks[name], completed=details["done"], total=details["total"])
        elif event == "remark":
            _print(f"note: {name}: {details['text']}")
        elif event == "left_out":
            self._end(name)
            _print(f"{name}: passed over: {details['reason']}")
        else:
            self._end(name)
            took = "found before" if event == "kept" else f"{details['time_s']:.1f} s"
            _print(f"{name}: {headline(details, self.headlines.get(name, ''))}({took})")

    def _end(self, name: str) -> None:
        if self.bar and name in self.tasks:
            self.bar.remove_task(self.tasks.pop(name))


def headline(found: Mapping[str, Any], paths: str) -> str:
    """The figures of a result that are worth a line, such as "mean 0.31  stderr 0.01  "."""
    shown = ""
    for path in paths.split():
        value: Any = found
        for word in path.split("."):
            value = value.get(word) if isinstance(value, Mapping) else None
        if isinstance(value, int | float):
            name = path.removeprefix("parts.").removesuffix(".value").replace(".", " ").replace("_", " ")
            shown += f"{name} {value:.4g}  "
    return shown


def print_measures(table: Mapping[str, Measure]) -> None:
    """List measures with their settings."""
    shown = Table("measure", "what it is", "settings", box=None, header_style="bold")
    for name, measure in table.items():
        settings = "\n".join(
            f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
            for key, value in measure.defaults.items()
        )
        about = measure.about + ("" if measure.by_default else " (when asked for)")
        shown.add_row(Text(name), Text(about), Text(settings))
    console.print(shown)


def measure(
    table: Mapping[str, Measure],
    file: str,
    headlines: Mapping[str, str],
    *,
    run: Path | None,
    only: str | None,
    changes: list[str] | None,
    quick: bool,
    again: bool,
    other: Path | None,
    model: str | None,
    weights: str | None,
    data: str | None,
    image_size: int | None,
    out: Path | None,
    data_root: Path | None,
    device: str | None,
    batch_size: int,
) -> tuple[Subject, dict[str, Any]]:
    """Open what is asked for, measure, and give the subject and all results."""
    from steppe.data import data_root as root_of
    from steppe.measuring import change_settings, choose
    from steppe.studies.measured import add_results, open_model, open_run

    chosen, changed = choose(table, only), change_settings(table, changes or [])
    if other is not None and only is None and "between" in table:
        chosen["between"] = table["between"]
    with progress_bar() as bar:
        reading = ReadingProgress(bar)
        if run is not None:
            if model or weights or data or out or image_size:
                mend = "name a run folder, or a model with --model, --weights and --data"
                raise ConfigError("a run has its own model, weights, data and folder", mend=mend)
            subject = open_run(run, data_root=data_root, device=device, progress=reading)
        elif model and weights and data:
            folder = out or Path("measured") / "-".join(
                part.replace("/", "_").replace(":", "_") for part in (model, data)
            )
            subject = open_model(
                model,
                weights,
                data,
                folder,
                image_size=image_size,
                data_root=data_root,
                device=device,
                progress=reading,
            )
        else:
            mend = "name a run folder, or give --model, --weights and --data"
            raise ConfigError("there is nothing to measure", mend=mend)
        second = None
        if other is not None:
            same = subject.dataset
            second = (str(other), open_run(other, device=device, dataset=same, data_root=data_root).model)
        found = add_results(
            subject,
            file,
            chosen,
            changed,
            strict=only is not None,
            quick=quick,
            again=again,
            batch_size=batch_size,
            data_root=root_of(data_root),
            other=second,
            notify=MeasuringProgress(bar, headlines),
        )
    _print(f"results: {subject.folder / file}")
    return subject, found


def say_figures(folder: Path, count: int) -> None:
    """Say where figures are."""
    if count:
        _print(f"figures: {folder}")


def _print(text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)
