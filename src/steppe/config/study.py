"""The configuration of a study: a base run, axes of named variants, runs beside them, seeds, scales and claims."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from steppe.config.adjust import AdjustConfig, adjust
from steppe.config.cells import SEVERAL, Labels, Measure, pick_cells, show_labels
from steppe.config.claims import parse_claim
from steppe.config.measure import MeasureConfig
from steppe.config.recipes import begin_from_recipe
from steppe.config.run import RunConfig
from steppe.config.section import Section
from steppe.config.toml import merge, parse, read_toml
from steppe.errors import ConfigError, nearest, unknown_name

OF_THE_STUDY = "run:"
"""`model.weights = "run:NAME"` begins from the weights that the study's own `[runs.NAME]` leaves."""
OF_SEVERAL = "soup:"
"""`model.weights = "soup:RUN,RUN"` is the average of the weights of several runs."""

Dropped = Literal[False]
Variants = dict[str, dict[str, Any]]


class ClaimConfig(Section):
    """Something the study checks."""

    text: str = Field(min_length=1, description="the claim in words")
    holds: str = Field(min_length=1, description="the claim as a comparison of measures; see steppe.config.claims")
    seed: str = Field("", description="where it was published: a source's number and place, or other words")

    @field_validator("holds")
    @classmethod
    def _can_be_read(cls, text: str) -> str:
        parse_claim(text)
        return text


class ScaleConfig(Section):
    """What a study changes to be run with other means: laid over its base, axes, runs and measures."""

    about: str = Field("", description="what is smaller here, and how long it takes")
    seeds: list[int] | None = Field(None, min_length=1, description="instead of the study's")
    base: dict[str, Any] = Field(default_factory=dict, description="changes of the base run")
    axes: dict[str, dict[str, dict[str, Any] | Dropped] | Dropped] = Field(
        default_factory=dict, description="changes of variants, new ones, or false for those left out"
    )
    runs: dict[str, dict[str, Any] | Dropped] = Field(default_factory=dict, description="likewise for single runs")
    measure: dict[str, Any] = Field(default_factory=dict, description="changes of what is measured")
    adjust: list[AdjustConfig] = Field([], description="changes by labels, after those of the study")


class StudyConfig(Section):
    """Runs that answer one question.

    `axes` maps an axis to its variants, and a variant to what it changes in the base run; the study is the product
    of the axes. `runs` are single runs beside the product; they come first. Their labels are `labels`, or the one label
    `run`. A variant or a single run may also set `seeds` for its own runs. Last, `adjust` changes cells by labels.
    """

    name: str = Field(
        min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=80, description="the study's name"
    )
    title: str = Field("", description="one line for the report")
    question: str = Field("", description="what the study asks")
    seeds: list[int] = Field([0], min_length=1, description="seeds of every cell")
    base: dict[str, Any] = Field(
        default_factory=dict, description="a run's configuration; recipe = NAME begins from a recipe"
    )
    axes: dict[str, Variants] = Field(default_factory=dict, description="axis -> variant -> changes")
    runs: Variants = Field(default_factory=dict, description="single runs beside the product: name -> changes")
    measure: MeasureConfig = MeasureConfig()
    adjust: list[AdjustConfig] = Field([], description="changes of the cells with certain labels, in this order")
    scale: dict[str, ScaleConfig] = Field(default_factory=dict, description="smoke, small, paper: name -> changes")
    default_scale: str | None = Field(None, description="the scale it is run at unless another is asked for")
    claims: list[ClaimConfig] = Field([], description="what is checked")

    @field_validator("runs")
    @classmethod
    def _labels_are_text(cls, runs: Variants) -> Variants:
        for name, change in runs.items():
            labels = change.get("labels", {})
            if not (isinstance(labels, dict) and all(isinstance(v, str) for v in labels.values())):
                raise ValueError(f'labels of {name!r} must be a table of axis = "label"')
        return runs

    @model_validator(mode="after")
    def _has_a_scale(self) -> Self:
        if self.scale and self.default_scale not in self.scale:
            raise ValueError(f"default_scale must name one of the scales: {', '.join(self.scale)}")
        if not self.scale and self.default_scale is not None:
            raise ValueError("default_scale is given, but there are no scales")
        return self

    @property
    def folder_name(self) -> str:
        """What the folder of its runs is called: each scale has its own."""
        return "-".join(filter(None, (self.name, self.default_scale)))


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study: its configuration, and the variant it takes on every axis."""

    config: RunConfig
    labels: dict[str, str]

    @property
    def needs(self) -> str | None:
        """The run whose weights it begins from, by id, if that is a run too."""
        weights = self.config.model.weights or ""
        return weights.removeprefix(OF_THE_STUDY) if weights.startswith(OF_THE_STUDY) else None


def load_study_config(path: str | Path) -> StudyConfig:
    """Read a study from TOML, and check its claims against its cells at every scale."""
    study = parse(StudyConfig, read_toml(path), where=str(path))
    check_claims(study, where=str(path))
    check_adjustments(study, where=str(path))
    return study


def at_scale(study: StudyConfig, name: str | None = None, *, where: str = "study") -> StudyConfig:
    """The study as it is at a scale: its default one unless another is named. One without scales stays as it is.

    Args:
        study: with all of its scales.
        name: one of them.
        where: the study's file, for errors.
    """
    if not study.scale:
        if name not in (None, study.default_scale):
            fix = "leave --scale away"
            raise ConfigError(f"the study {study.name!r} has no scales", where=where, fix=fix)
        return study
    name = name or study.default_scale
    assert name is not None
    if name not in study.scale:
        raise unknown_name("scale", name, study.scale, where=where)
    change, place = study.scale[name], f"{where}, scale.{name}"
    axes: dict[str, Variants] = dict(study.axes)
    for axis, variants in change.axes.items():
        if variants is False:
            _known(axis, axes, "axis", place)
            del axes[axis]
        else:
            axes[axis] = _lay_over(axes.get(axis, {}), variants, f"{place}.axes.{axis}", "variant")
    measure = merge(study.measure.model_dump(exclude_unset=True), change.measure)
    return study.model_copy(
        update={
            "seeds": change.seeds or study.seeds,
            "base": merge(study.base, change.base),
            "axes": axes,
            "runs": _lay_over(study.runs, change.runs, f"{place}.runs", "run"),
            "measure": parse(MeasureConfig, measure, where=f"{place}.measure"),
            "adjust": [*study.adjust, *change.adjust],
            "scale": {},
            "default_scale": name,
        }
    )


def name_source(place: str) -> str:
    """How a place of publication is shown: "004, figure 2" as "source 004, figure 2", other words as they are.

    Args:
        place: what a claim or a published figure has under `seed`. The numbers are those of docs/sources.md.
    """
    return f"source {place}" if re.match(r"\d{3}\b", place) else place


def plan(study: StudyConfig, *, where: str = "study") -> list[PlannedRun]:
    """Expand a study into its runs, in a fixed order, each configuration once; with scales, at the default one."""
    study = at_scale(study, where=where)
    planned: dict[str, PlannedRun] = {}
    single: dict[str, list[PlannedRun]] = {}
    for axis, variants in study.axes.items():
        if not variants:
            raise ConfigError(f"axis {axis!r} has no variants", where=where, fix="give it one, or leave it out")
    for name, labels, values in _cells(study):
        cell = f"{where}, {show_labels(labels) or 'base'}"
        for seed in _seeds(values, study.seeds, cell):
            own = _with_weights(values, seed, single, cell)
            config = parse(RunConfig, {**own, "seed": seed}, where=cell)
            _check_weights(config, cell)
            if config.run_id in planned and planned[config.run_id].labels != labels:
                first = planned[config.run_id].labels
                raise ConfigError(f"two cells of the study are the same run: {first} and {labels}", where=cell)
            planned[config.run_id] = PlannedRun(config, labels)
            if name:
                single.setdefault(name, []).append(planned[config.run_id])
    return list(planned.values())


def _check_weights(config: RunConfig, cell: str) -> None:
    """A plan holds on every machine, so it leaves nothing open that depends on what is at hand."""
    weights, named = config.model.weights or "", "name" in config.model.model_fields_set
    if weights == "auto" or (weights and not named and not weights.startswith(OF_THE_STUDY)):
        fix = "set model.name, and model.weights to a name of `steppe weights list`"
        raise ConfigError("a study names its model and its weights", where=f"{cell}, model", fix=fix)


def choose(planned: Sequence[PlannedRun], wanted: Sequence[str], *, where: str = "--only") -> list[PlannedRun]:
    """The runs of a plan that are asked for, and those whose weights they begin from.

    Args:
        planned: from `plan`.
        wanted: each `AXIS=VARIANT` or `seed=NUMBER`; of one axis any may fit, of different axes all must. None asked
            for means all.
        where: who asks, for errors.
    """
    known: dict[str, dict[str, None]] = {}
    for run in planned:
        for axis, label in _labels_and_seed(run).items():
            known.setdefault(axis, {})[label] = None
    asked: dict[str, set[str]] = {}
    for text in wanted:
        axis, equals, label = text.partition("=")
        axis, label = axis.strip(), label.strip()
        if not equals:
            raise ConfigError(f"{text!r} is not AXIS=VARIANT", where=where, fix=f"the axes are {', '.join(known)}")
        if axis not in known:
            raise unknown_name("axis", axis, known, where=where)
        if label not in known[axis]:
            raise unknown_name(f"variant of {axis}", label, known[axis], where=where)
        asked.setdefault(axis, set()).add(label)
    fitting = [
        run for run in planned if all(_labels_and_seed(run).get(axis) in labels for axis, labels in asked.items())
    ]
    if not fitting:
        raise ConfigError(f"no run fits all of {', '.join(wanted)}", where=where, fix="ask for fewer things at once")
    by_id = {run.config.run_id: run for run in planned}
    names = {run.config.run_id for run in fitting}
    needed = [run.needs for run in fitting]
    while needed:
        name = needed.pop()
        if name is not None and name in by_id and name not in names:
            names.add(name)
            needed.append(by_id[name].needs)
    return [run for run in planned if run.config.run_id in names]


def _labels_and_seed(run: PlannedRun) -> dict[str, str]:
    return {**run.labels, "seed": str(run.config.seed)}


def check_claims(study: StudyConfig, *, where: str = "study") -> None:
    """Refuse a claim about a cell that no scale has, or that means several cells at some scale."""
    cells = study_cells(study, where=where)
    for number, claim in enumerate(study.claims, 1):
        place = f"{where}, claim {number} ({claim.text!r})"
        for measure in parse_claim(claim.holds).measures:
            check_measure(measure, cells, place)


def check_adjustments(study: StudyConfig, *, where: str = "study") -> None:
    """Refuse changes for labels that no cell has: of the study at any scale, of a scale at that scale."""
    cells = study_cells(study, where=where)
    everywhere = [cell for some in cells.values() for cell in some]
    places = [("", study.adjust, everywhere)]
    places += [(f"scale.{name}.", change.adjust, cells[name]) for name, change in study.scale.items()]
    for prefix, changes, some in places:
        for number, change in enumerate(changes, 1):
            known = {(axis, label) for cell in some for axis, label in cell.items()}
            asked = [(axis, label) for axis, labels in change.at.items() for label in labels]
            wrong = [pair for pair in asked if pair not in known]
            if wrong or not any(change.fits(labels) for labels in some):
                shown = "; ".join(f"{axis}={', '.join(labels)}" for axis, labels in change.at.items())
                fix = _nearest_label(Measure("", tuple(wrong or asked)), some)
                raise ConfigError(f"no cell has the labels {shown}", where=f"{where}, {prefix}adjust {number}", fix=fix)


def check_measure(measure: Measure, cells: Mapping[str | None, Sequence[Labels]], where: str) -> None:
    """Refuse a measure whose labels fit no cell at any scale, or several at one.

    Args:
        measure: what is named.
        cells: the labels of every cell, by scale.
        where: where it is named.
    """
    if not any(pick_cells(measure, some) for some in cells.values()):
        everywhere = [cell for some in cells.values() for cell in some]
        raise ConfigError(
            f"no cell of the study is [{show_labels(dict(measure.labels))}]",
            where=where,
            fix=_nearest_label(measure, everywhere),
        )
    for scale, some in cells.items():
        found = pick_cells(measure, some)
        if len({tuple(cell.items()) for cell in found}) > 1 and not measure.averages:
            at = f" at scale {scale!r}" if scale else ""
            what = f"[{show_labels(dict(measure.labels))}] means {len(found)} cells{at}"
            fix = f"name more axes, or write axis=* (average) or axis=best; two of them: {found[0]} and {found[1]}"
            raise ConfigError(what, where=where, fix=fix)


def study_cells(study: StudyConfig, *, where: str = "study") -> dict[str | None, list[dict[str, str]]]:
    """The labels of every cell, at every scale."""
    scales: list[str | None] = [*study.scale] or [study.default_scale]
    return {scale: [labels for _, labels, _ in _cells(at_scale(study, scale, where=where))] for scale in scales}


_Cell = tuple[str | None, dict[str, str], dict[str, Any]]
"""The name of a single run or None, labels, values."""


def _cells(study: StudyConfig) -> list[_Cell]:
    """Every cell, in the order in which they are to be run.

    Single runs from which others begin come first, then the combinations of the axes, then the other single runs.
    """
    out: list[_Cell] = []
    base = begin_from_recipe(study.base)
    for name, change in study.runs.items():
        values = merge(base, begin_from_recipe(change))
        labels = values.pop("labels", {"run": name})
        out.append((name, labels, adjust(values, labels, study.adjust)))
    out.sort(key=lambda cell: _weights(cell[2]).startswith(OF_THE_STUDY))  # stable: the rest stays in its order
    if study.runs and not study.axes:
        return out
    crossed: list[_Cell] = []
    for combination in itertools.product(*(variants.items() for variants in study.axes.values())):
        values = dict(base)
        for _, change in combination:
            values = merge(values, begin_from_recipe(change))
        labels = dict(zip(study.axes, (label for label, _ in combination), strict=True))
        crossed.append((None, labels, adjust(values, labels, study.adjust)))
    begun_from = {_weights(values).removeprefix(OF_THE_STUDY) for _, _, values in [*out, *crossed]}
    starts, others = [[cell for cell in out if (cell[0] in begun_from) is first] for first in (True, False)]
    return [*starts, *crossed, *others]


def _with_weights(
    values: dict[str, Any], seed: int, single: Mapping[str, list[PlannedRun]], cell: str
) -> dict[str, Any]:
    """Turn `run:NAME` into the id of that run: of the same seed where it has one, else of its first."""
    weights = _weights(values)
    if not weights.startswith(OF_THE_STUDY):
        return values
    name = weights.removeprefix(OF_THE_STUDY)
    if name not in single:
        raise unknown_name("run of this study", name, single, where=f"{cell}, model.weights")
    start = next((run for run in single[name] if run.config.seed == seed), single[name][0])
    return {**values, "model": {**values["model"], "weights": OF_THE_STUDY + start.config.run_id}}


def _weights(values: Mapping[str, Any]) -> str:
    """Where a run begins, or nothing; anything odd is left for pydantic to refuse."""
    model = values.get("model")
    weights = model.get("weights") if isinstance(model, Mapping) else None
    return weights if isinstance(weights, str) else ""


def _lay_over(old: Variants, new: Mapping[str, dict[str, Any] | Dropped], where: str, kind: str) -> Variants:
    out = dict(old)
    for name, change in new.items():
        if change is False:
            _known(name, out, kind, where)
            del out[name]
        else:
            out[name] = merge(out.get(name, {}), change)
    return out


def _known(name: str, there: Mapping[str, Any], kind: str, where: str) -> None:
    if name not in there:
        raise unknown_name(f"{kind} to leave out", name, there, where=where)


def _nearest_label(measure: Measure, cells: Sequence[Labels]) -> str | None:
    for axis, wanted in measure.labels:
        axes = list(dict.fromkeys(a for cell in cells for a in cell))
        if axis not in axes:
            return f"there is no axis {axis!r}; the axes are {', '.join(axes)}"
        there = list(dict.fromkeys(cell[axis] for cell in cells if axis in cell))
        if wanted not in (*SEVERAL, *there):
            close = nearest(wanted, there)
            hint = f"did you mean {' or '.join(repr(c) for c in close)}?" if close else f"there is {', '.join(there)}"
            return f"{axis} has no {wanted!r}; {hint}"
    return "no single cell has all of these labels"


def _seeds(values: dict[str, Any], default: list[int], cell: str) -> list[int]:
    if "seed" in values:
        raise ConfigError("a study sets `seeds`, a list, not `seed`", where=cell)
    seeds = values.pop("seeds", default)
    if not isinstance(seeds, list) or not seeds or isinstance(seeds, Mapping):
        raise ConfigError(f"seeds = {seeds!r} is not a list of whole numbers", where=cell)
    return seeds
