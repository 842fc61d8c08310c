"""One run as the report reads it: every file once, none of them trusted, each of them optional."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from steppe.config import RunConfig
from steppe.errors import RunError
from steppe.report.numbers import number
from steppe.runs import Run, is_locked

_FILES = ("cost.json", "geometry.json", "env.json", "data.json", "robustness.json", "mistakes.json")


@dataclass(frozen=True)
class Record:
    """What a run folder holds. A file that is damaged counts as absent, and `reason` says so."""

    id: str
    config: RunConfig
    status: str
    """finished, failed or unfinished"""
    running: bool
    """whether a process of this machine is at it"""
    reason: str
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]
    cost: dict[str, Any]
    geometry: dict[str, Any]
    env: dict[str, Any]
    data: dict[str, Any]
    robustness: dict[str, Any]
    mistakes: dict[str, Any]
    path: Path


def read_record(run: Run) -> Record:
    """Read a run folder.

    Raises:
        RunError: its configuration is damaged, so that nothing in it can be placed.
    """
    config = run.config
    damage: list[str] = []

    def read(name: str) -> dict[str, Any]:
        try:
            return run.read(name)
        except RunError as error:
            damage.append(f"{name}: {error.what}")
            return {}

    try:
        metrics = run.metrics()
    except (RunError, OSError) as error:
        damage.append(f"metrics.jsonl: {error.what if isinstance(error, RunError) else error}")
        metrics = []
    summary = read("summary.json")
    status = summary.get("status")
    if status not in ("finished", "failed"):
        status = "unfinished"
    reason = str(summary.get("reason") or "no reason was recorded") if status == "failed" else ""
    found = {name.removesuffix(".json"): read(name) for name in _FILES}
    running = status == "unfinished" and is_locked(run.path)
    if status == "unfinished":
        reason = str(summary.get("reason") or _progress(config, metrics, running))
    reason = "; ".join([*([reason] if reason else []), *damage])
    return Record(run.id, config, status, running, reason, summary, metrics, **found, path=run.path)


def _progress(config: RunConfig, metrics: Sequence[Mapping[str, Any]], running: bool) -> str:
    """Say how far a run without a result is: "running, epoch 4 of 60"."""
    done = int(metrics[-1]["epoch"]) if metrics else 0
    total = config.budget.epochs
    of = f" of {total}" if total else ""
    if running:
        return (
            f"running, epoch {done + 1}{of}" if not total or done < total else f"running, all {total} epochs are done"
        )
    return f"stopped after epoch {done}{of}" if done else "stopped before its first epoch was done"


def read_records(runs: Sequence[Run]) -> list[Record]:
    """Read the runs, each configuration once: a copy is no second seed. A finished copy is preferred."""
    kept: dict[str, Record] = {}
    for run in runs:
        record = read_record(run)
        name = record.config.hash
        if name not in kept or (record.status == "finished" and kept[name].status != "finished"):
            kept[name] = record
    return with_unique_ids(list(kept.values()))


def with_unique_ids(records: list[Record]) -> list[Record]:
    """Number the records whose folders share a name."""
    seen: dict[str, int] = {}
    out = []
    for record in records:
        seen[record.path.name] = times = seen.get(record.path.name, 0) + 1
        out.append(record if times == 1 else replace(record, id=f"{record.path.name} ({times})"))
    return out


def class_names(records: Sequence[Record], count: int | None = None) -> tuple[str, ...]:
    """Return the names in the first `data.json` that has them; numbers where none names so many.

    Args:
        records: runs on the same classes.
        count: how many names there must be; None: any number.
    """
    for record in records:
        names = record.data.get("classes")
        if isinstance(names, list) and len(names) == (len(names) if count is None else count):
            return tuple(str(name)[:200] for name in names)
    return tuple(map(str, range(count or 0)))


def dig(value: Any, *keys: str) -> Any:
    """Follow `keys` into nested mappings; None where the way ends."""
    for key in keys:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def flatten(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    """List nested mappings as ("section.key", text) pairs."""
    if isinstance(value, Mapping):
        return [pair for key, inner in value.items() for pair in flatten(inner, f"{prefix}.{key}" if prefix else key)]
    if isinstance(value, list) and not any(isinstance(part, Mapping | list) for part in value):
        value = " ".join(map(str, value))
    return [(prefix, "–" if value is None else str(value))]


def _result(*keys: str) -> Callable[[Record], float | None]:
    return lambda record: number(dig(record.summary, *keys)) if record.status == "finished" else None


def _noise(record: Record) -> float | None:
    return number(dig(record.geometry, "noise_loss", "mean"))


def _noise_increase(record: Record) -> float | None:
    noisy, clean = _noise(record), number(dig(record.geometry, "noise_loss", "clean"))
    return None if noisy is None or clean is None else noisy - clean


MEASURES: dict[str, Callable[[Record], float | None]] = {
    "test_accuracy": _result("test", "accuracy"),
    "test_accuracy_tta": _result("test_tta", "accuracy"),
    "val_accuracy": _result("val", "accuracy"),
    "train_accuracy": _result("train", "accuracy"),
    "parameters": lambda record: number(record.cost.get("parameters")),
    "flops_per_image": lambda record: number(record.cost.get("flops_per_image")),
    "time_per_epoch_s": _result("time_per_epoch_s"),
    "time_s": _result("time_s"),
    "gradient_evaluations": _result("gradient_evaluations"),
    "epochs": _result("epochs"),
    "joules": lambda record: number(dig(record.cost, "training_energy", "joules")),
    "price": lambda record: number(dig(record.cost, "price", "training")),
    "noise_loss": _noise,
    "noise_loss_increase": _noise_increase,
}
"""What is averaged over seeds, and how it is read from a run. Results count when the run finished."""
