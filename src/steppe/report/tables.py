"""The summary table and the matrix of verdicts, as text for the template."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from steppe.report import findings
from steppe.report.image_sets import deciding_accuracy
from steppe.report.layout import Layout
from steppe.report.numbers import compact, duration, loss, percent, points, whole
from steppe.report.rows import Row, Stat, label_columns

MOST_METHODS = 6
"""So many stand side by side in the matrix of verdicts."""

_COLUMNS: list[tuple[str, str, str]] = [
    ("test_accuracy", "Test acc. %", "share of the test images classified rightly, mean ± standard deviation"),
    ("test_accuracy_tta", "with TTA %", "the same with test-time augmentation: the mean answer to several views"),
    ("parameters", "Params", "weights of the network"),
    ("flops_per_image", "FLOPs / image", "forward pass of one image, two for each multiply-add"),
    (
        "time_per_epoch_s",
        "Time / epoch",
        "training time of one pass over the images: the median of the whole epochs after the first, which warms up",
    ),
    ("time_s", "Training time", "whole training time, without evaluation"),
    ("gradient_evaluations", "Gradient evals", "batch gradients; a sharpness-aware step costs two"),
    ("noise_loss", "Loss under noise", "training loss after Gaussian noise was added to the weights"),
    ("noise_loss_increase", "Rise", "how much that noise raises the loss: lower is flatter"),
    ("val_accuracy", "Val. acc. %", "accuracy on the validation images"),
    ("train_accuracy", "Train acc. %", "accuracy on the training images"),
]


class Cell(NamedTuple):
    """A cell of the table beside the chart."""

    text: str
    kind: str
    """label, text or number"""
    small: str = ""
    """what stands below it"""


def summary_table(rows: Sequence[Row]) -> dict[str, Any]:
    """Build the summary table: each cell with its text, sort key, spread and the room its column needs."""
    columns = label_columns(rows)
    front = findings.unbeaten(rows, "time_s") if len(rows) > 1 else set()
    shown = [c for c in _COLUMNS if c[0] != "test_accuracy_tta" or any(row.test_accuracy_tta.n for row in rows)]
    measures = sorted(shown, key=lambda column: column[0] != deciding_accuracy(rows))
    room = {name: max((len(_show(name, row.stat(name))[1]) for row in rows), default=0) for name, _, _ in measures}
    body = []
    for index, row in enumerate(rows):
        cells: list[dict[str, Any]] = []
        for labels in columns.values():
            kind = "label long" if len(labels[index]) > 28 else "label"
            cells.append({"text": labels[index], "sort": labels[index], "kind": kind, "room": 0})
        for name, _, _ in measures:
            text, spread = _show(name, row.stat(name))
            sort = row.stat(name).mean
            cells.append({"text": text, "sort": sort, "kind": "number", "spread": spread, "room": room[name]})
        cells.insert(len(columns) + 1, {"text": _seeds(row), "sort": row.finished, "kind": "number", "room": 0})
        body.append({"cells": cells, "front": index in front})
    heads = [{"text": name, "hint": "", "kind": "text"} for name in columns]
    heads += [{"text": text, "hint": hint, "kind": "number"} for _, text, hint in measures]
    seeds = {"text": "Seeds", "hint": "finished runs, each with its own seed", "kind": "number"}
    heads.insert(len(columns) + 1, seeds)
    return {
        "heads": heads,
        "rows": body,
        "sorted": len(columns),
        "ordered": len({row.study for row in rows}) < 2,
        "by_validation": deciding_accuracy(rows) == "val_accuracy",
    }


def _show(name: str, stat: Stat) -> tuple[str, str]:
    """Show a measure's mean, and its spread where that is worth its place."""
    if "accuracy" in name:
        return _split_spread(percent(stat.mean, stat.std, unit=""))
    if name.startswith("noise"):
        return _split_spread(loss(stat.mean, stat.std))
    if name.endswith("_s"):
        return duration(stat.mean), ""
    return (whole(stat.mean) if name == "gradient_evaluations" else compact(stat.mean)), ""


def _split_spread(text: str) -> tuple[str, str]:
    mean, sign, std = text.partition(" ± ")
    return mean, sign.strip() + " " + std if std else ""


def _seeds(row: Row) -> str:
    total = len(row.seeds)
    return str(total) if row.finished == total else f"{row.finished} of {total}"


def verdict_matrix(comparisons: Sequence[findings.Comparison], layout: Layout) -> dict[str, Any]:
    """Build the matrix of comparisons: a line for each setting, a column for each method and budget.

    Where there are many methods for few settings it is turned, so that it can be read without scrolling to the side.
    """
    methods = list(dict.fromkeys((c.budget, c.sharp, c.plain) for c in comparisons))
    settings = [panel for panel in layout.panels if any(c.setting == panel for c in comparisons)]
    cells = {(c.setting, (c.budget, c.sharp, c.plain)): _verdict(c) for c in comparisons}
    if len(methods) > MOST_METHODS and len(settings) < len(methods):
        said = [f"against {plain}, at equal {budget}" for budget, _, plain in methods]
        once = said[0] if len(set(said)) == 1 else ""
        lines = [
            {"name": method[1], "small": "" if once else what, "cells": [cells.get((one, method)) for one in settings]}
            for method, what in zip(methods, said, strict=True)
        ]
        groups = [(once[:1].upper() + once[1:], len(settings))] if once else []
        columns = [(setting or "All", "") for setting in settings]
        return {"corner": "Method", "groups": groups, "columns": columns, "lines": lines}
    budgets = Counter(budget for budget, _, _ in methods)
    return {
        "corner": layout.panel_word.removesuffix("s").capitalize(),
        "groups": [(f"At equal {budget}", span) for budget, span in budgets.items()],
        "columns": [(sharp, f"against {plain}") for _, sharp, plain in methods],
        "lines": [
            {"name": setting or "All", "small": "", "cells": [cells.get((setting, method)) for method in methods]}
            for setting in settings
        ],
    }


def _verdict(comparison: findings.Comparison) -> dict[str, str]:
    half = comparison.found.half
    spread = "" if half is None else f" ± {100 * half:.2f}"
    return {
        "text": points(comparison.difference) + spread,
        "verdict": comparison.verdict,
        "kind": comparison.verdict.replace(" ", "-"),
        "seeds": f"{comparison.seeds[0]} against {comparison.seeds[1]} seeds",
    }
