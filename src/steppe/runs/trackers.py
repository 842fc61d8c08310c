"""Trackers beside the run folder: TensorBoard, Weights & Biases, MLflow, Trackio.

Each is an observer that copies what the run folder keeps: the configuration, every epoch's record, the summary. A run
that goes on after a stop goes on in the same tracked run: `trackers.json` in the run folder holds its identity and the
last epoch that was told, so none is told twice, and a tracker that joins late is told what it missed. A tracker that
fails says so once and is not asked again; training goes on.

tensorboard   event files in RUN/tensorboard
wandb         RUN/wandb, offline unless $WANDB_MODE says otherwise; `wandb sync` sends it
mlflow        $MLFLOW_TRACKING_URI, else mlflow.db in the folder that holds the run
trackio       $TRACKIO_DIR, else Trackio's own folder in the user's cache; no account, nothing is sent
"""

from __future__ import annotations

import fcntl
import importlib.util
import io
import json
import logging
import os
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, ClassVar

from steppe.config import dump_toml
from steppe.errors import ConfigError, unknown_name
from steppe.runs.folder import Run
from steppe.runs.observer import Observer, Status

PROJECT = "steppe"
"""What runs are gathered under, where a tracker wants a project."""

STATE = "trackers.json"


class Tracker(Observer, ABC):
    """Tells a tracker about a run, and never lets it break the training."""

    name: ClassVar[str]

    def __init__(self, tell: Callable[[str], None]) -> None:
        """Prepare; nothing is opened before training starts.

        Args:
            tell: told, once, when the tracker fails.
        """
        self.tell = tell
        self.run: Run | None = None
        self.last = 0
        self.failed = False

    def start(self, run: Run, total_epochs: float, done_epochs: float) -> None:
        """Open the tracked run, or the one from before, and tell it what it missed."""
        if self.run is not None:  # the loop may begin again within one training
            return
        self.run = run
        self._try(self._start, run, done_epochs)

    def epoch(self, record: dict[str, Any]) -> None:
        """Tell an epoch, unless it was told before."""
        self._try(self._tell_epoch, record)

    def end(self, run: Run, status: Status) -> None:
        """Tell how it ended, and close."""
        if self.run is not None:
            self._try(self._close, run, status)
            self.run = None

    def _start(self, run: Run, done_epochs: float) -> None:
        known = run.read_or_empty(STATE).get(self.name) or {}
        identity = self._open(run, known.get("identity"))
        self.last = known.get("last_epoch", 0) if identity == known.get("identity") else 0
        self._keep(run, identity)
        for record in run.metrics():
            if record["epoch"] <= done_epochs:
                self._tell_epoch(record)

    def _tell_epoch(self, record: dict[str, Any]) -> None:
        epoch = record["epoch"]
        if self.run is None or epoch <= self.last:
            return
        self._log(_numbers({key: value for key, value in record.items() if key != "epoch"}), epoch)
        self.last = epoch
        self._keep(self.run, (self.run.read_or_empty(STATE).get(self.name) or {}).get("identity"))

    def _keep(self, run: Run, identity: Any) -> None:
        entry = {"identity": identity, "last_epoch": self.last}
        run.write(STATE, {**run.read_or_empty(STATE), self.name: entry})

    def _try(self, work: Callable[..., None], *arguments: Any) -> None:
        if self.failed:
            return
        try:
            work(*arguments)
        except Exception as error:
            self.failed = True
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            self.tell(f"{self.name} failed and is not told any more: {reason}; the run folder has everything")

    @abstractmethod
    def _open(self, run: Run, identity: Any) -> Any:
        """Begin a tracked run, or go on with that of `identity`; give the identity of the one that was opened."""

    @abstractmethod
    def _log(self, numbers: dict[str, float], epoch: int) -> None:
        """Tell one epoch's numbers."""

    @abstractmethod
    def _close(self, run: Run, status: Status) -> None:
        """Tell how the run ended."""


class TensorBoard(Tracker):
    """Event files, written with TensorBoard's own writer."""

    name = "tensorboard"

    def _open(self, run: Run, identity: Any) -> Any:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.writer = EventFileWriter(str(run.path / "tensorboard"))
        if identity is None:
            self._write_text("config", f"```toml\n{dump_toml(run.config)}```", 0)
        return "tensorboard"

    def _log(self, numbers: dict[str, float], epoch: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._write(
            Summary(value=[Summary.Value(tag=key, simple_value=value) for key, value in numbers.items()]), epoch
        )
        self.writer.flush()

    def _close(self, run: Run, status: Status) -> None:
        if status != "stopped":
            summary = run.read_or_empty("summary.json")
            self._write_text("summary", f"```json\n{json.dumps(summary, indent=2)}\n```", self.last)
            self._log(_results(summary), self.last)
        self.writer.close()

    def _write_text(self, tag: str, text: str, step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING

        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()], tensor_shape=shape)
        kind = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        self._write(Summary(value=[Summary.Value(tag=tag, metadata=kind, tensor=tensor)]), step)

    def _write(self, summary: Any, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self.writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))


class WandB(Tracker):
    """Weights & Biases. Offline by default: nothing is sent, and no login asked for, unless $WANDB_MODE says so."""

    name = "wandb"

    def _open(self, run: Run, identity: Any) -> Any:
        import wandb

        identity = identity or uuid.uuid4().hex[:12]
        self.tracked = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            id=identity,
            name=run.id,
            dir=str(run.path),
            config=run.config.model_dump(mode="json"),
            mode=os.environ.get("WANDB_MODE") or "offline",  # type: ignore[arg-type]
            resume="allow" if os.environ.get("WANDB_MODE") == "online" else None,
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True, disable_git=True, disable_code=True),
        )
        return identity

    def _log(self, numbers: dict[str, float], epoch: int) -> None:
        self.tracked.log(numbers, step=epoch)

    def _close(self, run: Run, status: Status) -> None:
        if status != "stopped":
            self.tracked.summary.update(_results(run.read_or_empty("summary.json")))
        self.tracked.summary["status"] = status
        self.tracked.finish(exit_code=1 if status == "failed" else 0)


class MLflow(Tracker):
    """MLflow, through its client, so that nothing of the process's own MLflow state is touched."""

    name = "mlflow"

    def _open(self, run: Run, identity: Any) -> Any:
        logging.getLogger("mlflow.store.db").setLevel(logging.WARNING)  # it tells about every table it makes
        logging.getLogger("alembic").setLevel(logging.WARNING)
        import mlflow
        from mlflow.entities import Param, RunTag

        home = run.path.resolve().parent
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home / 'mlflow.db'}"
        with _one_at_a_time(home / ".mlflow.lock"):  # the runs of a study begin together, and the tables are made once
            self.client = mlflow.MlflowClient(tracking_uri=uri)
            if identity and identity["uri"] == uri and self._goes_on(identity["run_id"]):
                self.run_id = identity["run_id"]
                return identity
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
            known = self.client.get_experiment_by_name(name)
            where = (home / "mlartifacts").as_uri() if uri.startswith("sqlite:") else None
            experiment = known.experiment_id if known else self.client.create_experiment(name, artifact_location=where)
            self.run_id = self.client.create_run(experiment, run_name=run.id).info.run_id
        params = [
            Param(key, str(value)) for key, value in _flat(run.config.model_dump(mode="json")) if value is not None
        ]
        for start in range(0, len(params), 100):  # so many it takes at once
            self.client.log_batch(self.run_id, params=params[start : start + 100])
        self.client.log_batch(self.run_id, tags=[RunTag("steppe.run", str(run.path.resolve()))])
        return {"uri": uri, "run_id": self.run_id}

    def _goes_on(self, run_id: str) -> bool:
        from mlflow.exceptions import MlflowException

        try:
            self.client.update_run(run_id, status="RUNNING")
        except MlflowException:  # somebody deleted it, or its database
            return False
        return True

    def _log(self, numbers: dict[str, float], epoch: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self.client.log_batch(self.run_id, metrics=[Metric(key, value, now, epoch) for key, value in numbers.items()])

    def _close(self, run: Run, status: Status) -> None:
        if status != "stopped":
            self._log(_results(run.read_or_empty("summary.json")), self.last)
        ended = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}[status]
        self.client.set_terminated(self.run_id, status=ended)


class Trackio(Tracker):
    """Trackio: an SQLite file on this machine, and a dashboard that reads it (`trackio show`)."""

    name = "trackio"

    def _open(self, run: Run, identity: Any) -> Any:
        import trackio

        identity = identity or f"{run.id}-{uuid.uuid4().hex[:6]}"  # Trackio resumes by name, and run folders share ids
        with redirect_stdout(io.StringIO()):  # it prints where the dashboard is
            self.tracked = trackio.init(
                project=os.environ.get("TRACKIO_PROJECT") or PROJECT,
                name=identity,
                config=run.config.model_dump(mode="json"),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        return identity

    def _log(self, numbers: dict[str, float], epoch: int) -> None:
        self.tracked.log(dict(numbers), step=epoch)

    def _close(self, run: Run, status: Status) -> None:
        if status != "stopped":
            self._log(_results(run.read_or_empty("summary.json")), self.last)
        import trackio

        with redirect_stdout(io.StringIO()):
            trackio.finish()  # the run's own finish() would be called, and would print, once more at exit


TRACKERS: dict[str, type[Tracker]] = {kind.name: kind for kind in (TensorBoard, WandB, MLflow, Trackio)}


def make_trackers(names: Iterable[str], tell: Callable[[str], None]) -> list[Tracker]:
    """Make the trackers of these names.

    Args:
        names: of `TRACKERS`; one named twice is made once.
        tell: told, once each, when one fails later.

    Raises:
        ConfigError: a name is not known, or its package is not installed.
    """
    names = list(dict.fromkeys(names))
    check_trackers(names)
    return [TRACKERS[name](tell) for name in names]


def check_trackers(names: Iterable[str]) -> None:
    """Refuse a tracker that is not known, or whose package is not installed.

    Args:
        names: of `TRACKERS`.

    Raises:
        ConfigError: as `make_trackers`.
    """
    for name in names:
        if name not in TRACKERS:
            raise unknown_name("tracker", name, TRACKERS, where="--track")
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:  # a folder of that name would be found, too
            fix = f"install it: pip install 'steppe[{name}]'"
            raise ConfigError(f"the package {name} is not installed", where=f"--track {name}", fix=fix)


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _flat(tree: Mapping[str, Any], prefix: str = "", between: str = ".") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}{between}", between)
        else:
            yield f"{prefix}{key}", value


def _numbers(tree: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of nested mappings, by names such as `test/accuracy`."""
    flat = _flat(tree, between="/")
    return {key: float(value) for key, value in flat if isinstance(value, int | float) and not isinstance(value, bool)}


def _results(summary: Mapping[str, Any]) -> dict[str, float]:
    """What the summary has beyond the last record: the nested results, and the costs."""
    return {
        key: value for key, value in _numbers(summary).items() if key not in ("steps", "gradient_evaluations", "time_s")
    }
