"""`steppe study`: list, show, run, compare and draw studies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from steppe.cli.help_pages import Command, Group
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
    TrackOption,
    check_place,
    gibibytes,
)
from steppe.cli.plans import plan_table, planned_values, print_estimate
from steppe.cli.publish import publish
from steppe.cli.show import JsonOption, StudyProgress, console, print_json, progress_bar
from steppe.config import PlannedRun, StudyConfig, at_scale, choose, load_study_config, plan
from steppe.config.shipped import list_studies, load_study
from steppe.errors import RunError, SteppeError
from steppe.runs import Run, holds_others, read_json, write_json

if TYPE_CHECKING:
    from steppe.studies import JudgedClaim, Published

app = typer.Typer(
    cls=Group, no_args_is_help=True, help="Runs that answer one question: list, show, run, compare, figures, publish."
)

app.command(cls=Command)(publish)

MOST_CLAIMS = 6
"""A study with more claims than this ends with their number alone; `steppe study compare` shows them."""


def _starting(words: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """What a shell offers when Tab is pressed."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words() if word.startswith(incomplete)]

    return complete


def _named(ctx: typer.Context) -> str:
    """The study that a command line names which ends in an option without its value yet."""
    return str(ctx.params.get("name") or next(iter(ctx.args), ""))


def _scales(ctx: typer.Context, incomplete: str) -> list[str]:
    """The scales of the study that the command line names before."""
    with suppress(SteppeError):
        return [name for name in load_study(_named(ctx))[0].scale if name.startswith(incomplete)]
    return []


def _variants(ctx: typer.Context, incomplete: str) -> list[str]:
    """What `--only` may be given, of the study and the scale that the command line names before."""
    with suppress(SteppeError):
        whole, path = load_study(_named(ctx))
        planned = plan(at_scale(whole, ctx.params.get("scale"), where=str(path)), where=str(path))
        offered = [f"{axis}={label}" for run_ in planned for axis, label in run_.labels.items()]
        offered += [f"seed={run_.config.seed}" for run_ in planned]
        return [one for one in dict.fromkeys(offered) if one.startswith(incomplete)]
    return []


Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME_OR_FILE",
        help="a study from `steppe study list`, or a TOML file",
        autocompletion=_starting(list_studies),
    ),
]


Scale = Annotated[
    str | None,
    typer.Option(
        help="smoke, small, paper, or another: `steppe study show` says which it has  \\[default: the study's own]",
        autocompletion=_scales,
    ),
]


Folder = Annotated[
    Path | None, typer.Argument(help="the study's folder  \\[default: runs/<study>-<scale>]", show_default=False)
]


@app.command("list", cls=Command)
def list_(json: JsonOption = False) -> None:
    """List the studies that come with steppe."""
    # not by find_study: checking the measures that each asks for would import torch and timm, and the tests do it
    shipped = {name: (load_study_config(path), path) for name, path in list_studies().items()}
    if json:
        print_json([_about(study, path) for study, path in shipped.values()])
        return
    table = Table("study", "question", "runs", "scales", box=None, header_style="bold")
    for name, (study, path) in shipped.items():
        scales = ", ".join(f"{s} (default)" if s == study.default_scale else s for s in study.scale)
        table.add_row(name, Text(study.question), str(len(plan(study, where=str(path)))), scales or "–")
    console.print(table)


@app.command(cls=Command)
def show(name: Name, scale: Scale = None, json: JsonOption = False) -> None:
    """Show a study: its question, its scales, every run it is made of, and what it claims."""
    whole, path = load_study(name)  # a wrong name or scale is told before torch is imported, here and below
    study = at_scale(whole, scale, where=str(path))
    planned = plan(study, where=str(path))
    from steppe.studies import check_study

    check_study(whole, path)
    if json:
        print_json(
            _about(study, path) | {"scales": list(whole.scale), "planned": [planned_values(run_) for run_ in planned]}
        )
        return
    console.print(study.title or study.name, markup=False, style="bold")
    console.print(study.question, markup=False)
    console.print(f"file: {path}", markup=False, soft_wrap=True)
    for scale_name, change in whole.scale.items():
        here = " (shown below)" if scale_name == study.default_scale else ""
        console.print(f"scale {scale_name}{here}: {change.about}", markup=False, soft_wrap=True)
    console.print(plan_table(planned))
    for claim in study.claims:
        console.print(f"claim: {claim.text} · {claim.holds}", markup=False, soft_wrap=True)


def _about(study: StudyConfig, path: Path) -> dict[str, Any]:
    """A study in plain values."""
    about = {"name": study.name, "title": study.title, "question": study.question, "file": str(path)}
    claims = [{"text": claim.text, "holds": claim.holds} for claim in study.claims]
    scales = {"scale": study.default_scale, "scales": list(study.scale)}
    return {**about, **scales, "runs": len(plan(study, where=str(path))), "claims": claims}


@app.command(cls=Command)
def run(
    name: Name,
    scale: Scale = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="the study's folder  \\[default: runs/<study>-<scale>]")
    ] = None,
    data_root: DataRootOption = None,
    device: DeviceOption = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="runs at a time  \\[default: one a GPU, else one a core]")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AXIS=VARIANT",
            help="only these runs, such as seed=0; may be given several times",
            autocompletion=_variants,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the plan and what it will cost, and stop")] = False,
    on: OnOption = Place.here,
    address: AddressOption = None,
    keep: KeepOption = Keep.auto,
    cache: CacheOption = None,
    memory_limit: MemoryOption = None,
    readers: ReadersOption = 0,
    resident: ResidentOption = None,
    track: TrackOption = None,
    json: JsonOption = False,
) -> None:
    """Run a study: what is finished is kept, what failed is told; then print the table and write the report.

    A second process on the same folder takes other runs.
    """
    whole, path = load_study(name)
    study = at_scale(whole, scale, where=str(path))
    planned = plan(study, where=str(path))
    chosen = choose(planned, only or ())
    from steppe.cli.compare import print_claims
    from steppe.cli.figures import write_attention_sheets
    from steppe.data import Keeping
    from steppe.jobs import default_workers, threads_for
    from steppe.report import print_table, row_values, summarise, write_report
    from steppe.studies import (
        check_study,
        known_threads,
        read_published,
        run_study,
    )
    from steppe.train import pick_device

    check_study(whole, path)
    published = read_published(whole, path)
    folder = out or Path("runs") / study.folder_name
    root = str(data_root) if data_root else None
    if on is Place.here or dry_run:
        pick_device(device)
    check_place(on, address)
    if dry_run:
        print_estimate(study, chosen, folder, root, device, workers or default_workers(device), json)
        return
    _check_folder(study, folder)
    at = f" at scale {study.default_scale}" if study.default_scale else ""
    console.print(f"study {study.name}{at}: {len(chosen)} runs in {folder}", markup=False, soft_wrap=True)
    settled = known_threads(folder)
    if settled and settled != threads_for(workers or default_workers(device)):
        console.print(f"each run computes with {settled} thread(s), as this folder was begun", soft_wrap=True)
    keeping = Keeping(keep.value, gibibytes(memory_limit), cache, readers, resident)
    with progress_bar() as bar:
        failed = run_study(
            study,
            planned,
            folder,
            data_root=root,
            device=device,
            workers=workers,
            notify=StudyProgress(bar, len(chosen)),
            keeping=keeping,
            track=track or (),
            chosen=chosen,
            on_ray=on is Place.ray,
            address=address,
        )
    runs = [Run(folder / p.config.run_id) for p in planned if (folder / p.config.run_id / "config.toml").exists()]
    if not runs:
        raise RunError(f"no run could be made in {folder}\n{_by_reason(failed)}")
    about = read_study(folder)
    rows = summarise(runs, about)
    if not json:
        print_table(rows, console)
    claims, compared = _compared(study, planned, folder, published, whole)
    if claims and not json:
        print_claims(claims, console, most=MOST_CLAIMS)
    if missing := write_attention_sheets(runs, root, keeping):
        console.print(missing, markup=False, soft_wrap=True)
    title = study.title or study.name
    page = write_report(runs, folder / "report.html", title=title, study=about, comparison=compared)
    if json:
        known = {"study": study.name, "scale": study.default_scale, "folder": folder, "report": page}
        print_json({**known, "rows": [row_values(row) for row in rows], "failed": failed})
    else:
        console.print(f"report: {page}", markup=False, soft_wrap=True)
    if failed:
        count = f"{len(failed)} of {len(chosen)} runs failed in {folder}"
        count += "; the others are done" if len(failed) < len(chosen) else ""
        raise RunError(f"{count}\n{_by_reason(failed)}")


def _by_reason(failed: Mapping[str, str]) -> str:
    """Every reason once, after the first run that failed for it and how many others did."""
    runs: dict[str, list[str]] = {}
    for run_id, reason in failed.items():
        runs.setdefault(reason, []).append(run_id)
    others = {reason: f" and {len(some) - 1} more" if some[1:] else "" for reason, some in runs.items()}
    return "\n".join(f"{some[0]}{others[reason]}: {reason}" for reason, some in runs.items())


@app.command(cls=Command)
def compare(
    name: Name,
    folder: Folder = None,
    scale: Scale = None,
    json: JsonOption = False,
) -> None:
    """Set the runs of a study beside the published figures, cell by cell, and judge its claims."""
    whole, path = load_study(name)
    study, folder = _find_runs(whole, path, folder, scale)
    planned = plan(study, where=str(path))
    from steppe.cli.compare import print_comparison
    from steppe.studies import check_study, compare_study, describe, read_published, write_comparison

    check_study(whole, path)
    found = compare_study(study, planned, folder, read_published(whole, path), whole=whole)
    files = list(write_comparison(found, folder))
    if read_study(folder) is None:  # runs that were brought here alone: a report needs to know which is which
        files.append(folder / "study.json")
        write_json(files[-1], describe(study, planned))
    if json:
        print_json(read_json(files[0]))
        return
    print_comparison(found, console)
    for file in files:
        console.print(f"written: {file}", markup=False, soft_wrap=True)


@app.command(cls=Command)
def figures(
    name: Name,
    folder: Folder = None,
    scale: Scale = None,
    data_root: Annotated[str | None, typer.Option(help="where named data sets live, for attention maps")] = None,
) -> None:
    """Draw the runs of a study side by side, the first seed of every cell: landscapes, neurons, attention, curves."""
    whole, path = load_study(name)
    study, folder = _find_runs(whole, path, folder, scale)
    from steppe.cli.figures import draw_figures
    from steppe.studies import check_study

    check_study(whole, path)
    files, left_out = draw_figures(study, plan(study, where=str(path)), folder, data_root)
    for file in files:
        if file.suffix == ".png":
            console.print(f"written: {file} and .pdf", markup=False, soft_wrap=True)
    if left_out:
        console.print(left_out, markup=False, soft_wrap=True)


def _find_runs(whole: StudyConfig, path: Path, folder: Path | None, scale: str | None) -> tuple[StudyConfig, Path]:
    """A study at the scale that is asked for or that its folder was made at, and that folder; it must be there."""
    if folder and not scale:
        about = read_study(folder)
        scale = about.get("scale") if about and about.get("name") == whole.name else _scale_of_runs(whole, path, folder)
    study = at_scale(whole, scale, where=str(path))
    folder = folder or Path("runs") / study.folder_name
    if not folder.is_dir():
        at = f" --scale {study.default_scale}" if study.default_scale else ""
        fix = f"check the path, or run the study first: `steppe study run {study.name}{at}`"
        raise RunError("there is no such folder", where=str(folder), fix=fix)
    return study, folder


def _scale_of_runs(whole: StudyConfig, path: Path, folder: Path) -> str | None:
    """The scale that most runs of a folder belong to; None where it holds none of the study's."""
    there = {one.name for one in folder.iterdir()} if folder.is_dir() else set()
    held = {}
    for scale in whole.scale:
        planned = plan(at_scale(whole, scale, where=str(path)), where=str(path))
        held[scale] = len(there & {p.config.run_id for p in planned})
    return max(held, key=held.__getitem__) if any(held.values()) else None


def read_study(folder: Path) -> dict[str, Any] | None:
    """What a study's folder says of itself; None where it is no study's."""
    if not (folder / "study.json").is_file():
        return None
    about = read_json(folder / "study.json")
    if not isinstance(about, dict):
        raise RunError("this should hold a JSON object", where=str(folder / "study.json"), fix="remove the file")
    return about


def _compared(
    study: StudyConfig, planned: list[PlannedRun], folder: Path, published: list[Published], whole: StudyConfig
) -> tuple[Sequence[JudgedClaim], dict[str, Any] | None]:
    """Judge the study's claims and write `compare.json`; nothing for a study that has neither claims nor figures."""
    from steppe.studies import compare_study, write_comparison

    if not study.claims and not published:
        return (), None
    compared = compare_study(study, planned, folder, published, whole=whole)
    file, _ = write_comparison(compared, folder)
    found: dict[str, Any] = read_json(file)
    return compared.claims, found


def _check_folder(study: StudyConfig, folder: Path) -> None:
    """A study has a folder of its own: nothing that is there already is written over."""
    fix = "choose another folder with --out"
    about = read_study(folder)
    if about is not None and (about.get("name"), about.get("scale")) != (study.name, study.default_scale):
        of_scale = f" at scale {about['scale']}" if about.get("scale") else ""
        what = f"this folder belongs to the study {about.get('name')!r}{of_scale}"
        raise RunError(what, where=str(folder), fix=fix)
    if about is None and holds_others(folder):
        raise RunError("this is not empty, and no study's folder", where=str(folder), fix=fix)
