"""What the tests of the loop share: a small run, and a kill at a step."""

from __future__ import annotations

from pathlib import Path

import pytest

from steppe.config import RunConfig
from steppe.data import Dataset
from steppe.runs import Observer, Run
from steppe.train import train


class KilledError(BaseException):
    """Stands for SIGKILL: nothing after it may run in the loop but what Python itself unwinds."""


class KillAt(Observer):
    def __init__(self, step: int, steps_per_epoch: int) -> None:
        self.step_, self.per_epoch = step, steps_per_epoch

    def step(self, epochs: float) -> None:
        if round(epochs * self.per_epoch) == self.step_:
            raise KilledError


def make_config(**changes) -> RunConfig:
    values = {
        "batch_size": 256,
        "model": {"name": "mixer_tiny_p2", "dropout": 0.1, "drop_path": 0.1},
        "minimizer": {"name": "sam"},
        "schedule": {"name": "cosine", "warmup": 0.2},
        "augment": {"crop_padding": 1, "flip": True},
        "budget": {"epochs": 3},
    }
    return RunConfig.model_validate({**values, **changes})


def train_whole_and_resumed(config: RunConfig, dataset: Dataset, folder: Path, kill: KillAt) -> tuple[Run, Run]:
    """One run that is left alone, and one that is killed and goes on."""
    whole = train(config, dataset, folder / "whole")
    with pytest.raises(KilledError):
        train(config, dataset, folder / "killed", observer=kill)
    return whole, train(config, dataset, folder / "killed")


def weights(run: Run) -> bytes:
    return run.weights.read_bytes()


def story(run: Run) -> list[dict]:
    return [{k: v for k, v in r.items() if k != "time_s"} for r in run.metrics()]
