"""The run folder, the hinge of the system: everything before it makes one, everything after it reads one.

config.toml               the whole configuration, every default written out
env.json                  versions, machine, device, commit and command
data.json                 what was learned from: sizes, classes, fingerprint
metrics.jsonl             one JSON line a record, only ever added to
summary.json              how it ended: "finished" or "failed", with the reason
weights.safetensors       the final weights
checkpoint.safetensors    where to go on; only while the run is not finished
cost.json, geometry.json, robustness.json, figures/  what was measured on it afterwards; on CUDA also the energy
answers.safetensors       what it answered on every test image, for comparing runs
mistakes.json, .jpg       of a search's winner: counts by class, and its most confident mistakes as pictures
calibration.json          the temperature of its probabilities, made by `steppe predict` or `steppe export`
trackers.json             the tracked runs it is told to, where there are any
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from steppe.config import RunConfig, dump_toml, load_run_config
from steppe.errors import ConfigError, RunError
from steppe.plain_files import read_plain
from steppe.runs.files import explain_os_error, holds_others, locked, read_json, write_atomically, write_json


class Run:
    """A run folder that exists. Reading is always safe; writing is for whoever holds the `lock`."""

    def __init__(self, path: str | Path) -> None:
        """Open a run folder.

        Raises:
            RunError: the folder is missing or is no run.
        """
        self.path = Path(path)
        if not (self.path / "config.toml").is_file():
            fix = "name a folder that `steppe train` or `steppe study run` made"
            raise RunError("this is not a run folder: it has no config.toml", where=str(path), fix=fix)

    def __repr__(self) -> str:
        """Show the folder."""
        return f"Run({str(self.path)!r})"

    @property
    def id(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def config(self) -> RunConfig:
        """What the run was asked to do.

        Raises:
            RunError: the file is damaged, or is not the one a finished run was made from.
        """
        fix = "put config.toml back as it was"
        try:
            config = load_run_config(self.path / "config.toml")
        except ConfigError as error:
            raise RunError(f"the run's configuration is damaged: {error.what}", where=error.where, fix=fix) from None
        expected = self.read_or_empty("summary.json").get("config_sha256")
        if expected and expected != self.config_sha256:
            raise RunError("the run's configuration was changed after training", where=str(self.path), fix=fix)
        return config

    @property
    def config_sha256(self) -> str:
        """A digest of the configuration's text, kept in the summary."""
        return hashlib.sha256(read_plain(self.path / "config.toml")).hexdigest()

    @property
    def summary(self) -> dict[str, Any]:
        """How the run ended; empty while it has not."""
        return self.read("summary.json")

    @property
    def finished(self) -> bool:
        """Whether training came to its end and its weights are there."""
        there = self.weights.is_file() and self.weights.stat().st_size > 0
        return there and self.read_or_empty("summary.json").get("status") == "finished"

    @property
    def weights(self) -> Path:
        """The final weights."""
        return self.path / "weights.safetensors"

    @property
    def checkpoint(self) -> Path:
        """Where to go on from."""
        return self.path / "checkpoint.safetensors"

    def read(self, name: str) -> dict[str, Any]:
        """Read a JSON file of the folder; empty when there is none."""
        path = self.path / name
        if not path.exists():
            return {}
        value = read_json(path)
        if not isinstance(value, dict):
            raise RunError("this should hold a JSON object", where=str(path))
        return value

    def read_or_empty(self, name: str) -> dict[str, Any]:
        """Read a JSON file that can be made again; empty when it is missing or damaged."""
        try:
            return self.read(name)
        except RunError:
            return {}

    def write(self, name: str, value: dict[str, Any]) -> None:
        """Add or replace a JSON file of the folder, atomically."""
        write_json(self.path / name, value)

    def metrics(self) -> list[dict[str, Any]]:
        """Read the records, one an epoch.

        A last line cut short by a crash is passed over. A resumption goes back to the last checkpoint: where a record
        of an earlier epoch follows on later ones, those are of the time that was lost, and do not count.
        """
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        try:
            lines = read_plain(path).split(b"\n")
        except OSError as error:
            raise RunError(f"the records cannot be read: {error.strerror}", where=str(path)) from None
        records: list[dict[str, Any]] = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                _check_numbers(record)
                while records and int(records[-1]["epoch"]) >= int(record["epoch"]):
                    records.pop()
                records.append(record)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
                if number == len(lines):
                    break
                raise RunError("a record in the middle is damaged", where=f"{path}, line {number}") from None
        return records

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Add one record; first drop what a crash left of an unfinished last line."""
        path = self.path / "metrics.jsonl"
        try:
            with open(path, "ab+") as file:
                _drop_torn_line(file)
                file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
                file.flush()
        except OSError as error:
            raise explain_os_error(error, path) from None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run for writing; the lock goes with the process, so a killed one leaves none behind."""
        with locked(self.path, "run"):
            yield


def create_run(path: str | Path, config: RunConfig) -> Run:
    """Open the run folder at `path`, making it where there is none.

    Of several processes that do so at the same moment one makes it; the others are in its folder.

    Raises:
        RunError: the folder holds a run of another configuration, or something that is no run.
    """
    path = Path(path)
    if not _is_run(path):
        _begin(path, config)
    run = Run(path)
    there = run.config
    if there.hash != config.hash:
        different = ", ".join(_differences(there.model_dump(), config.model_dump()))
        fix = "choose another folder with --out, or leave --out away: each configuration has a folder of its own"
        raise RunError(f"this folder belongs to another configuration: {different}", where=str(path), fix=fix)
    return run


def _is_run(path: Path) -> bool:
    try:
        return (path / "config.toml").exists()
    except OSError as error:
        raise explain_os_error(error, path) from None


def _begin(path: Path, config: RunConfig) -> None:
    """Write the configuration into a folder that is empty or not there, unless another process is faster."""
    foreign = holds_others(path)
    if foreign and not path.is_dir():
        raise RunError("this is a file, not a folder", where=str(path), fix="choose another with --out")
    if foreign and not _is_run(path):
        raise RunError("this folder is not empty and holds no run", where=str(path), fix="choose another with --out")
    try:
        write_atomically(path / "config.toml", dump_toml(config), replace=False)
    except RunError:
        if not _is_run(path):
            raise
        # another process was faster, and cleared our unfinished file away


def find_runs(paths: list[str] | list[Path], skipped: list[str] | None = None) -> list[Run]:
    """Collect the runs in the given folders: each may be a run, or hold runs at any depth.

    Args:
        paths: the folders.
        skipped: is told about folders inside the given ones that look like runs and cannot be read.
    """
    found: dict[Path, Run] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise RunError("there is no such folder", where=str(path), fix="check the path")
        if (path / "config.toml").is_file():
            found.setdefault(path.resolve(), Run(path))
            continue
        for config in sorted(path.rglob("config.toml")):
            try:
                run = Run(config.parent)
                _ = run.config
            except RunError as error:
                if skipped is not None:
                    skipped.append(f"{config.parent}: {error.what.splitlines()[0]}")
                continue
            found.setdefault(run.path.resolve(), run)
    if not found:
        where = ", ".join(map(str, paths))
        raise RunError("there are no runs here", where=where, fix="train one first: `steppe train`")
    return list(found.values())


def split_group(name: str) -> tuple[Path, str]:
    """Split FOLDER:LABEL=VALUE,… into the folder and the labels; empty labels mean every run of the folder."""
    folder, _, labels = name.rpartition(":") if ":" in name and not Path(name).exists() else (name, "", "")
    return Path(folder), labels


def _check_numbers(record: Any) -> None:
    """What readers count with must be numbers; other keys are looked at where they are shown."""
    numbers = (record["epoch"], *(record.get(key, 0) for key in ("steps", "gradient_evaluations", "time_s")))
    if not all(map(math.isfinite, numbers)):
        raise ValueError("not a finite number")


def _drop_torn_line(file: Any) -> None:
    end = file.seek(0, os.SEEK_END)
    position = end
    while position > 0:
        start = max(0, position - 4096)
        file.seek(start)
        cut = file.read(position - start).rfind(b"\n")
        if cut >= 0:
            position = start + cut + 1
            break
        position = start
    if position != end:
        file.truncate(position)
    file.seek(0, os.SEEK_END)


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    out = []
    for key in old:
        if isinstance(old[key], dict):
            out += _differences(old[key], new[key], f"{prefix}{key}.")
        elif old[key] != new[key]:
            out.append(f"{prefix}{key} is {old[key]!r} there, {new[key]!r} here")
    return out
