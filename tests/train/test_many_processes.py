"""One run on several processes, through torchrun on gloo: the same training, and checkpoints that fit any number."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from steppe.config import RunConfig
from steppe.errors import ConfigError
from steppe.runs import Run
from steppe.train.distributed import Ranks, check, join

pytestmark = pytest.mark.slow

FLAGS = [
    *["--fraction", "0.3", "--batch-size", "32", "--model", "vit_tiny_p2", "--crop-padding", "1", "--device", "cpu"],
    "--epochs",
    "2",
]


def command(processes: int, out: Path, *flags: str) -> list[str]:
    own = ["-m", "steppe", "train", "--out", str(out), *FLAGS, *flags]
    if processes == 1:
        return [sys.executable, *own]
    where = ["--nproc-per-node", str(processes), "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    return [sys.executable, "-m", "torch.distributed.run", *where, *own]


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def run(processes: int, out: Path, *flags: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command(processes, out, *flags), env=ENVIRONMENT, capture_output=True, text=True, timeout=240, check=False
    )
    assert fails or done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same trainings in one process."""
    made: dict[tuple[str, ...], Run] = {}

    def get(*flags: str) -> Run:
        if flags not in made:
            out = tmp_path_factory.mktemp("alone") / "run"
            run(1, out, *flags)
            made[flags] = Run(out)
        return made[flags]

    return get


def assert_same_training(one: Run, other: Run, tolerance: float) -> None:
    for a, b in zip(one.metrics(), other.metrics(), strict=True):
        assert b["train_loss"] == pytest.approx(a["train_loss"], rel=tolerance)
        assert b["val_loss"] == pytest.approx(a["val_loss"], rel=tolerance)
        assert b["gradient_evaluations"] == a["gradient_evaluations"]
    assert other.summary["test"]["examples"] == one.summary["test"]["examples"]
    assert other.summary["test"]["loss"] == pytest.approx(one.summary["test"]["loss"], rel=tolerance)
    mine, theirs = load_file(one.weights), load_file(other.weights)
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert torch.allclose(value, theirs[name], rtol=0.05, atol=3e-3), name


CASES = {
    "ddp sam": (2, ["--minimizer", "sam", "--layer-decay", "0.7"], []),
    "ddp four": (4, ["--minimizer", "asam"], []),
    "fsdp sam": (2, ["--minimizer", "sam", "--ema", "0.9", "--layer-decay", "0.7"], ["--shard"]),
    "fsdp four": (4, ["--minimizer", "fsam"], ["--shard"]),
    "adversarial": (2, ["--objective", "adversarial"], []),
}


LONG = ("ddp sam", "ddp four", "fsdp four", "adversarial")


@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.long if case in LONG else ()) for case in CASES])
def test_many_processes_train_as_one_does(alone, tmp_path, case):
    processes, flags, place = CASES[case]
    run(processes, tmp_path / "run", *flags, *place)
    many = Run(tmp_path / "run")
    assert many.read("env.json")["processes"] == processes
    assert_same_training(alone(*flags), many, tolerance=2e-3)


@pytest.mark.long
@pytest.mark.parametrize(("before", "after"), [((2, ["--shard"]), (4, [])), ((4, []), (2, ["--shard"]))])
def test_a_stopped_run_goes_on_with_another_number_of_processes(alone, tmp_path, before, after):
    flags = ["--minimizer", "fsam", "--ema", "0.9"]
    out = tmp_path / "run"
    with open(tmp_path / "log", "wb") as log:
        own = command(before[0], out, *flags, *before[1])
        process = subprocess.Popen(own, env=ENVIRONMENT, stdout=log, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 120
    while not (out / "checkpoint.safetensors").exists():
        assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=120)
    stopped = Run(out)
    assert not stopped.finished
    run(after[0], out, *flags, *after[1])
    assert_same_training(alone(*flags), stopped, tolerance=2e-3)


@pytest.mark.long
def test_per_rank_perturbations_differ_from_a_global_one(alone, tmp_path):
    run(2, tmp_path / "run", "--minimizer", "sam", "--rho", "0.2", "--per-rank")
    own = Run(tmp_path / "run").metrics()[-1]["train_loss"]
    both = alone("--minimizer", "sam", "--rho", "0.2").metrics()[-1]["train_loss"]
    assert own != pytest.approx(both, rel=1e-4)
    assert own == pytest.approx(both, rel=0.2)


@pytest.mark.long
def test_a_budget_of_seconds_ends_everywhere_at_once(tmp_path):
    done = subprocess.run(
        [*command(2, tmp_path / "run")[:-2], "--seconds", "1.5"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert 1.4 < Run(tmp_path / "run").summary["time_s"] < 3.0


@pytest.mark.long
def test_what_cannot_be_shared_is_said_once(tmp_path):
    done = run(2, tmp_path / "run", "--batch-size", "33", fails=True)
    assert done.returncode != 0
    told = [line for line in done.stderr.splitlines() if line.startswith("error 33 images cannot be shared by 2")]
    assert len(told) == 1


@pytest.mark.parametrize(
    ("values", "sharded", "says"),
    [
        ({}, False, "33 images cannot be shared by 2 processes"),
        ({"objective": {"name": "contrastive"}}, False, "compares all images of a batch"),
        ({"minimizer": {"name": "sam", "per_rank": True}}, True, "no process has a gradient of its own"),
    ],
)
def test_what_cannot_be_shared(values, sharded, says):
    with pytest.raises(ConfigError, match=says):
        check(RunConfig.model_validate(values), Ranks(0, 2, sharded), 33 if not values else 32)
    check(RunConfig.model_validate(values), Ranks(), 33)


def test_shards_need_processes():
    with pytest.raises(ConfigError, match="more than one process") as error, join(torch.device("cpu"), sharded=True):
        pass
    assert "torchrun" in str(error.value)
