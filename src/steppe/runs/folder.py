"""The run folder, the hinge of the system: everything before it makes one, everything after it reads one.

config.toml               the whole configuration, every default written out
env.json                  versions, machine, device, commit and command
data.json                 what was learned from: sizes, classes, fingerprint
metrics.jsonl             one JSON line a record, only ever added to
summary.json              how it ended: "finished" or "failed", with the reason
weights.safetensors       the final weights
checkpoint.safetensors    where to go on; only while the run is not finished
cost.json, geometry.json  what was measured on it afterwards
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from steppe.config import RunConfig, dump_toml, load_run_config
from steppe.errors import ConfigError, RunError
from steppe.runs.files import explain_os_error, read_json, write_atomically, write_json


class Run:
    """A run folder that exists. Reading is always safe; writing is for whoever holds the `lock`."""

    def __init__(self, path: str | Path) -> None:
        """Open a run folder.

        Raises:
            RunError: the folder is missing or is no run.
        """
        self.path = Path(path)
        if not (self.path / "config.toml").is_file():
            mend = "name a folder that `steppe train` or `steppe study run` made"
            raise RunError("this is not a run folder: it has no config.toml", where=str(path), mend=mend)

    def __repr__(self) -> str:
        """Show the folder."""
        return f"Run({str(self.path)!r})"

    @property
    def id(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def config(self) -> RunConfig:
        """What the run was asked to do."""
        try:
            return load_run_config(self.path / "config.toml")
        except ConfigError as error:
            raise RunError(f"the run's configuration is damaged: {error.what}", where=error.where) from None

    @property
    def summary(self) -> dict[str, Any]:
        """How the run ended; empty while it has not."""
        return self.read("summary.json")

    @property
    def finished(self) -> bool:
        """Whether training came to its end."""
        return self.summary.get("status") == "finished"

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

    def write(self, name: str, value: dict[str, Any]) -> None:
        """Add or replace a JSON file of the folder, atomically."""
        write_json(self.path / name, value)

    def metrics(self) -> list[dict[str, Any]]:
        """Read the records, one an epoch.

        A last line cut short by a crash is passed over. After a resumption an epoch may stand twice: the later
        record, which is the one the run went on from, counts.
        """
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        lines = path.read_bytes().split(b"\n")
        by_epoch: dict[int, dict[str, Any]] = {}
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                by_epoch[int(record["epoch"])] = record
            except (ValueError, KeyError, TypeError, RecursionError):
                if number == len(lines):
                    break
                raise RunError("a record in the middle is damaged", where=f"{path}, line {number}") from None
        return [by_epoch[epoch] for epoch in sorted(by_epoch)]

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
        try:
            handle = os.open(self.path / ".lock", os.O_CREAT | os.O_RDWR, 0o666)
        except OSError as error:
            raise explain_os_error(error, self.path) from None
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                mend = "wait for it, or stop it and run the same command again"
                raise RunError("another process is working on this run", where=str(self.path), mend=mend) from None
            yield
        finally:
            os.close(handle)


def create_run(path: str | Path, config: RunConfig) -> Run:
    """Open the run folder at `path`, making it where there is none.

    Raises:
        RunError: the folder holds a run of another configuration, or something that is no run.
    """
    path = Path(path)
    if (path / "config.toml").exists():
        run = Run(path)
        if run.config.hash != config.hash:
            different = ", ".join(_differences(run.config.model_dump(), config.model_dump()))
            mend = "choose another folder with --out, or leave --out away: each configuration has a folder of its own"
            raise RunError(f"this folder belongs to another configuration: {different}", where=str(path), mend=mend)
        return run
    if path.is_dir() and any(p.name != ".lock" and not p.name.endswith(".tmp") for p in path.iterdir()):
        raise RunError("this folder is not empty and holds no run", where=str(path), mend="choose another with --out")
    write_atomically(path / "config.toml", dump_toml(config))
    return Run(path)


def find_runs(paths: list[str] | list[Path]) -> list[Run]:
    """Collect the runs in the given folders: each may be a run, or hold runs at any depth."""
    found: dict[Path, Run] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise RunError("there is no such folder", where=str(path), mend="check the path")
        configs = [path / "config.toml"] if (path / "config.toml").is_file() else sorted(path.rglob("config.toml"))
        for config in configs:
            found.setdefault(config.parent.resolve(), Run(config.parent))
    if not found:
        where = ", ".join(map(str, paths))
        raise RunError("there are no runs here", where=where, mend="train one first: `steppe train`")
    return list(found.values())


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
