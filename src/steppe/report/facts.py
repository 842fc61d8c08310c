"""What the page says about the runs as such: how many, on what, where, what they spent, and which are not complete."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from steppe.config import dump_toml
from steppe.report.findings import Sentence
from steppe.report.numbers import MISSING, duration, number, percent, whole
from steppe.report.record import Record, dig, flatten
from steppe.report.table import Row


def overview_facts(
    records: Sequence[Record], rows: Sequence[Row], images: Mapping[str, float | None]
) -> list[dict[str, str]]:
    """The facts under the answer.

    Args:
        records: the runs.
        rows: their summary.
        images: how many test images each test set has, by its name.
    """
    counts = [(s, sum(r.status == s for r in records)) for s in ("finished", "failed", "unfinished")]
    states = ", ".join(f"{n} {status}" for status, n in counts if n)
    if len(records) > 1 and counts[0][1] == len(records):
        states = "all finished"
    seeds = sorted({len(row.seeds) for row in rows})
    seed_text = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]}–{seeds[-1]}" if seeds else MISSING
    data = list(images) if len(images) > 1 else list(dict.fromkeys(record.config.data.name for record in records))
    train = {number(dig(record.data, "examples", "train")) for record in records}
    notes = [f"{whole(train.pop())} training"] if len(train) == 1 and None not in train else []
    counted = [
        f"{whole(count)} test images" + (f" of {name}" if len(images) > 1 else "")
        for name, count in images.items()
        if count
    ]
    if len(images) > 2 and len(set(images.values())) == 1 and counted:
        counted = [f"{whole(next(iter(images.values())))} test images each"]
    notes += counted[:4] + (["…"] if len(counted) > 4 else [])
    seconds, gradients = (
        sum(_spent(record, name) for record in records) for name in ("time_s", "gradient_evaluations")
    )
    machine, threads = _machine(records)
    return [
        {"name": "Runs", "value": str(len(records)), "note": states},
        {"name": "Seeds per row", "value": seed_text, "note": f"{len(rows)} row{'' if len(rows) == 1 else 's'}"},
        {"name": "Data", "value": data[0] if len(data) == 1 else f"{len(data)} data sets", "note": ", ".join(notes)},
        {"name": "Spent", "value": duration(seconds), "note": f"{whole(gradients)} gradient evaluations"},
        {"name": "Machine", "value": machine, "note": threads},
    ]


def _spent(record: Record, name: str) -> float:
    """What a run has spent: as it ended, or as far as it came."""
    last = record.metrics[-1].get(name) if record.metrics else None
    return number(record.summary.get(name)) or number(last) or 0.0


def so_far(records: Sequence[Record]) -> list[Sentence]:
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


def describe_noise(records: Sequence[Record]) -> str:
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


def list_troubles(rows: Sequence[Row], records: Sequence[Record], study: Mapping[str, Any]) -> list[dict[str, str]]:
    """The runs without a result or with damage, and those that a study plans and nobody began, each with the reason."""
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


def run_card(record: Record, anchor: str) -> dict[str, Any]:
    """All that is needed to make a run again."""
    accuracy = number(dig(record.summary, "test", "accuracy"))
    environment = flatten(record.env) if record.env else []
    return {
        "anchor": anchor,
        "id": record.id,
        "status": record.status,
        "seed": record.config.seed,
        "accuracy": percent(accuracy) if record.status == "finished" else "",
        "toml": dump_toml(record.config),
        "command": _command(record),
        "environment": "\n".join(f"{key}: {text}" for key, text in environment),
    }


def _command(record: Record) -> str:
    """The command a run came from, as a shell takes it."""
    words = record.env.get("command")
    if isinstance(words, list):
        return shlex.join(str(word) for word in words)
    return words if isinstance(words, str) else ""
