"""One self-contained HTML page: what the runs say, with every figure's numbers, script and style inside it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from steppe.config import dump_toml
from steppe.errors import RunError
from steppe.report import findings
from steppe.report.figures import COSTS, CURVES, FLATNESS, PROGRESS, figure_data
from steppe.report.layout import Layout, lay_out
from steppe.report.numbers import MISSING, compact, duration, loss, number, percent, points, whole
from steppe.report.record import Record, dig, flatten, read_records
from steppe.report.table import Row, Stat, name_axis, name_row, summarise_records
from steppe.runs import Run, write_atomically

_COLUMNS: list[tuple[str, str, str]] = [
    ("test_accuracy", "Test acc. %", "share of the test images classified rightly, mean ± standard deviation"),
    ("parameters", "Params", "weights of the network"),
    ("flops_per_image", "FLOPs / image", "forward pass of one image, two for each multiply-add"),
    ("time_per_epoch_s", "Time / epoch", "training time of one pass over the images"),
    ("time_s", "Training time", "whole training time, without evaluation"),
    ("gradient_evaluations", "Gradient evals", "batch gradients; a sharpness-aware step costs two"),
    ("noise_loss", "Loss under noise", "training loss after Gaussian noise was added to the weights"),
    ("noise_loss_increase", "Rise", "how much that noise raises the loss: lower is flatter"),
    ("val_accuracy", "Val. acc. %", "accuracy on the validation images"),
    ("train_accuracy", "Train acc. %", "accuracy on the training images"),
]


def write_report(
    runs: Sequence[Run], out: str | Path, *, title: str | None = None, study: Mapping[str, Any] | None = None
) -> Path:
    """Write the report of some runs as one HTML file that needs no network.

    Args:
        runs: the runs, in the order they shall be listed.
        out: the file to write; an older page of ours is replaced in one step, anything else is left alone.
        title: the page's title; default: the study's, or one made from the runs.
        study: the content of a study's `study.json`.

    Returns:
        The file that was written.
    """
    out = Path(out)
    check_target(out)
    page = render(read_records(runs), title=title, study=study or {})
    write_atomically(out, page.encode("utf-8", "replace"))
    return out


def check_target(out: Path) -> None:
    """Refuse to write a page over anything that is not an earlier page of ours."""
    mend = "choose another name with -o"
    try:
        if not out.exists():
            return
        if not out.is_file():
            raise RunError("this is not a plain file, so no page is written there", where=str(out), mend=mend)
        with open(out, "rb") as file:
            start = file.read(8192)
    except OSError as error:
        raise RunError(f"no page can be written there: {error.strerror}", where=str(out)[:200], mend=mend) from None
    if start and b'<meta name="generator" content="steppe">' not in start:
        raise RunError("this file is not a page of steppe's, so it is not replaced", where=str(out), mend=mend)


def render(records: Sequence[Record], *, title: str | None, study: Mapping[str, Any]) -> str:
    """Fill the template."""
    rows = summarise_records(records, study)
    layout = lay_out(rows)
    examples = max((number(dig(r.summary, "test", "examples")) or 0 for r in records), default=0) or None
    measured = [row for row in rows if row.test_accuracy.mean is not None]
    comparisons = findings.compare(rows, layout, examples)
    told = findings.tell(comparisons, layout.panel_word)
    scripts = {"plotly": get_plotlyjs(), "page": _asset("page.js")}
    anchors = {record.id: f"run-{index}" for index, record in enumerate(records)}
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_asset("page.html.j2")).render(
        title=title or _study_text(study, "title") or _study_text(study, "name") or _default_title(rows),
        study_name=_study_text(study, "name"),
        question=_study_text(study, "question"),
        headline=[(answer, False)] if (answer := _study_text(study, "answer")) else findings.headline(rows),
        statements=[
            *findings.supporting(rows),
            *(told if len(told) <= 6 else []),
            *([] if measured else _so_far(records)),
        ],
        facts=_facts(records, rows, examples),
        verdicts=_verdicts(comparisons, layout),
        verdict_names={"panel": layout.panel_word.removesuffix("s").capitalize(), "examples": examples},
        table=_table(rows),
        has_curves=any(record.metrics for record in records),
        has_flatness=sum(row.noise_loss.mean is not None for row in rows) > 1,
        has_accuracy=len(measured) > 1,
        noise=_noise(records),
        choices={"cost": COSTS, "metric": CURVES, "progress": PROGRESS, "flatness": FLATNESS},
        panels=layout.panels,
        panel_word=layout.panel_word,
        troubles=_troubles(rows, records, study),
        behind=[
            {
                "name": name_row(row, rows),
                "runs": [(anchors[i], s) for i, s in zip(row.run_ids, row.seeds, strict=True)],
            }
            for row in rows
        ],
        runs=[_run_card(record, anchors[record.id]) for record in records],
        last_finished=_last_finished(records),
        css=Markup(_asset("page.css")),
        scripts={name: Markup(text) for name, text in scripts.items()},
        script_hashes=" ".join(f"'sha256-{_sha256(text)}'" for text in scripts.values()),
        blob=Markup(embed_json(figure_data(rows, records, layout))),
    )


def embed_json(value: Any) -> str:
    """Write JSON that may stand inside a script element: nothing in it can end the element or the line."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _table(rows: Sequence[Row]) -> dict[str, Any]:
    """The summary table: each cell with its text, what it is sorted by, its spread and the room its column needs."""
    axes = list(rows[0].labels) if rows else []
    front = findings.unbeaten(rows, "time_s") if len(rows) > 1 else set()
    room = {name: max((len(_show(name, row.stat(name))[1]) for row in rows), default=0) for name, _, _ in _COLUMNS}
    body = []
    for index, row in enumerate(rows):
        cells: list[dict[str, Any]] = []
        for axis in axes:
            kind = "label long" if len(row.labels[axis]) > 28 else "label"
            cells.append({"text": row.labels[axis], "sort": row.labels[axis], "kind": kind, "room": 0})
        for name, _, _ in _COLUMNS:
            text, spread = _show(name, row.stat(name))
            sort = row.stat(name).mean
            cells.append({"text": text, "sort": sort, "kind": "number", "spread": spread, "room": room[name]})
        cells.insert(len(axes) + 1, {"text": _seeds(row), "sort": row.finished, "kind": "number", "room": 0})
        body.append({"cells": cells, "front": index in front})
    heads = [{"text": name_axis(axis), "hint": "", "kind": "text"} for axis in axes]
    heads += [{"text": text, "hint": hint, "kind": "number"} for _, text, hint in _COLUMNS]
    seeds = {"text": "Seeds", "hint": "finished runs, each with its own seed", "kind": "number"}
    heads.insert(len(axes) + 1, seeds)
    return {"heads": heads, "rows": body, "sorted": len(axes)}


def _show(name: str, stat: Stat) -> tuple[str, str]:
    """Show a measure's mean, and its spread where that is worth its place."""
    if name.endswith("accuracy"):
        return _apart(percent(stat.mean, stat.std, unit=""))
    if name.startswith("noise"):
        return _apart(loss(stat.mean, stat.std))
    if name.endswith("_s"):
        return duration(stat.mean), ""
    return (whole(stat.mean) if name == "gradient_evaluations" else compact(stat.mean)), ""


def _apart(text: str) -> tuple[str, str]:
    mean, sign, std = text.partition(" ± ")
    return mean, sign.strip() + " " + std if std else ""


def _seeds(row: Row) -> str:
    total = len(row.seeds)
    return str(total) if row.finished == total else f"{row.finished} of {total}"


def _verdicts(comparisons: Sequence[findings.Comparison], layout: Layout) -> dict[str, Any]:
    """The comparisons as a matrix: a line for each setting, a column for each method and budget."""
    columns = list(dict.fromkeys((c.budget, c.sharp, c.plain) for c in comparisons))
    cells = {(c.setting, (c.budget, c.sharp, c.plain)): c for c in comparisons}
    budgets = list(dict.fromkeys(budget for budget, _, _ in columns))
    lines = []
    for setting in layout.panels:
        found = [cells.get((setting, column)) for column in columns]
        if any(found):
            lines.append({"name": setting or "All", "cells": [_verdict(c) if c else None for c in found]})
    return {
        "budgets": [(budget, sum(column[0] == budget for column in columns)) for budget in budgets],
        "columns": columns,
        "lines": lines,
    }


def _verdict(comparison: findings.Comparison) -> dict[str, str]:
    spread = "" if comparison.spread is None else f" ± {100 * comparison.spread:.2f}"
    return {
        "text": points(comparison.difference) + spread,
        "verdict": comparison.verdict,
        "kind": comparison.verdict.replace(" ", "-"),
        "seeds": f"{comparison.seeds[0]} against {comparison.seeds[1]} seeds",
    }


def _facts(records: Sequence[Record], rows: Sequence[Row], examples: float | None) -> list[dict[str, str]]:
    counts = [(s, sum(r.status == s for r in records)) for s in ("finished", "failed", "unfinished")]
    states = ", ".join(f"{n} {status}" for status, n in counts if n)
    if len(records) > 1 and counts[0][1] == len(records):
        states = "all finished"
    seeds = sorted({len(row.seeds) for row in rows})
    seed_text = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]}–{seeds[-1]}" if seeds else MISSING
    data = list(dict.fromkeys(record.config.data.name for record in records))
    train = {number(dig(record.data, "examples", "train")) for record in records}
    images = [f"{whole(train.pop())} training"] if len(train) == 1 and None not in train else []
    images += [f"{whole(examples)} test images"] if examples else []
    seconds, gradients = (
        sum(_spent(record, name) for record in records) for name in ("time_s", "gradient_evaluations")
    )
    machine, threads = _machine(records)
    return [
        {"name": "Runs", "value": str(len(records)), "note": states},
        {"name": "Seeds per row", "value": seed_text, "note": f"{len(rows)} row{'' if len(rows) == 1 else 's'}"},
        {"name": "Data", "value": data[0] if len(data) == 1 else f"{len(data)} data sets", "note": ", ".join(images)},
        {"name": "Spent", "value": duration(seconds), "note": f"{whole(gradients)} gradient evaluations"},
        {"name": "Machine", "value": machine, "note": threads},
    ]


def _spent(record: Record, name: str) -> float:
    """What a run has spent: as it ended, or as far as it came."""
    last = record.metrics[-1].get(name) if record.metrics else None
    return number(record.summary.get(name)) or number(last) or 0.0


def _so_far(records: Sequence[Record]) -> list[findings.Sentence]:
    """Where the run that came furthest stands, while none has finished."""
    begun = [record for record in records if record.metrics]
    if not begun:
        return []
    record = max(begun, key=lambda r: int(r.metrics[-1]["epoch"]))
    accuracy = percent(number(record.metrics[-1].get("val_accuracy")))
    end = f" came furthest: epoch {record.metrics[-1]['epoch']}, {accuracy} validation accuracy."
    return [[(record.id, True), (end, False)]]


def _machine(records: Sequence[Record]) -> tuple[str, str]:
    """Name the device and the threads of the runs, as far as they agree."""
    devices = dict.fromkeys(str(r.env.get("device_name") or r.env.get("device") or "") for r in records if r.env)
    threads = dict.fromkeys(text for r in records if (text := str(r.env.get("threads") or "")))
    device = next(iter(devices), "") if len(devices) < 2 else f"{len(devices)} machines"
    thread = next(iter(threads), "") if len(threads) < 2 else " or ".join(threads)
    return device or MISSING, f"{thread} thread{'' if thread == '1' else 's'} per run" if thread else ""


def _noise(records: Sequence[Record]) -> str:
    """Say how the flatness figure was measured, where all runs agree."""
    found = {
        tuple(number(dig(record.geometry, "noise_loss", key)) for key in ("sigma", "draws", "examples"))
        for record in records
        if dig(record.geometry, "noise_loss", "mean") is not None
    }
    if len(found) != 1:
        return ""
    sigma, draws, images = found.pop()
    if sigma is None or draws is None or images is None:
        return ""
    return f"noise of standard deviation {sigma:g}, {whole(draws)} draws, {whole(images)} training images"


def _troubles(rows: Sequence[Row], records: Sequence[Record], study: Mapping[str, Any]) -> list[dict[str, str]]:
    status = {record.id: record.status for record in records}
    reasons = {run_id: reason for row in rows for run_id, reason in row.reasons.items()}
    out = [
        {"run": run_id, "status": "damaged" if status[run_id] == "finished" else status[run_id], "reason": reason}
        for run_id, reason in reasons.items()
    ]
    listed = study.get("runs")
    for entry in listed if isinstance(listed, list) and records else []:
        run_id = str(dig(entry, "run_id"))
        if run_id not in status:
            failed = dig(study, "failed", run_id)
            reason = str(failed) if failed else "the study plans it, but it has no folder"
            out.append({"run": run_id, "status": "failed" if failed else "not started", "reason": reason})
    return out


def _run_card(record: Record, anchor: str) -> dict[str, Any]:
    accuracy = number(dig(record.summary, "test", "accuracy"))
    environment = flatten(record.env) if record.env else []
    return {
        "anchor": anchor,
        "id": record.id,
        "status": record.status,
        "seed": record.config.seed,
        "accuracy": percent(accuracy) if record.status == "finished" else "",
        "toml": dump_toml(record.config),
        "environment": "\n".join(f"{key}: {text}" for key, text in environment),
    }


def _default_title(rows: Sequence[Row]) -> str:
    if not rows:
        return "No runs"
    if len(rows) == 1:
        return f"{rows[0].config.model.name} on {rows[0].config.data.name.rstrip('/').rsplit('/', 1)[-1]}"
    return f"{len(rows)} configurations compared"


def _study_text(study: Mapping[str, Any], key: str) -> str:
    value = study.get(key)
    return value if isinstance(value, str) else ""


def _last_finished(records: Sequence[Record]) -> str:
    times = [str(record.summary["finished_at"]) for record in records if record.summary.get("finished_at")]
    return max(times, default="")[:16].replace("T", " ")


def _asset(name: str) -> str:
    return files("steppe.report").joinpath(name).read_text(encoding="utf-8")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
