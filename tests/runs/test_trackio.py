"""Trackio against the real package: what was told is read back from its database."""

from __future__ import annotations

import signal

import pytest

from steppe import data
from steppe.config import DataConfig, RunConfig
from steppe.errors import Interrupted
from steppe.runs import Observer, Several, make_trackers
from steppe.train import train

trackio = pytest.importorskip("trackio", reason="needs `pip install 'steppe[trackio]'`")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Trackio reads $TRACKIO_DIR when it is imported, so its modules are told by hand."""
    import sys

    for module in [m for name, m in sys.modules.items() if name.startswith("trackio") and hasattr(m, "TRACKIO_DIR")]:
        monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.delenv("TRACKIO_PROJECT", raising=False)
    monkeypatch.delenv("TRACKIO_SPACE_ID", raising=False)


class StopAfter(Observer):
    def __init__(self, epoch: int) -> None:
        self.last = epoch

    def epoch(self, record):
        if record["epoch"] == self.last:
            signal.raise_signal(signal.SIGINT)


def test_trackio_holds_the_epochs_of_a_stopped_and_resumed_run_once(tmp_path, capsys):
    from trackio.sqlite_storage import SQLiteStorage

    digits = data.load(DataConfig())
    config = RunConfig.model_validate(
        {"batch_size": 256, "model": {"name": "resnet_tiny"}, "minimizer": {"name": "sam"}, "budget": {"epochs": 3}}
    )
    said: list[str] = []
    for stopped in (True, False):
        observers = [*([StopAfter(2)] if stopped else []), *make_trackers(["trackio"], said.append)]
        try:
            run = train(config, digits, tmp_path / "r", observer=Several(observers))
        except Interrupted:
            assert stopped
    assert said == []
    assert "Trackio" not in capsys.readouterr().out
    assert trackio.context_vars.current_run.get() is None  # nothing is left to be printed at exit
    (name,) = SQLiteStorage.get_runs("steppe")
    assert name.startswith("r-")
    logs = SQLiteStorage.get_logs("steppe", name)
    told = [(log["step"], log["val_loss"]) for log in logs if "val_loss" in log]
    assert told == [(record["epoch"], pytest.approx(record["val_loss"])) for record in run.metrics()]
    assert [log["test/accuracy"] for log in logs if "test/accuracy" in log] == [run.summary["test"]["accuracy"]]
    assert SQLiteStorage.get_run_config("steppe", name)["minimizer"]["name"] == "sam"
