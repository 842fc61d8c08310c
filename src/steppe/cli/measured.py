"""What `steppe evaluate` and `steppe geometry` share: what is measured, how it is shown, and their common flags."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from steppe.cli.measuring_progress import MeasuringProgress, figures_of, first_numbers, say
from steppe.cli.place import (
    CacheOption,
    DataRootOption,
    DeviceOption,
    Keep,
    KeepOption,
    MemoryOption,
    gibibytes,
)
from steppe.cli.show import JsonOption, ReadingProgress, console, errors, print_json, progress_bar
from steppe.config.lookup import check_data_name, check_model_name, check_weights
from steppe.config.spelling import spell_data, spell_model
from steppe.errors import ConfigError, DataError, MeasureError, RunError, SteppeError
from steppe.runs import Run, find_runs

if TYPE_CHECKING:
    from steppe.measuring import Measure
    from steppe.studies.subjects import Subject

_SET = "change a setting that --list shows; may be given several times"
_WITH = "a second run: the loss on the way to it, or attacks made for it that are tried here"
RunFolders = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="RUN", help="run folders, or folders that hold some; or none, with --model, --weights and --data"
    ),
]
Only = Annotated[str | None, typer.Option(help="measure these alone: names from --list, with commas between")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="MEASURE.KEY=VALUE", help=_SET)]
Quick = Annotated[bool, typer.Option("--quick", help="fewer points and images: for a first look, or a CPU")]
Again = Annotated[bool, typer.Option("--again", help="measure again even where results with equal settings exist")]
Listing = Annotated[bool, typer.Option("--list", help="list the measures and their settings, and stop")]
With = Annotated[Path | None, typer.Option("--with", metavar="RUN", help=_WITH)]
Model = Annotated[str | None, typer.Option(help="without a run: a model's name, ours or timm's")]
Weights = Annotated[str | None, typer.Option(help="its weights: a file, timm, timm:NAME or hf-hub:NAME")]
Data = Annotated[str | None, typer.Option(help="a data set with the classes these weights know")]
ImageSize = Annotated[int | None, typer.Option(min=4, max=1024, help="side of its images; default: the data's own")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="without a run: where results go")]
BatchSize = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="images at a time; halved where memory runs out  \\[default: 512; on a CPU as many as its cache holds]",
    ),
]


def print_measures(table: Mapping[str, Measure]) -> None:
    """List measures with their settings, and what each may be."""
    from steppe.measuring.values import show_allowed

    for name, measure in table.items():
        about = measure.about + ("" if measure.by_default else " (when asked for)")
        console.print(Text.assemble((name, "bold"), f"  {about}"), soft_wrap=True)
        shown = Table.grid(padding=(0, 2))
        for key, value in measure.defaults.items():
            text = (
                f"{value:.4g}"
                if isinstance(value, float)
                else str(value).lower()
                if isinstance(value, bool)
                else str(value)
            )
            quick = f"  (--quick: {measure.quick[key]:g})" if key in measure.quick else ""
            allowed = show_allowed(measure.values_of(key))
            shown.add_row(Text(f"    {key}={text}{quick}"), Text(allowed, style="dim"))
        if measure.defaults:
            console.print(shown)


def _measure_values(name: str, measure: Measure) -> dict[str, Any]:
    """A measure in plain values: what `--list` says of it."""
    from steppe.measuring.values import show_allowed

    settings = {
        key: {"default": value, "quick": measure.quick.get(key, value), "allowed": show_allowed(measure.values_of(key))}
        for key, value in measure.defaults.items()
    }
    return {"measure": name, "what it is": measure.about, "by_default": measure.by_default, "settings": settings}


def measuring_command(
    name: str,
    about: str,
    file: str,
    table: Callable[[], Mapping[str, Measure]],
    headlines: Mapping[str, str],
    draw: Callable[[Subject, dict[str, Any]], int],
) -> Callable[..., None]:
    """Make a command that measures: `steppe evaluate` and `steppe geometry` differ in what is given here.

    Args:
        name: the command's.
        about: its help.
        file: where results go, in each run folder.
        table: gives the measures; called when they are needed, since importing them takes a second.
        headlines: measure -> paths of the figures that are printed, dots between.
        draw: draws what a file holds, and gives the number of figures.
    """

    def command(
        runs: RunFolders = None,
        only: Only = None,
        set_: Set = None,
        quick: Quick = False,
        again: Again = False,
        list_: Listing = False,
        with_: With = None,
        model: Model = None,
        weights: Weights = None,
        data: Data = None,
        image_size: ImageSize = None,
        out: Out = None,
        data_root: DataRootOption = None,
        device: DeviceOption = None,
        batch_size: BatchSize = None,
        keep: KeepOption = Keep.auto,
        cache: CacheOption = None,
        memory_limit: MemoryOption = None,
        json: JsonOption = False,
    ) -> None:
        elsewhere = {
            "model": model and spell_model(model),
            "weights": weights,
            "data": data and spell_data(data),
            "image_size": image_size,
            "out": out,
        }
        if not list_:
            _look(runs or [], with_, elsewhere, data_root)
        from steppe.data import Keeping
        from steppe.data import data_root as root_of
        from steppe.measuring import change_settings, choose
        from steppe.studies.measured import add_results

        measures = table()
        if list_:
            if json:
                print_json([_measure_values(name, measure) for name, measure in measures.items()])
            else:
                print_measures(measures)
            return
        chosen, changed = choose(measures, only), change_settings(measures, set_ or [])
        if with_ is not None and only is None and "between" in measures:
            chosen["between"] = measures["between"]
        for unused in (one for one in changed if one not in chosen):
            say(f"note: {unused} is not measured here, so its settings change nothing")
        options: dict[str, Any] = {"strict": only is not None, "quick": quick, "again": again, "batch_size": batch_size}
        keeping = Keeping(keep.value, gibibytes(memory_limit), cache)
        found: dict[str, dict[str, Any]] = {}
        rows: list[dict[str, Any]] = []
        failures: dict[str, list[SteppeError]] = {}
        with progress_bar() as bar:
            where = {"data_root": data_root, "device": device, "progress": ReadingProgress(bar), "keeping": keeping}
            for subject in _subjects(runs, elsewhere, where, failures):
                notify = MeasuringProgress(bar, headlines)
                refused: dict[str, SteppeError] = {}
                options |= {"data_root": root_of(data_root), "refused": refused, "notify": notify}
                try:
                    second = _other(with_, subject, device)
                    with notify:
                        results = add_results(subject, file, chosen, changed, other=second, **options)
                except (RunError, DataError, MeasureError) as error:  # in use by another, or --with does not fit it
                    say(f"passed over: {error.what}")
                    failures[str(subject.folder)] = [_named(error, subject.folder)]
                    continue
                if refused:
                    named = [_named(error, subject.folder, name) for name, error in refused.items()]
                    failures[str(subject.folder)] = named
                found[str(subject.folder)] = results
                say(f"results: {subject.folder / file}")
                drawn = subject.folder / "figures" if draw(subject, results) else None
                if drawn:
                    say(f"figures: {drawn}")
                made = {"results": subject.folder / file, "figures": drawn}
                told = {"measures": notify.shown, "passed_over": notify.passed_over}
                rows.append({"run": subject.folder, **made, **told})
        if json and rows:
            failed = {run: [error.what for error in some] for run, some in failures.items()}
            print_json({"rows": rows, "failed": failed})
        elif len(found) > 1:
            _print_side_by_side(found, chosen, headlines)
        _raise(failures, len({*found, *failures}))

    command.__name__, command.__doc__ = name, about
    return command


def _subjects(
    runs: list[Path] | None,
    elsewhere: dict[str, Any],
    where: dict[str, Any],
    failures: dict[str, list[SteppeError]],
) -> Iterator[Subject]:
    """Open what is to be measured, one after the other.

    Of several, one that cannot be opened does not keep the others from being measured. It is a failure if its folder
    was named, and a note if it was found in one.
    """
    from steppe.studies.subjects import open_model, open_run

    if not runs:
        parts = (elsewhere["model"], elsewhere["data"])
        folder = Path("measured") / "-".join(part.replace("/", "_").replace(":", "_") for part in parts)
        folder, size = elsewhere["out"] or folder, elsewhere["image_size"]
        name, weights, data = (str(elsewhere[key]) for key in ("model", "weights", "data"))
        yield open_model(name, weights, data, folder, image_size=size, **where)
        return
    if len(runs) == 1 and not _holds_runs(runs[0]):
        yield open_run(runs[0], **where)
        return
    named = {path.resolve() for path in runs}
    skipped: list[str] = []
    measured, last = 0, None
    for run in find_runs(runs, skipped):
        try:
            known = last.dataset if last is not None and Run(last.folder).config.data == run.config.data else None
            last = open_run(run.path, **where, dataset=known)
        except (RunError, DataError, MeasureError) as error:
            if run.path.resolve() in named:
                failures[str(run.path)] = [_named(error, run.path)]
            else:
                errors.print(f"passed over {run.path}: {error.what}", markup=False, soft_wrap=True)
            continue
        say(f"run {run.path}")
        measured += 1
        yield last
    for name in skipped:
        errors.print(f"passed over {name}", markup=False, soft_wrap=True)
    if not measured and not failures:
        folders = ", ".join(map(str, runs))
        raise MeasureError("no run here can be measured", where=folders, fix="see the reasons above")


def _named(error: SteppeError, run: Path, measure: str = "") -> SteppeError:
    """An error that says which run it is about, and which measure."""
    what = f"{measure} could not be measured: {error.what}" if measure else error.what
    where = error.where or str(run)
    return type(error)(what, where=where if str(run) in where else f"{run}: {where}", fix=error.fix)


def _raise(failures: Mapping[str, list[SteppeError]], runs: int) -> None:
    """End in an error if something could not be measured; of several, one line each before it."""
    every = [error for some in failures.values() for error in some]
    if not every:
        return
    if runs == len(every) == 1:
        raise every[0]
    for error in every:
        fix = f" ({error.fix})" if error.fix else ""
        errors.print(f"{error.where}: {error.what}{fix}", markup=False, soft_wrap=True)
    what = f"{len(failures)} of {runs} runs could not be measured as asked"
    what = what if runs > 1 else f"{len(every)} measures could not be made"
    raise MeasureError(what, fix="see the reasons above")


def _look(runs: list[Path], other: Path | None, elsewhere: Mapping[str, Any], data_root: Path | None) -> None:
    """Tell a name that means nothing before anything is opened, or takes seconds to import."""
    _check_subjects(runs, elsewhere)
    if not runs:
        check_model_name(elsewhere["model"])
        check_data_name(elsewhere["data"], data_root)
        check_weights(elsewhere["weights"], data_root)
    for path in runs:
        if not path.is_dir():
            raise RunError("there is no such folder", where=str(path), fix="check the path")
    alone = [path for path in runs if len(runs) == 1 and not _holds_runs(path)]
    for path in [*alone, *([other] if other else [])]:
        _ = Run(path).config


def _check_subjects(runs: list[Path], elsewhere: Mapping[str, Any]) -> None:
    """Refuse a model beside runs, and neither."""
    if not runs and not (elsewhere["model"] and elsewhere["weights"] and elsewhere["data"]):
        fix = "name a run folder, or give --model, --weights and --data"
        raise ConfigError("there is nothing to measure", fix=fix)
    if runs and any(value is not None for value in elsewhere.values()):
        fix = "name a run folder, or a model with --model, --weights and --data"
        raise ConfigError("a run has its own model, weights, data and folder", fix=fix)


def _holds_runs(path: Path) -> bool:
    """Whether this is a folder of runs, and not a run."""
    return path.is_dir() and not (path / "config.toml").is_file() and any(path.rglob("config.toml"))


def _other(path: Path | None, subject: Subject, device: str | None) -> Subject | None:
    """The second run, on the data of the first."""
    if path is None:
        return None
    from steppe.studies.subjects import open_run

    return open_run(path, device=device, dataset=subject.dataset)


def short_names(paths: list[str]) -> dict[str, str]:
    """Each path's last parts, as many as tell them apart.

    Args:
        paths: all different.
    """
    parts = {path: Path(path).parts for path in paths}
    for count in range(1, max(map(len, parts.values())) + 1):
        names = {path: "/".join(words[-count:]) for path, words in parts.items()}
        if len(set(names.values())) == len(names):
            return names
    return {path: path for path in paths}


def _print_side_by_side(
    found: Mapping[str, dict[str, Any]], chosen: Mapping[str, Measure], headlines: Mapping[str, str]
) -> None:
    """The first figure of every measure, a line for each figure or for each run, whichever are more.

    The centre of a landscape is left out: it is the loss of the weights, which tells nothing of the landscape.
    """
    names = short_names(list(found))
    columns: dict[str, dict[str, float]] = {}
    for name in chosen:
        if headlines.get(name) == "centre":
            continue
        for run, results in found.items():
            result = results.get(chosen[name].key or name)
            paths = headlines.get(name) or first_numbers(result or {})
            values = figures_of(result, paths) if isinstance(result, dict) else {}
            for figure, value in list(values.items())[:1]:
                columns.setdefault(f"{name}: {figure}", {})[run] = value
    rows = [["run", *columns]]
    for run in found:
        cells = [f"{values[run]:.4g}" if run in values else "–" for values in columns.values()]
        rows.append([names[run], *cells])
    if len(found) <= len(columns):
        rows = [list(row) for row in zip(*rows, strict=True)]
        rows[0][0] = ""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))]
        say("  ".join(cells))
