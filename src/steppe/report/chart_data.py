"""The data of the page's charts: plain numbers for the page's script, rounded to five digits and thinned where long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from steppe.report.findings import fronts
from steppe.report.image_sets import deciding_accuracy, name_test_sets, split_by_test_set
from steppe.report.layout import Layout
from steppe.report.numbers import number
from steppe.report.record import Record
from steppe.report.rows import Row, name_row, spread

COSTS = {
    "time_s": "Training time, seconds",
    "gradient_evaluations": "Gradient evaluations",
    "epochs": "Epochs",
    "joules": "Energy, joules",
    "price": "Price, $",
    "flops_per_image": "FLOPs per image",
    "parameters": "Parameters",
}
"""Cost axes of the accuracy figure, with their titles; the first is shown first."""

ACCURACIES = {"test_accuracy": "Test accuracy", "val_accuracy": "Validation accuracy"}
CURVES = {
    "val_accuracy": "Validation accuracy",
    "train_loss": "Training loss",
    "val_loss": "Validation loss",
    "train_accuracy": "Training accuracy",
}
PROGRESS = {"epoch": "Epoch", "gradient_evaluations": "Gradient evaluations", "time_s": "Training time, seconds"}
FLATNESS = {"noise_loss_increase": "Rise of the loss under weight noise", "noise_loss": "Loss under weight noise"}

_MOST_POINTS = 300


def known_costs(rows: Sequence[Row]) -> dict[str, str]:
    """List the cost axes that can be drawn; the price is one, since the reader may give one for an hour."""
    timed = any(row.time_s.mean is not None for row in rows)
    return {
        cost: title
        for cost, title in COSTS.items()
        if any(row.stat(cost).mean is not None for row in rows) or (cost == "price" and timed)
    }


def figure_data(rows: Sequence[Row], records: Sequence[Record], layout: Layout) -> dict[str, Any]:
    """Collect what the page's script draws, as one JSON-able mapping."""
    by_id = {record.id: record for record in records}
    sets = name_test_sets(rows)
    measures = [*ACCURACIES, *COSTS, *FLATNESS]
    return {
        "panels": layout.panels,
        "series": layout.series,
        "titles": ACCURACIES | COSTS | CURVES | PROGRESS | FLATNESS,
        "rows": [
            {
                "name": name_row(row, rows),
                "panel": layout.panels.index(layout.panel_of[index]),
                "series": layout.series.index(layout.series_of[index]),
                "set": sets[index],
                "seeds": row.test_accuracy.n or row.val_accuracy.n,
                "values": {name: [_round(row.stat(name).mean), _round(row.stat(name).std)] for name in measures},
                "curve": curve([by_id[run_id] for run_id in row.run_ids]),
            }
            for index, row in enumerate(rows)
        ],
        "sets": list(dict.fromkeys(sets)),
        "judged": {name: deciding_accuracy([rows[i] for i in own]) for name, own in split_by_test_set(rows).items()},
        "fronts": {cost: fronts(rows, cost) for cost in COSTS},
    }


def curve(records: Sequence[Record]) -> dict[str, Any] | None:
    """Average learning curves over seeds: of the finished runs, or of all where none has finished."""
    finished = [record for record in records if record.status == "finished" and record.metrics]
    used = finished or [record for record in records if record.metrics]
    if not used:
        return None
    by_epoch: dict[int, list[dict[str, Any]]] = {}
    for record in used:
        for entry in record.metrics:
            by_epoch.setdefault(int(entry["epoch"]), []).append(entry)
    epochs = _thin(sorted(by_epoch))
    out: dict[str, Any] = {"runs": len(used), "x": {"epoch": epochs}, "y": {}}
    for name in PROGRESS:
        if name != "epoch":
            out["x"][name] = [_round(spread([number(e.get(name)) for e in by_epoch[x]]).mean) for x in epochs]
    for name in CURVES:
        stats = [spread([number(entry.get(name)) for entry in by_epoch[epoch]]) for epoch in epochs]
        out["y"][name] = {"mean": [_round(s.mean) for s in stats]}
        if any(s.std is not None for s in stats):
            out["y"][name]["std"] = [_round(s.std) for s in stats]
    return out


def _thin(epochs: list[int]) -> list[int]:
    if len(epochs) <= _MOST_POINTS:
        return epochs
    step = (len(epochs) - 1) / (_MOST_POINTS - 1)
    return [epochs[round(i * step)] for i in range(_MOST_POINTS)]


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
