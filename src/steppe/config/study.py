"""The configuration of a study: a base run, axes of named variants, seeds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from steppe.config.run import RunConfig
from steppe.config.section import Section
from steppe.config.toml import merge, parse, read_toml
from steppe.errors import ConfigError


class MeasureConfig(Section):
    """What is measured on every finished run, besides accuracy and cost."""

    noise_sigma: float = Field(0.01, gt=0, description="standard deviation of the weight noise of the flatness figure")
    noise_draws: int = Field(20, gt=1, description="how many noises the flatness figure averages over")
    noise_examples: int = Field(1000, gt=0, description="how many training images it is measured on, at the most")


class StudyConfig(Section):
    """Runs that answer one question.

    `axes` maps an axis to its variants, and a variant to what it changes in the base run; the study is the product
    of the axes. A variant may also set `seeds` for its own runs.
    """

    name: str = Field(
        min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=80, description="the study's name"
    )
    title: str = Field("", description="one line for the report")
    question: str = Field("", description="what the study asks")
    seeds: list[int] = Field([0], min_length=1, description="seeds of every cell")
    base: dict[str, Any] = Field(default_factory=dict, description="a run's configuration")
    axes: dict[str, dict[str, dict[str, Any]]] = Field(default_factory=dict, description="axis -> variant -> changes")
    measure: MeasureConfig = MeasureConfig()


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study: its configuration, and the variant it takes on every axis."""

    config: RunConfig
    labels: dict[str, str]


def load_study_config(path: str | Path) -> StudyConfig:
    """Read a study from TOML."""
    return parse(StudyConfig, read_toml(path), where=str(path))


def plan(study: StudyConfig, *, where: str = "study") -> list[PlannedRun]:
    """Expand a study into its runs, in a fixed order, each configuration once."""
    planned: dict[str, PlannedRun] = {}
    for axis, variants in study.axes.items():
        if not variants:
            raise ConfigError(f"axis {axis!r} has no variants", where=where, mend="give it one, or leave it out")
    for combination in itertools.product(*(variants.items() for variants in study.axes.values())):
        labels = dict(zip(study.axes, (label for label, _ in combination), strict=True))
        values: dict[str, Any] = dict(study.base)
        for _, change in combination:
            values = merge(values, change)
        cell = f"{where}, {', '.join(f'{a}={v}' for a, v in labels.items()) or 'base'}"
        for seed in _seeds(values, study.seeds, cell):
            config = parse(RunConfig, {**values, "seed": seed}, where=cell)
            if config.run_id in planned and planned[config.run_id].labels != labels:
                first = planned[config.run_id].labels
                raise ConfigError(f"two cells of the study are the same run: {first} and {labels}", where=cell)
            planned[config.run_id] = PlannedRun(config, labels)
    return list(planned.values())


def _seeds(values: dict[str, Any], default: list[int], cell: str) -> list[int]:
    if "seed" in values:
        raise ConfigError("a study sets `seeds`, a list, not `seed`", where=cell)
    seeds = values.pop("seeds", default)
    if not isinstance(seeds, list) or not seeds or isinstance(seeds, Mapping):
        raise ConfigError(f"seeds = {seeds!r} is not a list of whole numbers", where=cell)
    return seeds
