"""Rows: runs that differ only in their seed, with mean and spread of every measure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steppe.config import RunConfig, leaves
from steppe.report.numbers import MISSING, number
from steppe.report.record import MEASURES, Record, dig, read_records
from steppe.runs import Run

_MOST_AXES = 5
_KEYS = frozenset(key for key, _ in leaves(RunConfig))


@dataclass(frozen=True)
class Stat:
    """A measure over seeds."""

    mean: float | None = None
    std: float | None = None
    """sample standard deviation; None with fewer than two seeds"""
    n: int = 0


@dataclass(frozen=True)
class Row:
    """Runs of one configuration, over their seeds."""

    labels: dict[str, str]
    config: RunConfig
    """the configuration they share, with the seed set to 0"""
    run_ids: tuple[str, ...]
    seeds: tuple[int, ...]
    finished: int
    failed: int
    unfinished: int
    reasons: dict[str, str]
    """run id to why it has no result, or what is damaged in it"""
    accuracies: dict[int, float]
    """test accuracy by seed, of the runs that have one"""
    test_images: float | None
    folders: dict[int, Path]
    """the folders of the runs that have a test accuracy, by seed"""
    test_accuracy: Stat
    test_accuracy_tta: Stat
    val_accuracy: Stat
    train_accuracy: Stat
    parameters: Stat
    flops_per_image: Stat
    time_per_epoch_s: Stat
    time_s: Stat
    gradient_evaluations: Stat
    epochs: Stat
    joules: Stat
    price: Stat
    noise_loss: Stat
    noise_loss_increase: Stat
    study: str = ""
    """the study they belong to, where the report is about several"""

    def stat(self, name: str) -> Stat:
        """Look a measure up by its name."""
        value = getattr(self, name)
        assert isinstance(value, Stat), name
        return value


def row_values(row: Row) -> dict[str, Any]:
    """Return a row in plain values: labels, runs, and mean, spread and number of seeds of every measure."""
    known = {name: row.stat(name) for name in MEASURES}
    return {
        **({"study": row.study} if row.study else {}),
        "labels": row.labels,
        "runs": list(row.run_ids),
        "seeds": list(row.seeds),
        **{name: getattr(row, name) for name in ("finished", "failed", "unfinished", "reasons")},
        **{name: {"mean": stat.mean, "std": stat.std, "n": stat.n} for name, stat in known.items() if stat.n},
    }


def summarise(runs: Sequence[Run], study: Mapping[str, Any] | None = None) -> list[Row]:
    """Group runs that differ only in their seed, and average what was measured.

    Args:
        runs: the runs, in the order of the rows. Copies of one run count once.
        study: the content of a study's `study.json`, whose axes then label the rows and whose order they take.
            Without it rows are labelled by the configuration keys in which they differ.
    """
    return summarise_records(read_records(runs), study)


def summarise_records(records: Sequence[Record], study: Mapping[str, Any] | None = None) -> list[Row]:
    """Do the work of `summarise` on runs that were read before."""
    groups: dict[str, list[Record]] = {}
    known = _labels_by_run(study or {})
    for record in records:
        groups.setdefault(_row_of(record, known), []).append(record)
    members = [sorted(group, key=lambda record: record.config.seed) for group in groups.values()]
    listed = (study or {}).get("runs")
    place = {str(dig(entry, "run_id")): i for i, entry in enumerate(listed if isinstance(listed, list) else [])}
    members.sort(key=lambda group: min(place.get(record.path.name, len(place)) for record in group))
    labels = _study_labels(members, known) or _config_labels([group[0].config for group in members])
    return [_row(group, label) for group, label in zip(members, labels, strict=True)]


def _row_of(record: Record, known: Mapping[str, Mapping[str, str]]) -> str:
    """Return what runs of one row share: all but the seed, and a run they begin from, which has a seed too."""
    config, labels = record.config.without_seed(), known.get(record.path.name)
    if labels is None or not (config.model.weights or "").startswith("run:"):
        return config.hash
    begun = config.model_copy(update={"model": config.model.model_copy(update={"weights": "run:"})})
    return f"{begun.hash} {sorted(labels.items())}"


def spread(values: Sequence[float | None]) -> Stat:
    """Take the mean and the sample standard deviation of the values that are there."""
    known = [value for value in values if value is not None]
    if not known:
        return Stat()
    mean = known[0] if len(set(known)) == 1 else statistics.fmean(known)
    return Stat(mean, statistics.stdev(known) if len(known) > 1 else None, len(known))


def varying_axes(rows: Sequence[Row]) -> list[str]:
    """List the label axes on which the rows differ."""
    axes = list(rows[0].labels) if rows else []
    return [axis for axis in axes if len({row.labels.get(axis) for row in rows}) > 1]


def name_row(row: Row, rows: Sequence[Row]) -> str:
    """Name a row by what distinguishes it: its study, and its labels within that."""
    peers = [other for other in rows if other.study == row.study]
    axes = varying_axes(peers) or [axis for axis in row.labels if axis != "data.name"]
    name = join_labels(row, axes) or row.config.model.name
    return name if len(peers) == len(rows) else f"{row.study} · {name}"


def label_columns(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the labels as columns: one for each axis, or one that joins them where studies differ in axes.

    More than a few axes are joined too: the row's name then says only what differs.
    """
    axes = list(rows[0].labels) if rows else []
    several = len({row.study for row in rows}) > 1
    if not several and len(axes) <= _MOST_AXES:
        short = [name_axis(axis) for axis in axes]
        heads = [name if short.count(name) == 1 else axis for name, axis in zip(short, axes, strict=True)]
        return {head: [row.labels[axis] for row in rows] for head, axis in zip(heads, axes, strict=True)}
    return join_columns(rows)


def join_columns(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return a row's labels in one column, beside its study where there are several."""
    several = len({row.study for row in rows}) > 1
    names = [name_row(row, [other for other in rows if other.study == row.study]) for row in rows]
    return ({"Study": [row.study for row in rows]} if several else {}) | {"Row": names}


def join_labels(row: Row, axes: Sequence[str]) -> str:
    """Join a row's labels: "ViT · SAM", or "vit_tiny_p2 · sam · rho 0.1" for configuration keys; those it has."""
    words = []
    for axis in axes:
        label = row.labels.get(axis, MISSING)
        if label == MISSING:
            continue
        if _is_option(axis) or _is_number(label):
            words.append(f"{axis.rsplit('.', 1)[-1].replace('_', ' ')} {label}")
        else:
            words.append(label)
    return " · ".join(words)


def name_axis(axis: str) -> str:
    """Turn a label axis into a column heading: "model.name" into "Model", "minimizer.rho" into "rho"."""
    text = axis.removesuffix(".name").rsplit(".", 1)[-1].replace("_", " ") if axis in _KEYS else axis
    return text if len(text) <= 3 else text[:1].upper() + text[1:]


def show_value(value: Any) -> str:
    """Show a configuration value in a label."""
    if value is None:
        return MISSING
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _row(group: Sequence[Record], labels: dict[str, str]) -> Row:
    statuses = [record.status for record in group]
    measured = {name: spread([read(record) for record in group]) for name, read in MEASURES.items()}
    tested = {
        record.config.seed: (accuracy, record)
        for record in group
        if (accuracy := MEASURES["test_accuracy"](record)) is not None
    }
    images = [number(dig(record.summary, "test", "examples")) for _, record in tested.values()]
    return Row(
        labels=labels,
        config=group[0].config.without_seed(),
        run_ids=tuple(record.id for record in group),
        seeds=tuple(record.config.seed for record in group),
        finished=statuses.count("finished"),
        failed=statuses.count("failed"),
        unfinished=statuses.count("unfinished"),
        reasons={record.id: record.reason for record in group if record.reason},
        accuracies={seed: accuracy for seed, (accuracy, _) in tested.items()},
        test_images=max((count for count in images if count and count >= 1), default=None),
        folders={seed: record.path for seed, (_, record) in tested.items()},
        **measured,  # type: ignore[arg-type]
    )


def _labels_by_run(study: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the labels that a study's plan gives its runs, by the runs' names."""
    listed = study.get("runs")
    known: dict[str, dict[str, str]] = {}
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, Mapping) and isinstance(entry.get("labels"), Mapping):
            known[str(entry.get("run_id"))] = {str(axis): str(label) for axis, label in entry["labels"].items()}
    return known


def _study_labels(groups: Sequence[Sequence[Record]], known: Mapping[str, Mapping[str, str]]) -> list[dict[str, str]]:
    """Label the groups by the study's axes; a run the study does not know is labelled by its configuration."""
    axes = list(dict.fromkeys(axis for labels in known.values() for axis in labels))
    if not axes:
        return []
    out = []
    for group in groups:
        labels: Mapping[str, str] | None
        labels = next((known[record.path.name] for record in group if record.path.name in known), None)
        if labels is None:
            config = group[0].config
            words = [f"{config.model.name} (not in the study)", config.minimizer.name]
            labels = dict(zip(axes, [*words, *[MISSING] * len(axes)], strict=False))
        out.append({axis: labels.get(axis, MISSING) for axis in axes})
    return out


def _config_labels(configs: Sequence[RunConfig]) -> list[dict[str, str]]:
    flat = [_flat(config) for config in configs]
    keys = _differing_keys(flat) or ["data.name", "model.name", "minimizer.name"]
    return [{key: show_value(values[key]) for key in keys} for values in flat]


def _differing_keys(flat: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the keys in which configurations differ, without the options that follow from their section's name."""
    if not flat:
        return []
    differing = [key for key in flat[0] if key != "seed" and len({repr(values[key]) for values in flat}) > 1]
    order = {"data": 0, "model": 1, "minimizer": 2, "optimizer": 3}
    differing.sort(key=lambda key: order.get(key.split(".")[0], 4))
    kept = []
    for key in differing:
        section_name = f"{key.split('.')[0]}.name"
        if key != section_name and section_name in differing:
            pairs = {(values[section_name], repr(values[key])) for values in flat}
            if len(pairs) == len({name for name, _ in pairs}):
                continue
        kept.append(key)
    return kept


def _is_option(axis: str) -> bool:
    """Whether an axis is a key such as "minimizer.rho", whose value alone says little. A study's axis is not."""
    return axis in _KEYS and not axis.endswith(".name")


def _is_number(label: str) -> bool:
    """Whether a label says nothing without its axis."""
    try:
        float(label)
    except ValueError:
        return False
    return True


def _flat(config: RunConfig) -> dict[str, Any]:
    values: dict[str, Any] = config.model_dump()
    out: dict[str, Any] = {}
    while values:
        key = next(iter(values))
        value = values.pop(key)
        if isinstance(value, dict):
            values = {f"{key}.{inner}": v for inner, v in value.items()} | values
        else:
            out[key] = value
    return out
