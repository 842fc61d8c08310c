"""A study's runs beside what was published: every cell with its difference, every claim with its verdict.

Works on what is there: a cell without a finished run is said to be missing. Weights are not needed, so a folder of
results that kept the small files alone can be compared again.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from steppe.config import PlannedRun, StudyConfig, at_scale, plan
from steppe.config.cells import Measure, pick_cells
from steppe.config.claims import parse_claim
from steppe.errors import ConfigError, RunError
from steppe.runs import Run, write_atomically, write_json
from steppe.studies.asked import own_settings
from steppe.studies.claims import NOT_HERE, NOT_MEASURED, Seeds, Verdict, judge
from steppe.studies.measures import Own, Value, has_converged, read_measure
from steppe.studies.published import UNITS, Published


@dataclass(frozen=True)
class Cell:
    """A published figure and what was measured here."""

    published: Published
    measured: float | str | None = None
    """mean over seeds, in the published unit"""
    std: float | None = None
    seeds: int = 0
    of_seeds: int = 0
    missing: str = ""
    """why there is nothing to compare"""
    published_on: str = ""
    measured_on: str = ""
    """where the figure was published of other data than ours: both data sets"""

    @property
    def difference(self) -> float | None:
        """Measured less published; none where the two are of different data, but for settings of a recipe."""
        if self.published_on and not str(self.published.measure).startswith("config."):
            return None
        if isinstance(self.measured, str) or isinstance(self.published.value, str) or self.measured is None:
            return None
        return self.measured - self.published.value

    @property
    def same(self) -> bool | None:
        """Of words, whether they agree; None for numbers."""
        if self.measured is None or (not isinstance(self.measured, str) and not isinstance(self.published.value, str)):
            return None
        return str(self.measured).casefold() == str(self.published.value).casefold()


@dataclass(frozen=True)
class JudgedClaim:
    """A claim and what became of it."""

    text: str
    holds: str
    seed: str
    verdict: Verdict


@dataclass(frozen=True)
class StudyComparison:
    """All of it, as `compare.json` has it."""

    study: str
    scale: str | None
    finished: int
    runs: int
    cells: list[Cell]
    claims: list[JudgedClaim]


def compare_study(
    study: StudyConfig,
    planned: Sequence[PlannedRun],
    folder: str | Path,
    published: Sequence[Published],
    *,
    whole: StudyConfig | None = None,
) -> StudyComparison:
    """Compare the runs of a folder with what was published.

    Args:
        study: at the scale of the runs.
        planned: its runs.
        folder: the study's folder.
        published: from `read_published`.
        whole: the study with all its scales: `paper` says on what data the figures were published.

    Raises:
        RunError: there is no run of the study in the folder.
    """
    found = _Found(planned, Path(folder), own_settings(study.measure))
    if not found.runs:
        command = f"steppe study run {study.name}" + (f" --scale {study.default_scale}" if study.default_scale else "")
        raise RunError("there is no run of this study here", where=str(folder), fix=f"run it first: `{command}`")
    theirs = _as_published(whole) if whole is not None else []
    cells = [_compare_cell(figure, found, theirs) for figure in published]
    claims = []
    for claim in study.claims:
        claims.append(JudgedClaim(claim.text, claim.holds, claim.seed, _judge_claim(claim.holds, found)))
    finished = sum(read_measure(run, "epochs") is not None for run in found.runs.values())
    return StudyComparison(study.name, study.default_scale, finished, len(planned), cells, claims)


def write_comparison(comparison: StudyComparison, folder: str | Path) -> tuple[Path, Path]:
    """Write `compare.json` and `compare.csv` into the study's folder, and give their paths."""
    folder = Path(folder)
    write_json(folder / "compare.json", _as_json(comparison))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_CSV)
    for cell in comparison.cells:
        p = cell.published
        place = (p.seed, p.table, p.row, p.column, str(p.measure or ""), p.unit)
        numbers = (p.value, cell.measured, cell.std, cell.seeds, cell.of_seeds, cell.difference)
        on = f"published on {cell.published_on}, ours on {cell.measured_on}" if cell.published_on else ""
        remark = "; ".join(filter(None, (cell.missing or p.note, on)))
        writer.writerow(["cell", *place, *map(_rounded, numbers), "", "", remark])
    for claim in comparison.claims:
        v = claim.verdict
        row = (claim.seed, "", claim.text, "", claim.holds, "", "", "", "", v.seeds, "", v.difference, v.low, v.high)
        writer.writerow(["claim", *map(_rounded, row), "; ".join(filter(None, (v.verdict, v.reason)))])
    write_atomically(folder / "compare.csv", out.getvalue())
    return folder / "compare.json", folder / "compare.csv"


PAPER = "paper"
"""The scale of a study that is as published."""

_CSV = (
    *("kind", "seed", "table", "row", "column", "measure", "unit", "published", "measured", "std", "seeds", "of_seeds"),
    *("difference", "low", "high", "remark"),
)


class _Found:
    """The runs that are there, by cell and seed."""

    def __init__(self, planned: Sequence[PlannedRun], folder: Path, own: Own) -> None:
        self.planned, self.own = planned, own
        self.cells = list({tuple(p.labels.items()): p.labels for p in planned}.values())
        paths = {p.config.run_id: folder / p.config.run_id for p in planned}
        self.runs = {name: Run(path) for name, path in paths.items() if (path / "config.toml").is_file()}
        self._known: dict[tuple[str, str], Value | None] = {}

    def members(self, measure: Measure) -> list[list[PlannedRun]]:
        """The runs of every cell a measure means."""
        picked = pick_cells(measure, self.cells)
        cells = [[p for p in self.planned if p.labels == labels] for labels in picked]
        return self._best(cells, measure.chosen_axes) if measure.chosen_axes else cells

    def _best(self, cells: list[list[PlannedRun]], axes: Sequence[str]) -> list[list[PlannedRun]]:
        """Of cells that differ in these axes alone, with every seed the run that validates best.

        While one of them is unfinished that one stands for the seed, which so has no figure yet: it might be the best.
        """
        groups: dict[tuple[tuple[str, str], ...], dict[int, list[PlannedRun]]] = {}
        for run in (run for runs in cells for run in runs):
            group = groups.setdefault(tuple((a, v) for a, v in run.labels.items() if a not in axes), {})
            group.setdefault(run.config.seed, []).append(run)
        return [[self._choose(runs) for runs in seeds.values()] for seeds in groups.values()]

    def _choose(self, runs: Sequence[PlannedRun]) -> PlannedRun:
        if not all(run.config.validates for run in runs):
            fix = "leave learn_from_val out, or name the cell that the claim means"
            what = "`best` takes the run that validates best, and these learn from their validation images"
            raise ConfigError(what, where="data.learn_from_val", fix=fix)
        ranked = sorted(runs, key=self._validation, reverse=True)
        return ranked[0] if self._validation(ranked[-1]) > -math.inf else ranked[-1]

    def _validation(self, run: PlannedRun) -> float:
        value = self.read(run, "val_accuracy")
        return value if isinstance(value, float) else -math.inf

    def read(self, planned: PlannedRun, name: str) -> Value | None:
        run_id = planned.config.run_id
        if (run_id, name) not in self._known:
            run = self.runs.get(run_id)
            self._known[run_id, name] = read_measure(run, name, self.own) if run else None
        return self._known[run_id, name]

    def doubtful(self, measure: Measure) -> int:
        """How many of the runs a measure means have an eigenvalue there that did not converge."""
        runs = [self.runs.get(p.config.run_id) for cell in self.members(measure) for p in cell]
        return sum(run is not None and not has_converged(run, measure.name, self.own) for run in runs)

    def numbers(self, measure: Measure) -> Seeds:
        """Seed -> value; of several cells their average, for the seeds that all of them have."""
        cells: list[dict[int, float]] = []
        for runs in self.members(measure):
            known = {p.config.seed: self.read(p, measure.name) for p in runs}
            cells.append({seed: value for seed, value in known.items() if isinstance(value, float)})
        if not cells:
            return {}
        common = set.intersection(*(set(cell) for cell in cells))
        return {seed: statistics.fmean(cell[seed] for cell in cells) for seed in sorted(common)}


def _compare_cell(figure: Published, found: _Found, theirs: Sequence[PlannedRun]) -> Cell:
    if figure.measure is None:
        return Cell(figure, missing=f"no counterpart: {figure.note}")
    members = [run for runs in found.members(figure.measure) for run in runs]
    if not members:
        return Cell(figure, missing=NOT_HERE)
    values = [found.read(run, figure.measure.name) for run in members]
    words = [value for value in values if isinstance(value, str)]
    if words:
        return Cell(figure, words[0], None, len(words), len(members))
    known = [value * UNITS[figure.unit] for value in values if isinstance(value, float)]
    if not known:
        begun = any(run.config.run_id in found.runs for run in members)
        return Cell(figure, of_seeds=len(members), missing="no finished run has it" if begun else "not run yet")
    std = statistics.stdev(known) if len(known) > 1 else None
    picked = pick_cells(figure.measure, [run.labels for run in theirs])
    there, here = _data_of([run for run in theirs if run.labels in picked]), _data_of(members)
    on = (there, here) if there and there != here else ("", "")
    return Cell(figure, statistics.fmean(known), std, len(known), len(members), "", *on)


def _as_published(whole: StudyConfig) -> list[PlannedRun]:
    """The runs of the scale `paper`; none where the study has no such scale, or one that cannot be planned."""
    if PAPER not in whole.scale:
        return []
    try:
        return plan(at_scale(whole, PAPER))
    except ConfigError:  # not the scale that is compared; who runs it is told
        return []


def _data_of(runs: Sequence[PlannedRun]) -> str:
    """The data sets of runs."""
    return ", ".join(sorted({run.config.data.name for run in runs}))


def _judge_claim(text: str, found: _Found) -> Verdict:
    claim = parse_claim(text)
    values: dict[Measure, Seeds] = {}
    for measure in claim.measures:
        if not found.members(measure):
            return Verdict(NOT_HERE, f"there is no [{str(measure).partition('[')[2]}")
        values[measure] = found.numbers(measure)
    missing = [str(measure) for measure, seeds in values.items() if not seeds]
    if missing:
        return Verdict(NOT_MEASURED, f"missing: {'; '.join(missing)}")
    verdict = judge(claim, values)
    doubtful = sum(found.doubtful(measure) for measure in claim.measures)
    if doubtful:
        remark = f"{doubtful} of its eigenvalues had not converged"
        verdict = replace(verdict, reason=f"{verdict.reason}; {remark}" if verdict.reason else remark)
    return verdict


def _as_json(comparison: StudyComparison) -> dict[str, Any]:
    cells = []
    for cell in comparison.cells:
        figure = asdict(cell.published) | {"measure": str(cell.published.measure or "")}
        found: Mapping[str, Any] = {
            "measured": cell.measured,
            "std": cell.std,
            "seeds": cell.seeds,
            "of_seeds": cell.of_seeds,
            "difference": cell.difference,
            "same": cell.same,
            "missing": cell.missing,
            "published_on": cell.published_on,
            "measured_on": cell.measured_on,
        }
        cells.append(figure | dict(found))
    claims = [{"text": c.text, "holds": c.holds, "seed": c.seed, **asdict(c.verdict)} for c in comparison.claims]
    about = {k: getattr(comparison, k) for k in ("study", "scale", "finished", "runs")}
    return {**about, "cells": cells, "claims": claims}


def _rounded(value: Any) -> Any:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else value
