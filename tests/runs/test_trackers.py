"""Trackers against the real packages, with their local back-ends: what was told is read back."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto.wandb_internal_pb2 import Record

from steppe import data
from steppe.config import DataConfig, RunConfig, dump_toml
from steppe.errors import ConfigError, Interrupted, TrainingError
from steppe.runs import Observer, Run, Several, make_trackers
from steppe.train import train

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")  # mlflow, SQLAlchemy 2.1

SIDE_BY_SIDE = ("tensorboard", "wandb", "mlflow")
KEYS = {"train_loss", "train_accuracy", "val_loss", "val_accuracy", "lr", "rho", "steps", "time_s"}


@pytest.fixture(scope="module")
def digits():
    return data.load(DataConfig())


@pytest.fixture(autouse=True)
def local(monkeypatch):
    for name in ("WANDB_MODE", "WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


class StopAfter(Observer):
    """Presses Ctrl-C after an epoch."""

    def __init__(self, epoch: int) -> None:
        self.last = epoch

    def epoch(self, record):
        if record["epoch"] == self.last:
            signal.raise_signal(signal.SIGINT)


def make_config(**changes) -> RunConfig:
    values = {
        "batch_size": 256,
        "model": {"name": "resnet_tiny"},
        "minimizer": {"name": "sam"},
        "budget": {"epochs": 3},
    }
    return RunConfig.model_validate({**values, **changes})


def tracked(digits, out: Path, *names: str, also: Observer | None = None, config: RunConfig | None = None) -> Run:
    said: list[str] = []
    observers = [*([also] if also else []), *make_trackers(names, said.append)]
    try:
        return train(config or make_config(), digits, out, observer=Several(observers))
    finally:
        assert said == []


def read_tensorboard(path: Path) -> tuple[dict[str, list[tuple[int, float]]], dict[str, str]]:
    events = EventAccumulator(str(path / "tensorboard"))
    events.Reload()
    tags = events.Tags()
    scalars = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags["scalars"]}
    texts = {tag: events.Tensors(tag)[-1].tensor_proto.string_val[0].decode() for tag in tags["tensors"]}
    return scalars, texts


def read_log(content: bytes) -> Iterator[bytes]:
    """The entries of a LevelDB log, which is what a .wandb file is after 7 bytes of its own: blocks of 32 KiB, in them
    pieces of (checksum, length, kind), kind 1 a whole entry, 2, 3 and 4 the first, a middle and the last part of one.
    """
    place, entry = 7, b""
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:  # too little is left of the block for a piece
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        entry += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield entry
            entry = b""


def read_wandb(path: Path) -> tuple[set[str], dict[str, list[tuple[int, float]]], dict, dict]:
    """The ids, histories, configuration and summary in the files that `wandb sync` would send, in order of time."""
    ids, history, config, summary = set(), {}, {}, {}
    for file in sorted(path.glob("wandb/offline-run-*/*.wandb")):
        for record in map(Record.FromString, read_log(file.read_bytes())):
            if record.HasField("run"):
                ids.add(record.run.run_id)
                config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            for item in record.history.item:
                key = item.key or "/".join(item.nested_key)
                if not key.startswith("_"):
                    history.setdefault(key, []).append((record.history.step.num, json.loads(item.value_json)))
            for item in record.summary.update:
                summary[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
    return ids, history, config, summary


def expected(run: Run, key: str) -> list[tuple[int, float]]:
    return [(record["epoch"], pytest.approx(record[key], rel=1e-6)) for record in run.metrics()]


def test_all_at_once_tell_what_the_run_folder_keeps(digits, tmp_path):
    run = tracked(digits, tmp_path / "r", *SIDE_BY_SIDE)

    scalars, texts = read_tensorboard(run.path)
    assert set(scalars) >= KEYS
    for key in KEYS:
        assert scalars[key] == expected(run, key), key
    assert dump_toml(run.config) in texts["config"]
    assert scalars["test/accuracy"] == [(3, pytest.approx(run.summary["test"]["accuracy"]))]

    ids, history, config, summary = read_wandb(run.path)
    assert len(ids) == 1
    for key in KEYS:
        assert history[key] == expected(run, key), key
    assert config["minimizer"] == run.config.minimizer.model_dump(mode="json")
    assert summary["test/accuracy"] == run.summary["test"]["accuracy"]
    assert summary["status"] == "finished"

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    (found,) = client.search_runs([client.get_experiment_by_name("steppe").experiment_id])
    assert (found.info.status, found.info.run_name) == ("FINISHED", "r")
    assert found.data.params["minimizer.rho"] == "0.05"
    assert found.data.params["model.name"] == "resnet_tiny"
    for key in KEYS:
        history = client.get_metric_history(found.info.run_id, key)
        assert [(m.step, m.value) for m in history] == expected(run, key), key
    assert found.data.metrics["test/accuracy"] == run.summary["test"]["accuracy"]
    assert set(run.read("trackers.json")) == set(SIDE_BY_SIDE)


def test_a_resumed_run_goes_on_in_the_same_tracked_run(digits, tmp_path):
    with pytest.raises(Interrupted):
        tracked(digits, tmp_path / "r", *SIDE_BY_SIDE, also=StopAfter(2))
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("steppe").experiment_id
    assert [r.info.status for r in client.search_runs([experiment])] == ["KILLED"]
    run = tracked(digits, tmp_path / "r", *SIDE_BY_SIDE)
    assert read_tensorboard(run.path)[0]["val_loss"] == expected(run, "val_loss")
    ids, history, _, _ = read_wandb(run.path)
    assert len(ids) == 1
    assert history["val_loss"] == expected(run, "val_loss")
    (found,) = client.search_runs([experiment])
    assert found.info.status == "FINISHED"
    told = client.get_metric_history(found.info.run_id, "val_loss")
    assert [(m.step, m.value) for m in told] == expected(run, "val_loss")


def test_an_epoch_that_is_trained_again_is_told_once(digits, tmp_path):
    """Killed between the record and the checkpoint, the epoch comes again; its record is the same."""

    class KilledError(BaseException):
        pass

    class Kill(Observer):
        def epoch(self, record):
            if record["epoch"] == 2:
                raise KilledError

    out = tmp_path / "r"
    with pytest.raises(KilledError):  # the tracker is told first
        train(make_config(), digits, out, observer=Several([*make_trackers(["tensorboard"], print), Kill()]))
    assert [step for step, _ in read_tensorboard(out)[0]["val_loss"]] == [1, 2]
    run = tracked(digits, out, "tensorboard")
    assert read_tensorboard(run.path)[0]["val_loss"] == expected(run, "val_loss")


def test_a_tracker_that_joins_late_is_told_what_it_missed(digits, tmp_path):
    with pytest.raises(Interrupted):
        tracked(digits, tmp_path / "r", also=StopAfter(2))
    run = tracked(digits, tmp_path / "r", "tensorboard")
    assert read_tensorboard(run.path)[0]["train_loss"] == expected(run, "train_loss")


def test_a_failed_run_is_told_as_failed(digits, tmp_path):
    config = make_config(optimizer={"name": "sgd", "lr": 1e30}, schedule={"name": "constant"})
    with pytest.raises(TrainingError):
        tracked(digits, tmp_path / "r", "mlflow", "wandb", config=config)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    (found,) = client.search_runs([client.get_experiment_by_name("steppe").experiment_id])
    assert found.info.status == "FAILED"
    assert read_wandb(tmp_path / "r")[3]["status"] == "failed"


def test_a_tracker_that_fails_does_not_break_the_training(digits, tmp_path, monkeypatch):
    (tmp_path / "nothing").write_text("in the way")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/nothing/mlflow.db")

    class InTheWay(Observer):
        def start(self, run, total_epochs, done_epochs):
            (run.path / "tensorboard").write_text("in the way")

    said: list[str] = []
    observers = [InTheWay(), *make_trackers(["tensorboard", "mlflow"], said.append)]
    run = train(make_config(budget={"epochs": 2}), digits, tmp_path / "r", observer=Several(observers))
    assert run.finished
    assert len(said) == 2
    assert said[0].startswith("tensorboard failed and is not told any more")
    assert said[1].startswith("mlflow failed")


def test_a_deleted_tracked_run_is_begun_again(digits, tmp_path):
    with pytest.raises(Interrupted):
        tracked(digits, tmp_path / "r", "mlflow", also=StopAfter(2))
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    before = Run(tmp_path / "r").read("trackers.json")["mlflow"]["identity"]["run_id"]
    client.delete_run(before)
    run = tracked(digits, tmp_path / "r", "mlflow")
    (found,) = client.search_runs([client.get_experiment_by_name("steppe").experiment_id])
    assert found.info.run_id != before
    told = client.get_metric_history(found.info.run_id, "val_loss")
    assert [(m.step, m.value) for m in told] == expected(run, "val_loss")


def test_what_cannot_be_tracked_with_is_told_beforehand(monkeypatch):
    with pytest.raises(ConfigError, match="did you mean 'mlflow'"):
        make_trackers(["mlfow"], print)
    folder = importlib.machinery.ModuleSpec("wandb", None, is_package=True)  # what a folder of that name looks like
    monkeypatch.setattr(importlib.util, "find_spec", {"wandb": folder}.get)
    for name in ("wandb", "mlflow"):
        with pytest.raises(ConfigError, match="is not installed") as caught:
            make_trackers([name], print)
        assert f"steppe[{name}]" in caught.value.fix


def test_a_tracker_is_made_once():
    assert len(make_trackers(["mlflow", "mlflow"], print)) == 1
