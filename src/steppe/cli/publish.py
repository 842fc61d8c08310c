"""`steppe study publish`: the page of all results, and the README's table, out of a folder of results."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steppe.cli.show import ForceOption, console, errors
from steppe.config import PlannedRun, StudyConfig, at_scale, plan
from steppe.errors import RunError, SteppeError
from steppe.plain_files import read_plain_text
from steppe.runs import Run, read_json, write_atomically

if TYPE_CHECKING:
    from steppe.report.results_page import StudyResults

SHOWN = {
    "landscapes": "The loss around the weights that were found, along two random directions of their filters' lengths",
    "spectra": "The eigenvalues of the Hessian",
    "active_neurons": "How many neurons answer an image, block by block",
    "attention": "Where the last layer looks",
    "shift_error": "Errors on test points of other variances",
    "shift_loss": "Losses on test points of other variances",
}
"""Figures of `steppe study figures` that the page shows below a study's accuracies, and what they show."""


def publish(
    folder: Annotated[Path, typer.Argument(help="holds a folder for each study, and CSV files of benchmarks")] = Path(
        "results"
    ),
    out: Annotated[
        Path, typer.Option("--out", "-o", help="the page to write; pictures go to images/results beside it")
    ] = (Path("docs/results.md")),
    force: ForceOption = False,
    readme: Annotated[
        Path | None, typer.Option(help="also renew the table between the marks in this file", show_default=False)
    ] = None,
) -> None:
    """Write a page with the tables, claims and pictures of all studies in a folder of results.

    A study's folder takes part once `steppe study compare NAME FOLDER` has left its compare.json there.
    """
    from steppe.report.results_page import RESULTS_PAGE, put_between_marks, read_benchmarks, render_page, render_summary

    if not folder.is_dir():
        raise RunError("there is no such folder", where=str(folder), fix="name a folder of results")
    RESULTS_PAGE.check(out, force=force)
    found: list[StudyResults] = []
    for path in sorted(p.parent for p in folder.glob("*/compare.json")):
        study = _read(path, out, taken=[one.title for one in found])
        console.print(f"{path.name}: {len(study.records)} runs at scale {study.scale}", markup=False, soft_wrap=True)
        found.append(study)
    for path in sorted(p for p in folder.iterdir() if p.is_dir() and not (p / "compare.json").is_file()):
        errors.print(f"passed over {path}: it has no compare.json", markup=False, soft_wrap=True)
    if not found:
        fix = "run `steppe study compare NAME FOLDER` on a study's folder of results first"
        raise RunError("there is no compared study here", where=str(folder), fix=fix)
    sources = "sources.md" if (out.parent / "sources.md").is_file() else None
    RESULTS_PAGE.write(out, render_page(found, read_benchmarks(folder), sources), force=force)
    console.print(f"written: {out}", markup=False, soft_wrap=True)
    if readme is not None:
        if not readme.is_file():
            raise RunError("there is no such file", where=str(readme), fix="check the path")
        page = Path(os.path.relpath(out, readme.parent)).as_posix()
        lines = render_summary(found, page)
        write_atomically(readme, put_between_marks(read_plain_text(readme), lines, str(readme)))
        console.print(f"renewed: {readme}", markup=False, soft_wrap=True)


def _read(path: Path, out: Path, taken: Collection[str]) -> StudyResults:
    """One study's results, compared anew; draws its picture. A title that is taken says its scale, or its folder."""
    from steppe.report.paper import save
    from steppe.report.paper_cost import draw_accuracy_and_cost
    from steppe.report.record import read_records
    from steppe.report.results_page import StudyResults
    from steppe.report.rows import summarise_records
    from steppe.studies import compare_study, find_study, read_published, write_comparison

    known = read_json(path / "compare.json")
    name, scale = (known.get(key) if isinstance(known, dict) else None for key in ("study", "scale"))
    whole, where = find_study(str(name))
    study = at_scale(whole, scale, where=str(where))
    planned = plan(study, where=str(where))
    write_comparison(compare_study(study, planned, path, read_published(whole, where), whole=whole), path)
    folders = [path / p.config.run_id for p in planned]
    records = read_records([Run(one) for one in folders if (one / "config.toml").is_file()])
    listed = [{"run_id": p.config.run_id, "labels": p.labels} for p in planned]
    rows = summarise_records(records, {"runs": listed})
    title = study.title or study.name
    told_apart = (title, *([f"{title} (scale {scale})"] if scale else []), f"{title} ({path.name})")
    title = next(one for one in told_apart if one not in taken)
    pictures = out.parent / "images" / "results"
    save(draw_accuracy_and_cost(rows, title), pictures / path.name, formats=("png",))
    shown = {f"images/results/{path.name}.png": ""}
    figures, left_out = _figures(study, planned, path)
    if left_out:
        errors.print(f"{path.name}: {left_out}", markup=False, soft_wrap=True)
    for name, about in SHOWN.items():
        stem = pictures / f"{path.name}_{name}"
        if name in figures:
            save(figures[name], stem, formats=("png",))
        if name in figures or (name == "attention" and left_out and stem.with_suffix(".png").is_file()):
            shown[f"images/results/{stem.name}.png"] = about
    return StudyResults(
        study.name,
        title,
        study.question,
        str(scale or "default"),
        rows,
        records,
        read_json(path / "compare.json"),
        shown,
    )


def _figures(study: StudyConfig, planned: Sequence[PlannedRun], folder: Path) -> tuple[dict[str, Any], str]:
    """The study's figures, as far as its files allow; and why some were left out."""
    from steppe.cli.figures import first_runs, study_figures

    try:
        if not first_runs(planned, folder):
            return {}, ""
        return study_figures(study, planned, folder, None, curves=False)
    except (SteppeError, KeyError, TypeError, ValueError, IndexError) as error:
        return {}, f"figures are left out, for something in a run's files is damaged: {error!r}"
