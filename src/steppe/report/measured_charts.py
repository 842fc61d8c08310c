"""The data of charts of geometry and robustness: landscapes, spectra, blocks, corruptions, calibration, attention.

Plain numbers for the page's script, rounded and thinned so that a study of fifty runs stays small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from steppe.report.confusion import confusions
from steppe.report.layout import Layout
from steppe.report.numbers import number
from steppe.report.pictures import PictureBudget, read_attention
from steppe.report.record import Record, dig
from steppe.report.results import Subject, note_settings, numbers, results_of, short, stat_of, with_usual_settings
from steppe.report.rows import Row, name_row, spread
from steppe.report.spectra import smooth_alike

BLOCKS = {
    "lambda_max": "λmax of the Hessian",
    "trace": "Trace of the Hessian",
    "weights": "Norm of the weights",
    "gradients": "Norm of the gradient",
    "active": "Active neurons",
}
"""What is shown block by block, with its title."""

_LONGEST_SIDE = 51
_MEASURE_OF = {
    "lambda_max": "lambda_max",
    "trace": "trace",
    "weights": "norms",
    "gradients": "norms",
    "active": "norms",
}


def measured_data(
    rows: Sequence[Row], records: Sequence[Record], layout: Layout, subjects: Sequence[Subject]
) -> dict[str, Any]:
    """Collect what the page's script draws of results, as one JSON-able mapping.

    Args:
        rows: the summary.
        records: its runs.
        layout: which row is in which panel, and of which colour.
        subjects: the runs with results.
    """
    by_id = {record.id: record for record in records}
    groups = [[by_id[run_id] for run_id in row.run_ids] for row in rows]
    return {
        "subjects": [
            {
                "name": subject.name,
                "row": subject.row,
                "panel": layout.panels.index(layout.panel_of[subject.row]),
                "series": layout.series.index(layout.series_of[subject.row]),
                "first": subject.first,
            }
            for subject in subjects
        ],
        "landscapes": _each(subjects, "landscape", _landscape),
        "lines": _each(subjects, "line", _line),
        "betweens": _betweens(subjects),
        "spectra": _spectra(subjects, layout),
        "blocks": {kind: found for kind in BLOCKS if (found := _blocks(kind, groups))},
        "corruptions": [c for i, group in enumerate(groups) if (c := _corruptions(group, i, name_row(rows[i], rows)))],
        "reliability": [r for i, group in enumerate(groups) if (r := _reliability(group, i))],
        "attention": _attention(subjects),
        "block_titles": BLOCKS,
        **confusions(rows, groups),
    }


def settings_notes(subjects: Sequence[Subject]) -> dict[str, dict[str, Any]]:
    """Return for every measure the settings it was made with."""
    records = [subject.record for subject in subjects]
    measures = dict.fromkeys(name for record in records for name in results_of(record))
    return {measure: note_settings(records, measure) for measure in measures}


def _each(
    subjects: Sequence[Subject], measure: str, read: Callable[[Mapping[str, Any]], dict[str, Any] | None]
) -> list[dict[str, Any]]:
    out = []
    for index, subject in enumerate(subjects):
        found = results_of(subject.record).get(measure)
        drawn = read(found) if found is not None else None
        if drawn is not None:
            out.append({"subject": index, **drawn})
    return out


def _landscape(found: Mapping[str, Any]) -> dict[str, Any] | None:
    steps = numbers(found.get("steps"), 5)
    loss = found.get("loss")
    if not isinstance(loss, list) or len(loss) != len(steps) or len(steps) < 2:
        return None
    kept = _thin(len(steps))
    grid = [numbers(line) for line in loss]
    if any(len(line) != len(steps) for line in grid) or any(step is None for step in steps):
        return None
    return {
        "steps": [steps[i] for i in kept],
        "loss": [[grid[i][j] for j in kept] for i in kept],
        "centre": short(number(found.get("centre"))),
    }


def _line(found: Mapping[str, Any]) -> dict[str, Any] | None:
    x, y = numbers(found.get("steps"), 5), numbers(found.get("loss"))
    return {"x": x, "y": y, "centre": short(number(found.get("centre")))} if x and len(x) == len(y) else None


def _betweens(subjects: Sequence[Subject]) -> list[dict[str, Any]]:
    """Collect the loss on the way from a run to another; runs of this page are called as on this page."""
    names = {subject.record.path.name: subject.name for subject in subjects}

    def read(found: Mapping[str, Any]) -> dict[str, Any] | None:
        x, y = numbers(found.get("shares"), 5), numbers(found.get("loss"))
        folder = str(dig(found, "settings", "with") or "the other").rstrip("/").rsplit("/", 1)[-1]
        if not x or len(x) != len(y):
            return None
        return {"x": x, "y": y, "other": names.get(folder, folder), "barrier": short(number(found.get("barrier")))}

    return _each(subjects, "between", read)


def _spectra(subjects: Sequence[Subject], layout: Layout) -> list[dict[str, Any]]:
    """Collect densities; within a panel all are smoothed by the same width, so that they compare."""
    panels: dict[str, dict[int, Any]] = {}
    for index, subject in enumerate(subjects):
        panels.setdefault(layout.panel_of[subject.row], {})[index] = results_of(subject.record).get("spectrum")
    drawn = {index: line for spectra in panels.values() for index, line in smooth_alike(spectra).items()}
    out = []
    for index, (grid, values) in sorted(drawn.items()):
        top = dig(results_of(subjects[index].record), "lambda_max", "parts", "whole", "top")
        marks = [number(dig(one, "value")) for one in top] if isinstance(top, list) else []
        out.append(
            {
                "subject": index,
                "x": [short(float(x), 4) for x in grid],
                "y": [short(float(y), 3) for y in values],
                "top": [short(mark) for mark in marks if mark is not None],
            }
        )
    return out


def _blocks(kind: str, groups: Sequence[Sequence[Record]]) -> list[dict[str, Any]]:
    """Collect a figure of each block of each row's model: mean and standard deviation over seeds."""
    measure = _MEASURE_OF[kind]
    out = []
    for index, group in enumerate(groups):
        found = [_parts(kind, results_of(record)[measure]) for record in with_usual_settings(group, measure)]
        names = dict.fromkeys(name for parts in found for name in parts)
        if not names:
            continue
        parts = {}
        for name in names:
            own = [parts[name] for parts in found if name in parts]
            stat = spread([value for value, _ in own])
            parts[name] = [short(stat.mean), short(stat.std), all(sure for _, sure in own)]
        out.append({"row": index, "seeds": len(found), "parts": parts})
    return out


def _parts(kind: str, found: Mapping[str, Any]) -> dict[str, tuple[float | None, bool]]:
    """Return for each block its figure, and whether it is reliable: an eigenvalue may not have converged."""
    place = {"active": "activations"}.get(kind, kind) if _MEASURE_OF[kind] == "norms" else "parts"
    parts = found.get(place)
    out: dict[str, tuple[float | None, bool]] = {}
    for name, value in parts.items() if isinstance(parts, Mapping) else ():
        if kind == "lambda_max":
            sure = dig(value, "lambda_max", "converged") is not False
            out[str(name)] = number(dig(value, "lambda_max", "value")), sure
        elif kind in ("trace", "active"):
            out[str(name)] = number(dig(value, "mean" if kind == "trace" else "active")), True
        else:
            out[str(name)] = number(value), True
    return out


def _corruptions(group: Sequence[Record], row: int, name: str) -> dict[str, Any] | None:
    used = with_usual_settings(group, "corruptions")
    tables = [dig(results_of(record), "corruptions", "table") for record in used]
    tables = [table for table in tables if isinstance(table, Mapping) and table]
    if not tables:
        return None
    lines = {}
    for corruption in dict.fromkeys(str(key) for table in tables for key in table):
        own = [numbers(table.get(corruption)) for table in tables]
        columns = max(map(len, own))
        lines[corruption] = [
            short(spread([values[i] if i < len(values) else None for values in own]).mean) for i in range(columns)
        ]
    mean = stat_of(group, "corruptions", lambda found: number(found.get("mean")))
    clean = stat_of(group, "scores", lambda found: number(found.get("top1")))
    return {
        "row": row,
        "name": name,
        "seeds": len(tables),
        "table": lines,
        "mean": [short(mean.mean), short(mean.std)],
        "clean": short(clean.mean),
    }


def _reliability(group: Sequence[Record], row: int) -> dict[str, Any] | None:
    """Collect confidence and accuracy in bins, over the images of all seeds."""
    lists = [dig(results_of(record), "scores", "reliability") for record in with_usual_settings(group, "scores")]
    lists = [bins for bins in lists if isinstance(bins, list) and bins]
    if not lists:
        return None
    points = []
    for place in range(max(map(len, lists))):
        known = []
        for bins in lists:
            one = bins[place] if place < len(bins) else None
            count, right, sure = (number(dig(one, key)) for key in ("count", "accuracy", "confidence"))
            if count and right is not None and sure is not None:
                known.append((count, right, sure))
        total = sum(count for count, _, _ in known)
        if total:
            right, sure = (sum(c[0] * c[k] for c in known) / total for k in (1, 2))
            points.append([short(sure), short(right), round(total)])
    ece = stat_of(group, "scores", lambda found: number(found.get("ece")))
    return {"row": row, "seeds": len(lists), "points": points, "ece": [short(ece.mean), short(ece.std)]}


def _attention(subjects: Sequence[Subject]) -> list[dict[str, Any]]:
    """Collect pictures, the first run of each row before the others, while there is room."""
    budget = PictureBudget()
    order = sorted(range(len(subjects)), key=lambda i: (not subjects[i].first, i))
    found = {}
    for index in order:
        if "attention" in results_of(subjects[index].record):
            picture = read_attention(subjects[index].record, budget)
            if picture is not None:
                found[index] = {"subject": index, **picture}
    return [found[index] for index in sorted(found)]


def _thin(count: int) -> list[int]:
    """Choose positions to keep: all, or fewer at equal distances with both ends."""
    if count <= _LONGEST_SIDE:
        return list(range(count))
    return [round(i * (count - 1) / (_LONGEST_SIDE - 1)) for i in range(_LONGEST_SIDE)]
