"""A checkpoint that is whole but cannot be right is refused before the first step."""

from __future__ import annotations

import pytest
import torch

from steppe import data
from steppe.config import DataConfig, RunConfig
from steppe.errors import Interrupted, RunError
from steppe.runs import Observer, Run
from steppe.train import train
from steppe.train.checkpoint import load_checkpoint, save_checkpoint


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run that was stopped, its data, and its checkpoint."""
    import threading

    stop = threading.Event()

    class Stop(Observer):
        def epoch(self, record):
            stop.set()

    config = RunConfig.model_validate({"model": {"name": "mlp_8"}, "batch_size": 512, "budget": {"epochs": 2}})
    digits, folder = data.load(DataConfig()), tmp_path_factory.mktemp("begun") / "r"
    with pytest.raises(Interrupted):
        train(config, digits, folder, device="cpu", observer=Stop(), stop=stop)
    return config, digits, folder, load_checkpoint(Run(folder).checkpoint)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("steps", None),
        ("steps", -1),
        ("records", []),
        ("stage", 7),
        ("began", {}),
        ("began", 2**40),
        ("time_s", "x"),
        ("best_val", None),
        ("stale_epochs", torch.zeros(3)),
        ("threads", 2**40),
        ("tally", {"loss_sum": torch.zeros(()), "hits": torch.zeros(()), "steps": None, "seen": 0}),
    ],
)
def test_counters_that_cannot_be_right_are_refused(begun, key, value):
    config, digits, folder, tree = begun
    save_checkpoint(Run(folder).checkpoint, {**tree, key: value})
    with pytest.raises(RunError, match="does not fit"):
        train(config, digits, folder, device="cpu")
    assert not Run(folder).finished


def test_a_checkpoint_that_a_kill_left_behind_a_finished_run_goes(begun):
    config, digits, folder, tree = begun
    save_checkpoint(Run(folder).checkpoint, tree)
    run = train(config, digits, folder, device="cpu")
    weights = run.weights.read_bytes()
    save_checkpoint(run.checkpoint, tree)  # killed after the summary, before the checkpoint was removed
    assert train(config, digits, folder, device="cpu").weights.read_bytes() == weights
    assert not run.checkpoint.exists()
