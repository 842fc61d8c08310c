"""What a search leaves beside its runs: every run in a table, the Pareto fronts, and why the best one was chosen."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from steppe.data import Dataset
from steppe.runs import Run, write_atomically, write_json
from steppe.search.budget import Budget, Clock
from steppe.search.space import describe

COSTS = ("time_s", "gradient_evaluations", "flops_per_image", "parameters")
_FIGURES = ("val_accuracy", "val_loss", "test_accuracy", *COSTS)


def tabulate(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One row for each finished run, with `front_COST` true where no other is as accurate for less.

    Accuracy is that of the validation images that all trials are compared by; only the chosen run has seen others.
    """
    rows = []
    for run in runs:
        summary, counted = run.read_or_empty("summary.json"), run.read_or_empty("cost.json")
        if not run.finished:
            continue
        val = summary["val"] or {"accuracy": None, "loss": None}  # None: it learned the validation images
        rows.append(
            {
                "run": run.id,
                **describe(run.config),
                "val_accuracy": val["accuracy"],
                "val_loss": val["loss"],
                "test_accuracy": summary.get("test", {}).get("accuracy"),
                "time_s": summary["time_s"],
                "gradient_evaluations": summary["gradient_evaluations"],
                "flops_per_image": counted.get("flops_per_image"),
                "parameters": counted.get("parameters"),
            }
        )
    for cost in COSTS:
        known = [row for row in rows if row[cost] is not None and row["val_accuracy"] is not None]
        for row in rows:
            row[f"front_{cost}"] = row in known and not any(_beats(other, row, cost) for other in known)
    return sorted(rows, key=_rank, reverse=True)


def _beats(other: dict[str, Any], row: dict[str, Any], cost: str) -> bool:
    no_worse = other[cost] <= row[cost] and other["val_accuracy"] >= row["val_accuracy"]
    return no_worse and (other[cost] < row[cost] or other["val_accuracy"] > row["val_accuracy"])


def _rank(row: dict[str, Any]) -> tuple[float, float]:
    """Rank a row by its validation figures; one that has none comes first: it is chosen without them."""
    return (1.1, 0.0) if row["val_accuracy"] is None else (row["val_accuracy"], -row["val_loss"])


def write_fronts(rows: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """Write `pareto.csv`, every run with its marks, and `pareto.json`, the fronts by cost, cheapest first."""
    fronts = {
        cost: sorted((r for r in rows if r[f"front_{cost}"]), key=lambda r: (r[cost], r["val_accuracy"]))
        for cost in COSTS
    }
    slim = {
        cost: [{key: row[key] for key in ("run", "model", "training", *_FIGURES)} for row in some]
        for cost, some in fronts.items()
    }
    write_json(folder / "pareto.json", {"accuracy": "val_accuracy", "fronts": slim})
    text = io.StringIO()
    if rows:
        names = list(dict.fromkeys(name for row in rows for name in row))
        writer = csv.DictWriter(text, fieldnames=names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    write_atomically(folder / "pareto.csv", text.getvalue())
    return [folder / "pareto.json", folder / "pareto.csv"]


def explain(chosen: Run, rows: Sequence[dict[str, Any]], tried: int, budget: Budget) -> str:
    """Say in one sentence which run is the best, by how much, and what the test images say of it.

    Args:
        chosen: the best run, which has been tested.
        rows: from `tabulate`, the best first.
        tried: how many configurations there were.
        budget: the search's.
    """

    def cost(row: dict[str, Any]) -> str:
        return f"{row['time_s']:.1f} s" if budget.timed else f"{row['gradient_evaluations']:g} gradients"

    best = rows[0]
    others = [row for row in rows if row["model"] != best["model"]]
    ahead = f", the best of {tried} configurations tried within {budget}" if tried > 1 else ""
    if others:
        gap = 100 * (best["val_accuracy"] - others[0]["val_accuracy"])
        by = f"{gap:.1f} points ahead of" if gap >= 0.05 else "as accurate as"
        ahead += f" and {by} the best other architecture, {others[0]['model']} ({cost(others[0])})"
    return (
        f"{best['model']} under {best['training']} ({best['settings']}) reaches {best['val_accuracy']:.1%} on "
        f"{_images(chosen, 'val')} after {cost(best)} of training{ahead}; on {_images(chosen, 'test')}, which decided "
        f"nothing, {best['test_accuracy']:.1%}."
    ).replace("%", " %")


LOW = 0.5
"""An accuracy below this, with chance far away, is called low."""


def explain_pretrained(chosen: Run, words: str, dataset: Dataset) -> str:
    """Say how accurate the best network is, beside chance and the largest class; accuracy comes first.

    Args:
        chosen: the best run; it may not be tested yet.
        words: its accuracy by cross-validation, and what it is.
        dataset: the images.
    """
    test = chosen.summary.get("test")
    classes = len(dataset.classes)
    labels = dataset.test.labels
    largest = torch.bincount(labels, minlength=classes).max().item() / max(1, len(labels))
    bars = f"Chance is {1 / classes:.1%}, always naming the largest class {largest:.1%}."
    accuracy = (test or chosen.summary["val"] or {"accuracy": 1.0})["accuracy"]
    first = "" if test is None else f"{accuracy:.1%} right on {test['examples']:,} test images. "
    text = f"{first}{words} images. {bars}"
    if accuracy < max(2 / classes, LOW * (1 - 1 / classes)):
        text += (
            " That is low: look at the most confident mistakes, check the labels, or bring more images of each class."
        )
    return re.sub(r"(?<=\d)%", " %", text)


def _images(run: Run, split: str) -> str:
    """Of how many images an accuracy is, where not of all."""
    summary, sizes = run.summary, run.read_or_empty("data.json").get("examples", {})
    name, seen, whole = {"val": "validation"}.get(split, split), summary[split].get("examples"), sizes.get(split)
    if seen == whole:
        return f"the {name} images"
    every = summary.get(f"{split}_all", {}).get("accuracy")
    return f"{seen:,} of {whole:,} {name} images" + ("" if every is None else f" ({every:.1%} on all)")


@dataclass(frozen=True)
class Fitted:
    """What a search found.

    Args:
        folder: where everything is.
        best: the run with the best validation accuracy.
        answer: why, in a sentence.
        runs: every run, the best first, then unfinished ones.
        clock: what it took, in all sessions.
        budget: what it was given.
        spent: what it spent of that.
    """

    folder: Path
    best: Run
    answer: str
    runs: list[Run]
    clock: Clock
    budget: Budget
    spent: float


def write_study(
    folder: Path, runs: Sequence[Run], data: str, answer: str, budget: Budget, *, starts: Sequence[str] = ()
) -> None:
    """Write `study.json`, which the report page is made from, and the link `best`.

    Args:
        folder: the search's.
        runs: in the order they are to be listed, the best first.
        data: the name of the images.
        answer: what the page says first.
        budget: the search's.
        starts: ids of runs that others began with, and that are compared with nothing.
    """
    name = Path(data).name or "data"
    about = {"name": f"fit-{name}", "title": f"The best model for {name} in {budget}", "answer": answer}
    listed = [{"run_id": run.id, "labels": describe(run.config), "seed": run.config.seed} for run in runs]
    write_json(folder / "study.json", {**about, "best": runs[0].id, "runs": listed, "starts": list(starts)})
    _point_to(folder / "best", runs[0])


def _point_to(link: Path, run: Run) -> None:
    """Make `best` a link to the best run, where the file system has links; `fit.json` says it in any case."""
    with contextlib.suppress(OSError):
        if link.is_symlink() or not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(run.id, target_is_directory=True)
