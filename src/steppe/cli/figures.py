"""`steppe study figures`: what a study's runs look like, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from steppe.config import PlannedRun, StudyConfig
from steppe.data import Dataset, Keeping
from steppe.errors import RunError, SteppeError
from steppe.runs import Run


def draw_figures(
    study: StudyConfig, planned: Sequence[PlannedRun], folder: Path, data_root: str | None
) -> tuple[list[Path], str]:
    """Draw the first finished run of every cell into `folder/figures`.

    Returns:
        the files; and why attention maps were left out, such as data that are not on this machine, or nothing.

    Raises:
        RunError: there is no finished run.
    """
    from steppe.report.paper import save

    figures, left_out = study_figures(study, planned, folder, data_root)
    files: list[Path] = []
    for name, figure in figures.items():
        files += save(figure, folder / "figures" / name)
    return files, left_out


def study_figures(
    study: StudyConfig, planned: Sequence[PlannedRun], folder: Path, data_root: str | None, *, curves: bool = True
) -> tuple[dict[str, Any], str]:
    """Figures of the first finished run of every cell, by name; and why attention maps were left out, or nothing.

    What the study asks for is drawn as it was measured with the study's settings, the rest as it was measured last;
    without `curves` nothing is drawn of the epochs.

    Raises:
        RunError: there is no finished run.
    """
    from steppe.report.paper_study import draw_study
    from steppe.studies.asked import own_settings
    from steppe.studies.measures import with_own

    own = own_settings(study.measure)
    runs = first_runs(planned, folder)
    if not runs:
        raise RunError("there is no finished run of this study here", where=str(folder), fix="run it first")
    labels = {_name(p): p.labels for p in planned}
    cells: dict[str, dict[str, Any]] = {
        name: {
            "geometry": with_own(run.read_or_empty("geometry.json"), "geometry", own),
            "metrics": run.metrics() if curves else [],
            "shift": run.read_or_empty("shift.json"),
            "labels": labels[name],
        }
        for name, run in runs.items()
    }
    figures: dict[str, Any] = dict(draw_study(cells))
    looking = {name: cell["geometry"]["attention"] for name, cell in cells.items() if "attention" in cell["geometry"]}
    left_out = ""
    if looking:
        try:
            figures["attention"] = _attention(looking, runs, data_root)
        except SteppeError as error:
            left_out = f"attention maps are left out: {error}"
    toys = {run.config.data.name: run for name, run in runs.items() if cells[name]["shift"]}
    for data_name, run in toys.items():
        figures["points" if len(toys) == 1 else f"points_{data_name}"] = _points(study, run)
    return figures, left_out


def first_runs(planned: Sequence[PlannedRun], folder: Path) -> dict[str, Run]:
    """Name of a cell -> its finished run of the lowest seed."""
    found: dict[str, Run] = {}
    for p in sorted(planned, key=lambda p: p.config.seed):
        path, name = folder / p.config.run_id, _name(p)
        if name not in found and (path / "config.toml").is_file():
            run = Run(path)
            if run.read_or_empty("summary.json").get("status") == "finished":  # its weights are not needed
                found[name] = run
    return {name: found[name] for name in dict.fromkeys(map(_name, planned)) if name in found}


def _name(planned: PlannedRun) -> str:
    """Of a cell."""
    return ", ".join(planned.labels.values()) or "base"


def _points(study: StudyConfig, run: Run) -> Any:
    """The first of the points that networks of a toy are tested on, at every variance, as many as its source shows."""
    from steppe.data.toys import COUNTS, make_toy
    from steppe.report.paper_study import draw_points

    data, measure = run.config.data, study.measure
    splits = {
        f"variance {variance:g}": make_toy(
            data.name, variance=variance, count=measure.test_examples, seed=data.split_seed, split="shifted"
        )
        for variance in measure.test_variances
    }
    shown = slice(COUNTS["test"])
    return draw_points(
        {name: (s.images.flatten(1).numpy()[shown], s.labels.numpy()[shown]) for name, s in splits.items()}
    )


def _attention(looking: Mapping[str, Any], runs: Mapping[str, Run], data_root: str | None) -> Any:
    """The images all of them were shown, and where each looks: the last layer's class token."""
    from steppe import data
    from steppe.report.paper import draw_attention

    first = next(iter(looking))
    dataset = data.load(runs[first].config.data, data_root)
    same = {name: found for name, found in looking.items() if found["images"] == looking[first]["images"]}
    images, _ = overlaid(dataset, same[first])
    return draw_attention(images, {name: overlaid(dataset, found)[1]["last layer"] for name, found in same.items()})


def overlaid(dataset: Dataset, found: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The test images that `attention` was measured on and the maps laid over them, at the size the model sees."""
    import torch

    from steppe.data.resample import resize
    from steppe.geometry.attention import enlarge

    size = dataset.image_size
    images = resize(dataset.test.pick(torch.tensor(found["images"])), size).round().clamp(0, 255).byte()
    maps = {"last layer": found["last_layer"], "rollout": found["rollout"]}
    return images.numpy(), {name: enlarge(torch.tensor(m), size).numpy() for name, m in maps.items()}


def write_attention_sheets(runs: Sequence[Run], data_root: str | None, keeping: Keeping | None = None) -> str:
    """Write the attention maps that a report shows, of the runs where they were measured and are not drawn yet.

    Returns:
        why some could not be written, such as data that are not on this machine; empty where all could.
    """
    from steppe.report.paper import save_sheet
    from steppe.studies.subjects import load_learned

    loaded: dict[str, Dataset] = {}
    for run in runs:
        sheet, measured = run.path / "figures" / "attention_sheet.png", run.path / "geometry.json"
        found = run.read_or_empty("geometry.json").get("attention")
        if not found or (sheet.is_file() and sheet.stat().st_mtime >= measured.stat().st_mtime):
            continue
        try:
            key = run.config.data.model_dump_json()
            if key not in loaded:
                loaded[key] = load_learned(run, data_root, keeping=keeping)
            save_sheet(*overlaid(loaded[key], found), sheet)
        except (SteppeError, KeyError, TypeError, ValueError, IndexError) as error:
            return f"the report shows no attention maps of {run.id}: {str(error).splitlines()[0]}"
    return ""
