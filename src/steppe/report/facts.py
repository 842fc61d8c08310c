"""Facts about the runs: how many, their data, machine and cost, and which of them are not complete."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from steppe.config import dump_toml
from steppe.report.findings import Sentence
from steppe.report.image_sets import short_name
from steppe.report.numbers import MISSING, duration, number, percent, whole
from steppe.report.record import Record, dig, flatten
from steppe.report.rows import Row
from steppe.report.studies import StudyRuns


def overview_facts(
    records: Sequence[Record], rows: Sequence[Row], images: Mapping[str, float | None]
) -> list[dict[str, str]]:
    """Collect the facts under the answer.

    Args:
        records: the runs.
        rows: their summary.
        images: how many test images each test set has, by its name.
    """
    counts = [(s, sum(state_of(r) == s for r in records)) for s in ("finished", "failed", "running", "stopped")]
    states = ", ".join(f"{n} {status}" for status, n in counts if n)
    if len(records) > 1 and counts[0][1] == len(records):
        states = "all finished"
    seeds = sorted({len(row.seeds) for row in rows})
    seed_text = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]}–{seeds[-1]}" if seeds else MISSING
    data = list(images) if len(images) > 1 else [short_name(record.config.data.name) for record in records[:1]]
    train = {_count_training_images(record) for record in records}
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
    data = data or [MISSING]
    return [
        {"name": "Runs", "value": str(len(records)), "note": states},
        {"name": "Seeds per row", "value": seed_text, "note": f"{len(rows)} row{'' if len(rows) == 1 else 's'}"},
        {"name": "Data", "value": data[0] if len(data) == 1 else f"{len(data)} data sets", "note": ", ".join(notes)},
        {"name": "Spent", "value": duration(seconds), "note": f"{whole(gradients)} gradient evaluations"},
        {"name": "Machine", "value": machine, "note": threads},
    ]


def _spent(record: Record, name: str) -> float:
    """Return what a run has spent in all, or up to its last record."""
    last = record.metrics[-1].get(name) if record.metrics else None
    return number(record.summary.get(name)) or number(last) or 0.0


def _count_training_images(record: Record) -> float | None:
    """Count the images that a run was trained on."""
    splits = ("train",) if record.config.validates else ("train", "val")
    counts = [number(dig(record.data, "examples", split)) for split in splits]
    return None if None in counts else sum(count for count in counts if count is not None)


def describe_progress(records: Sequence[Record], names: Mapping[str, str]) -> list[Sentence]:
    """Describe the run with the most epochs, while none has finished.

    Args:
        records: the runs.
        names: what they are, by their ids, where that is worth saying.
    """
    begun = [record for record in records if record.metrics]
    if not begun:
        return []
    record = max(begun, key=lambda r: int(r.metrics[-1]["epoch"]))
    kind = "validation" if record.config.validates else "training"
    accuracy = percent(number(record.metrics[-1].get("val_accuracy" if kind == "validation" else "train_accuracy")))
    where = " came furthest: " if len(begun) > 1 else ": "
    end = f"{where}{accuracy} {kind} accuracy after epoch {record.metrics[-1]['epoch']}."
    return [[(_with_seed(names.get(record.id, ""), record.config.seed) or record.id, True), (end, False)]]


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


def state_of(record: Record) -> str:
    """Name the state of a run."""
    if record.status == "unfinished":
        return "running" if record.running else "stopped"
    return record.status


def list_troubles(parts: Sequence[StudyRuns], names: Mapping[str, str]) -> list[dict[str, str]]:
    """List the runs without a result, with damaged files or never started, each with the reason.

    Args:
        parts: the studies.
        names: what the runs are, by their ids, where that is worth saying.
    """
    out = []
    for part in parts:
        for record in part.records:
            if record.reason:
                state = "damaged" if record.status == "finished" else state_of(record)
                name = _with_seed(names.get(record.id, ""), record.config.seed)
                out.append({"run": record.id, "name": name, "status": state, "reason": record.reason})
        listed, known = part.about.get("runs"), {record.path.name for record in part.records}
        for entry in listed if isinstance(listed, list) and part.records else []:
            run_id = str(dig(entry, "run_id"))
            if run_id in known:
                continue
            failed, labels = dig(part.about, "failed", run_id), dig(entry, "labels")
            name = " · ".join(map(str, labels.values())) if isinstance(labels, Mapping) else ""
            out.append(
                {
                    "run": run_id,
                    "name": _with_seed(name, dig(entry, "seed")),
                    "status": "failed" if failed else "not started",
                    "reason": str(failed) if failed else "the study plans it, but it has no folder",
                }
            )
    return out


def count_troubles(troubles: Sequence[Mapping[str, str]]) -> str:
    """Count the runs without a result by state: "1 run is running, 2 have failed"."""
    if len(troubles) == 1 and troubles[0]["status"] in ("running", "stopped"):
        return f"1 run: {troubles[0]['reason']}"
    words = {
        "running": ("is running", "are running"),
        "stopped": ("has stopped", "have stopped"),
        "failed": ("has failed", "have failed"),
        "not started": ("has not been started", "have not been started"),
        "damaged": ("has damaged files", "have damaged files"),
    }
    parts: list[str] = []
    for state, (one, several) in words.items():
        count = sum(trouble["status"] == state for trouble in troubles)
        if count:
            thing = "" if parts else " run" if count == 1 else " runs"
            parts.append(f"{count}{thing} {one if count == 1 else several}")
    return ", ".join(parts)


def _with_seed(name: str, seed: object) -> str:
    return f"{name} · seed {seed}" if name else ""


def run_card(record: Record, anchor: str, name: str = "") -> dict[str, Any]:
    """Collect what is needed to repeat a run."""
    accuracy = number(dig(record.summary, "test", "accuracy"))
    environment = flatten(record.env) if record.env else []
    return {
        "anchor": anchor,
        "id": record.id,
        "name": name,
        "status": state_of(record),
        "seed": record.config.seed,
        "accuracy": percent(accuracy) if record.status == "finished" else "",
        "toml": dump_toml(record.config),
        "command": _command(record),
        "environment": "\n".join(f"{key}: {text}" for key, text in environment),
    }


def _command(record: Record) -> str:
    """Return the command of a run as a shell takes it."""
    words = record.env.get("command")
    if isinstance(words, list):
        return shlex.join(str(word) for word in words)
    return words if isinstance(words, str) else ""
