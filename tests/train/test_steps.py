"""The step from recorded parts reports what the eager step reports: loss, hits and examples of the first pass."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from training import make_config

from steppe import data
from steppe.config import DataConfig, RunConfig
from steppe.data import Loader
from steppe.train import build_minimizer, build_model
from steppe.train.objectives import make_objective
from steppe.train.steps import CompiledStep, EagerStep, can_capture

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def digits():
    return data.load(DataConfig(fraction=0.5))


@pytest.mark.parametrize(
    "minimizer",
    [
        {"name": "base"},
        {"name": "sam"},
        {"name": "looksam", "k": 2},
        {"name": "msam"},
        {"name": "esam"},
        {"name": "esam", "gamma": 1.0},
        {"name": "aesam"},
        {"name": "fsam"},
        {"name": "sam", "ascent_fraction": 0.25},
        {"name": "sam", "sharp_every": 3},
    ],
    ids=lambda v: "-".join(map(str, v.values())),
)
@pytest.mark.parametrize("parts", [1, 3])
def test_every_method_counts_alike(digits, minimizer, parts):
    config = make_config(
        batch_size=64,
        minimizer=minimizer,
        model={"name": "resnet_tiny"},
        schedule={"name": "constant"},
        accumulate=parts if parts > 1 else None,
    )
    network = build_model(config, digits).train()
    steps = []
    for kind in (EagerStep, CompiledStep):
        model = copy.deepcopy(network)
        loader = Loader(digits, batch_size=64, augment=config.augment, seed=0, device=CPU)
        own, objective = build_minimizer(config, model), make_objective(config, loader, digits)
        own.seed = 3
        rest = (lambda _: None,) if kind is EagerStep else (objective.batch(0, 0),)
        options = {"compiled": False} if kind is CompiledStep else {}
        steps.append((kind(model, own, objective, config, *rest, **options), objective, own))
    for number in range(6):
        found = []
        for step, objective, _ in steps:
            torch.manual_seed(number)
            loss, hits, seen = step(*objective.batch(0, number))
            found.append((float(loss), int(hits), seen))
        assert found[1][0] == pytest.approx(found[0][0], rel=1e-4)
        assert found[1][1:] == found[0][1:]
    assert steps[0][2].gradient_evaluations == pytest.approx(steps[1][2].gradient_evaluations)


def test_what_is_captured():
    cuda = torch.device("cuda")
    for changes, captured in (
        ({"minimizer": {"name": "esam"}}, True),
        ({"minimizer": {"name": "aesam"}}, True),
        ({"minimizer": {"name": "esam", "replay_rng": True}}, False),
        ({"minimizer": {"name": "sam", "m": 8}}, False),
        ({"optimizer": {"name": "lamb"}}, False),
        ({"accumulate": 2}, True),
    ):
        assert can_capture(RunConfig.model_validate(changes), cuda) is captured
    assert not can_capture(RunConfig(), CPU)


def test_aesam_knows_how_much_of_the_training_is_done(digits):
    done = [0.0]
    config = make_config(minimizer={"name": "aesam"})
    minimizer = build_minimizer(config, build_model(config, digits), lambda: done[0])
    rule = minimizer.schedule
    rule.observe(0, torch.tensor(1.0))
    rule.variance = 1.0
    assert not rule.observe(1, torch.tensor(1.2))  # at first above the mean by a deviation
    done[0] = 1.0
    rule.variance = 1.0
    assert rule.observe(2, torch.tensor(0.9))  # in the end below it will do


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the memory of a process as Linux does")
def test_cpu_without_room_for_the_batch_splits_it_into_the_same_update():
    program = Path(__file__).with_name("short_of_memory.py")

    def two_steps(room_mib: int) -> dict:
        done = subprocess.run([sys.executable, program, str(room_mib)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    whole, split = two_steps(0), two_steps(120)
    assert whole["said"] == []
    assert split["said"][0] == "memory ran out: going on with 2 micro-batches a step, which is the same update"
    assert split["losses"] == pytest.approx(whole["losses"], rel=1e-4)
    assert split["bias"] == pytest.approx(whole["bias"], rel=1e-3, abs=1e-6)
