"""Single figures of geometry and robustness: a table of those that matter, and every one with its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steppe.report.numbers import MISSING, number, percent
from steppe.report.record import Record, dig
from steppe.report.results import (
    Subject,
    describe_making,
    describe_settings,
    number_at,
    results_of,
    short,
    stat_of,
    with_usual_settings,
)
from steppe.report.rows import Row, Stat, name_row


@dataclass(frozen=True)
class Figure:
    """A column of the table of figures."""

    measure: str
    title: str
    hint: str
    read: Callable[[Mapping[str, Any]], float | None]
    share: bool = False


def _rise(found: Mapping[str, Any]) -> float | None:
    noisy, clean = number(found.get("mean")), number(found.get("clean"))
    return None if noisy is None or clean is None else noisy - clean


def _active(found: Mapping[str, Any]) -> float | None:
    """Return the share of active neurons, over all blocks."""
    blocks = found.get("activations")
    known = [
        (number(dig(block, "active")), number(dig(block, "neurons")))
        for block in (blocks.values() if isinstance(blocks, Mapping) else ())
    ]
    known = [(active, count) for active, count in known if active is not None and count]
    total = sum(count or 0.0 for _, count in known)
    return sum((active or 0.0) * (count or 0.0) for active, count in known) / total if total else None


FIGURES = [
    Figure(
        "lambda_max", "λmax", "largest eigenvalue of the Hessian", number_at("parts", "whole", "lambda_max", "value")
    ),
    Figure(
        "lambda_max", "λmin", "smallest eigenvalue of the Hessian", number_at("parts", "whole", "lambda_min", "value")
    ),
    Figure("trace", "Trace", "trace of the Hessian", number_at("parts", "whole", "mean")),
    Figure(
        "sharpness", "SAM sharpness", "rise of the loss in a ball, to first order", number_at("none", "first_order")
    ),
    Figure("sharpness", "ASAM sharpness", "the same, scaled by the weights", number_at("weights", "first_order")),
    Figure("noise_loss", "Rise under noise", "how much Gaussian noise on the weights raises the loss", _rise),
    Figure("landscape", "Loss at the weights", "the middle of the landscape", number_at("centre")),
    Figure("between", "Barrier", "highest rise on the way to another run", number_at("barrier")),
    Figure("ntk", "NTK κ", "condition number of the tangent kernel, trained weights", number_at("kappa")),
    Figure(
        "ntk_initial", "NTK κ at first", "condition number of the tangent kernel, first weights", number_at("kappa")
    ),
    Figure("norms", "‖weights‖", "norm of all weights", number_at("weights", "whole")),
    Figure("norms", "‖gradient‖", "norm of the gradient", number_at("gradients", "whole")),
    Figure("norms", "Active neurons %", "share above zero after the activation, all blocks", _active, share=True),
    Figure(
        "missing_rate",
        "Missing rate %",
        "mixtures of two images taken for a third class",
        number_at("rate"),
        share=True,
    ),
    Figure("scores", "Top-1 %", "test images classified rightly", number_at("top1"), share=True),
    Figure("scores", "Top-5 %", "right class among the five likeliest", number_at("top5"), share=True),
    Figure("scores", "ECE", "expected calibration error", number_at("ece")),
    Figure("scores", "NLL", "negative log likelihood of the test images", number_at("nll")),
    Figure("scores", "Brier", "squared error of the probabilities", number_at("brier")),
    Figure(
        "tta",
        "TTA %",
        "test images classified rightly by the mean answer to several views",
        number_at("augmented"),
        share=True,
    ),
    Figure("corruptions", "Corrupted %", "mean accuracy under corruptions", number_at("mean"), share=True),
    Figure("attacks", "FGSM %", "accuracy under a one-step attack", number_at("fgsm"), share=True),
    Figure("attacks", "PGD %", "accuracy under an attack of several steps", number_at("pgd"), share=True),
    Figure("variants", "ImageNet V2 %", "accuracy on ImageNet V2", number_at("imagenet_v2", "top1"), share=True),
    Figure("variants", "ImageNet R %", "accuracy on ImageNet R", number_at("imagenet_r", "top1"), share=True),
    Figure("variants", "ImageNet ReaL %", "accuracy on ImageNet ReaL", number_at("imagenet_real", "top1"), share=True),
]


def figure_table(rows: Sequence[Row], records: Sequence[Record], subjects: Sequence[Subject]) -> dict[str, Any]:
    """Build one line for each measured row, one column for each figure that any of them has."""
    by_id = {record.id: record for record in records}
    measured = sorted({subject.row for subject in subjects})
    groups = {index: [by_id[run_id] for run_id in rows[index].run_ids] for index in measured}
    stats = {(i, f.title): stat_of(groups[i], f.measure, f.read) for i in measured for f in FIGURES}
    shown = [f for f in FIGURES if any(stats[i, f.title].mean is not None for i in measured)]
    heads = [{"text": "Row", "hint": "", "kind": "text"}]
    heads += [{"text": f.title, "hint": f.hint, "kind": "number"} for f in shown]
    body = []
    for index in measured:
        name = name_row(rows[index], rows)
        cells: list[dict[str, Any]] = [{"text": name, "sort": name, "kind": "label", "room": 0}]
        for figure in shown:
            stat = stats[index, figure.title]
            text, spread = _show(stat, figure.share)
            room = max(len(_show(stats[i, figure.title], figure.share)[1]) for i in measured)
            cells.append({"text": text, "spread": spread, "sort": stat.mean, "kind": "number", "room": room})
        body.append({"cells": cells, "front": False})
    return {"heads": heads, "rows": body, "sorted": None, "ordered": False}


def attack_table(rows: Sequence[Row], records: Sequence[Record]) -> list[dict[str, Any]]:
    """Build one line for each attacked row: accuracies, the attack, and the check for masked gradients."""
    by_id = {record.id: record for record in records}
    out = []
    for row in rows:
        group = with_usual_settings([by_id[run_id] for run_id in row.run_ids], "attacks")
        cells = [stat_of(group, "attacks", number_at(key)) for key in ("clean", "fgsm", "pgd")]
        if all(stat.mean is None for stat in cells):
            continue
        found = results_of(group[0])["attacks"]
        checks = [(record.config.seed, results_of(record)["attacks"].get("check")) for record in group]
        checks = [(seed, check) for seed, check in checks if isinstance(check, Mapping)]
        warnings: list[dict[str, Any]] = [
            {"seed": seed, "text": str(w)} for seed, check in checks if (w := check.get("warning"))
        ]
        epsilon = number(found.get("epsilon"))
        out.append(
            {
                "name": name_row(row, rows),
                "cells": [
                    {"text": percent(s.mean, s.std, unit=""), "sort": "" if s.mean is None else s.mean} for s in cells
                ],
                "epsilon": MISSING if epsilon is None else f"{255 * epsilon:.3g}/255",
                "steps": str(found.get("steps", MISSING)),
                "images": str(found.get("examples", MISSING)),
                "warnings": warnings,
                "masked": any("masked" in one["text"] for one in warnings),
                "checked": len(checks),
            }
        )
    return out


def every_scalar(subjects: Sequence[Subject]) -> dict[str, Any]:
    """List every number of every result; names and settings are listed once and referred to by position."""
    names: dict[str, int] = {}
    settings: dict[str, int] = {}
    lines: list[list[Any]] = []
    for index, subject in enumerate(subjects):
        for measure, found in results_of(subject.record).items():
            making = describe_making(found)
            text = describe_settings(measure, found) + (f" · {making}" if making else "")
            place = settings.setdefault(text, len(settings))
            for path, value in _numbers(found):
                name = f"{measure} {path}"
                lines.append([index, names.setdefault(name, len(names)), short(value, 5), place])
    return {"names": list(names), "settings": list(settings), "lines": lines}


def _numbers(found: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    """List the numbers in nested mappings; lists are curves and tables, which are drawn elsewhere."""
    out: list[tuple[str, float]] = []
    for key, value in found.items():
        if not prefix and key in ("settings", "how", "made_on"):
            continue
        path = f"{prefix} {key}".strip().replace("_", " ")
        if isinstance(value, Mapping):
            out += _numbers(value, path)
        elif (known := number(value)) is not None:
            out.append((path, known))
    return out


def _show(stat: Stat, share: bool) -> tuple[str, str]:
    if stat.mean is None:
        return MISSING, ""
    if share:
        return f"{100 * stat.mean:.1f}", "" if stat.std is None else f"± {100 * stat.std:.1f}"
    return _figure(stat.mean, 3), "" if stat.std is None else f"± {_figure(stat.std, 2)}"


def _figure(value: float, digits: int) -> str:
    text = f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:,.0f}"  # no 2.2e+02 for 218
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        text = f"{value:.{digits - 1}e}"
    return text.replace("-", "−")
