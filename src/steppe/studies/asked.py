"""The measures a study asks for by name: those of `steppe geometry` and `steppe evaluate`, added to each of its runs.

    [measure.geometry]
    lambda_max = { examples = 1000 }
    [measure.robustness]
    corruptions = {}

A measure that means nothing for a model (attention of a ResNet) is passed over, with its reason in `left_out.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from steppe.config import MeasureConfig
from steppe.errors import ConfigError, SteppeError, unknown_name
from steppe.evaluate.measures import MEASURES as OF_THE_TEST_SET
from steppe.geometry.measures import MEASURES as OF_THE_WEIGHTS
from steppe.measuring import Measure, ignore
from steppe.measuring.values import allowed_of, check_value
from steppe.runs import Run, find_result, write_json
from steppe.studies.measured import add_results, settings_of
from steppe.studies.measures import Own
from steppe.studies.subjects import Subject

TABLES: dict[str, Mapping[str, Measure]] = {"geometry": OF_THE_WEIGHTS, "robustness": OF_THE_TEST_SET}
"""File without its ending -> the measures that go there."""

LEFT_OUT = "left_out.json"


def check_asked(measure: MeasureConfig, where: str) -> None:
    """Refuse a measure or a setting that does not exist.

    Args:
        measure: what a study measures.
        where: the study's file, for errors.
    """
    for file, some in measure.asked.items():
        for name, changes in some.items():
            place = f"{where}, measure.{file}.{name}"
            if name not in TABLES[file]:
                raise unknown_name("measure", name, TABLES[file], where=place)
            if name == "noise":
                fix = "set noise_sigma, noise_draws and noise_examples in [measure]"
                raise ConfigError("weight noise is measured on every run anyway", where=place, fix=fix)
            defaults, may = TABLES[file][name].defaults, TABLES[file][name].allowed
            for key, value in changes.items():
                if key not in defaults:
                    raise unknown_name(f"setting of {name}", key, defaults, where=place)
                if not _alike(value, defaults[key]):
                    what = f"{key} = {value!r} is not of the kind of its default, {defaults[key]!r}"
                    raise ConfigError(what, where=place)
                check_value(value, allowed_of(defaults[key], may.get(key)), f"{place}.{key}")


def own_settings(measure: MeasureConfig) -> Own:
    """With which settings a study's figures are made, for reading them among others of the same folder.

    Args:
        measure: what the study measures.
    """
    asked = {**measure.asked, "geometry": {**measure.asked["geometry"], "noise": measure.noise}}
    found: dict[tuple[str, str], tuple[dict[str, Any], Mapping[str, Any]]] = {}
    for file, some in asked.items():
        for name, changes in some.items():
            kind = TABLES[file][name]
            found[file, kind.key or name] = settings_of(kind, changes), kind.defaults
    return found


def add_asked(subject: Subject, measure: MeasureConfig, data_root: Path, saved: Callable[[], None] = ignore) -> None:
    """Make the measures that are not there yet. One that fails does not keep the others from being made.

    Args:
        subject: the run, opened for measuring.
        measure: what the study measures.
        data_root: where published corruptions lie.
        saved: called when a result, or a part of one, is written.

    Raises:
        SteppeError: the first that failed.
    """
    left_out: dict[str, Any] = {}
    refused: dict[str, SteppeError] = {}

    def note(event: str, name: str, details: dict[str, Any]) -> None:
        if event == "left_out" and name not in refused:
            left_out[name] = details["reason"]
        if event in ("part", "done"):
            saved()

    for file, some in measure.asked.items():
        chosen = {name: TABLES[file][name] for name in some}
        if chosen:
            add_results(subject, f"{file}.json", chosen, some, data_root=data_root, refused=refused, notify=note)
    if left_out:
        asked = {name: changes for some in measure.asked.values() for name, changes in some.items()}
        rows = {name: {"reason": reason, "asked": asked[name]} for name, reason in left_out.items()}
        write_json(subject.folder / LEFT_OUT, rows)
    for error in refused.values():
        raise error


def has_asked(run: Run, measure: MeasureConfig) -> bool:
    """Whether every measure that is asked for is there with its settings, or was passed over with them."""
    left_out = run.read_or_empty(LEFT_OUT)
    for file, some in measure.asked.items():
        known = run.read_or_empty(f"{file}.json") if some else {}
        for name, changes in some.items():
            table = TABLES[file][name]
            made = find_result(known, table.key or name, settings_of(table, changes), table.defaults)
            if made is None and left_out.get(name, {}).get("asked") != changes:
                return False
    return True


def _alike(value: Any, default: Any) -> bool:
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, int | float):
        right = int if isinstance(default, int) else (int, float)
        return isinstance(value, right)
    return isinstance(value, type(default))
