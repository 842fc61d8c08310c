"""Measurements made after training: `geometry.json` and `robustness.json`, read without trust.

Figures of the runs of one row are averaged only where they were measured with the same settings: those that most of
the row's runs have. Whoever shows a figure also shows the settings, and says where rows differ in them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steppe.report.numbers import number
from steppe.report.record import Record, dig
from steppe.report.rows import Row, Stat, name_row, spread

_NOT_SETTINGS = {"with", "with_sha256", "compiled"}
_USUAL = {"batch": 512, "batchnorm": "running", "subsets": 1}
"""Settings that came later than some results, which count as made with these: said only where they are others."""
_OF_TRAINING = {"noise_loss": ("sigma", "draws", "examples")}
"""Results that training adds itself hold their settings among their figures."""


@dataclass(frozen=True)
class Subject:
    """A run that something was measured on."""

    record: Record
    row: int
    name: str
    """as the figures call it: its row, and its seed where several of the row were measured"""
    first: bool
    """whether it is the first of its row: the others are shown when the reader chooses all seeds"""


def results_of(record: Record) -> dict[str, Any]:
    """Return all results of a run, by measure."""
    both = {**record.geometry, **record.robustness}
    return {str(name): found for name, found in both.items() if isinstance(found, Mapping)}


def find_subjects(rows: Sequence[Row], records: Sequence[Record]) -> list[Subject]:
    """Find the runs with results beyond what training itself measures, in the order of the rows."""
    by_id = {record.id: record for record in records}
    out = []
    for index, row in enumerate(rows):
        own = [by_id[run_id] for run_id in row.run_ids if set(results_of(by_id[run_id])) - set(_OF_TRAINING)]
        for place, record in enumerate(own):
            seed = f" · seed {record.config.seed}" if len(own) > 1 else ""
            out.append(Subject(record, index, name_row(row, rows) + seed, place == 0))
    return out


def describe_settings(measure: str, found: Mapping[str, Any]) -> str:
    """Describe the settings of a result: "points 25, radius 1, examples 256"."""
    settings = found.get("settings")
    if not isinstance(settings, Mapping):
        settings = {key: found[key] for key in _OF_TRAINING.get(measure, ()) if key in found}
    shown = {str(k): v for k, v in settings.items() if k not in _NOT_SETTINGS and not (k in _USUAL and v == _USUAL[k])}
    return ", ".join(f"{key.replace('_', ' ')} {_word(value)}" for key, value in shown.items())


def describe_making(found: Mapping[str, Any]) -> str:
    """Describe how a result was computed beyond its settings: batch, mode of BatchNorm, precision, device."""
    how = found.get("how") if isinstance(found.get("how"), Mapping) else {}
    made = found.get("made_on") if isinstance(found.get("made_on"), Mapping) else {}
    shown = {**dict(made or {}), **dict(how or {})}
    return ", ".join(f"{str(key).replace('_', ' ')} {_word(value)}" for key, value in shown.items())


def with_usual_settings(records: Sequence[Record], measure: str) -> list[Record]:
    """Return a row's runs that have a measure with the settings that most of them have."""
    having = [record for record in records if measure in results_of(record)]
    said = [describe_settings(measure, results_of(record)[measure]) for record in having]
    if not having:
        return []
    usual = Counter(said).most_common(1)[0][0]
    return [record for record, text in zip(having, said, strict=True) if text == usual]


def stat_of(records: Sequence[Record], measure: str, read: Callable[[Mapping[str, Any]], float | None]) -> Stat:
    """Average a figure of a measure over a row's runs."""
    return spread([read(results_of(record)[measure]) for record in with_usual_settings(records, measure)])


def number_at(*keys: str) -> Callable[[Mapping[str, Any]], float | None]:
    """Return a reader of the number at a place of a result."""
    return lambda found: number(dig(found, *keys))


def note_settings(records: Sequence[Record], measure: str) -> dict[str, Any]:
    """Describe the settings of some runs: one text, or where they differ each with its count."""
    said = Counter(
        describe_settings(measure, found)
        for record in records
        if (found := results_of(record).get(measure)) is not None
    )
    if len(said) < 2:
        return {"text": next(iter(said), ""), "mixed": False}
    parts = [f"{text or 'settings unknown'} ({count} run{'' if count == 1 else 's'})" for text, count in said.items()]
    return {"text": "; ".join(parts), "mixed": True}


def numbers(values: Any, digits: int = 4) -> list[float | None]:
    """Round a list of numbers; anything that is no number becomes a gap."""
    return [short(number(value), digits) for value in values] if isinstance(values, list) else []


def short(value: float | None, digits: int = 4) -> float | None:
    """Round to so many digits."""
    return None if value is None else float(f"{value:.{digits}g}")


def _word(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no"}.get(value, "–") if value is not None else "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)
