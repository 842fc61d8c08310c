"""On a GPU: the captured loop does what the eager loop does, and goes on where it was killed.

These run where there is CUDA (`python -m pytest tests/train/test_cuda.py`); CI has none and says so.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from steppe import data
from steppe.config import RunConfig
from steppe.data import Keeping
from steppe.runs import Observer
from steppe.train import train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


class KilledError(BaseException):
    pass


class KillAt(Observer):
    def __init__(self, epochs: float) -> None:
        self.at = epochs

    def step(self, epochs: float) -> None:
        if epochs >= self.at:
            raise KilledError


def make_config(**changes) -> RunConfig:
    values = {
        "batch_size": 128,
        "model": {"name": "resnet_tiny"},
        "minimizer": {"name": "sam"},
        "optimizer": {"name": "sgd", "lr": 0.02},
        "augment": {"crop_padding": 1},
        "budget": {"epochs": 3},
    }
    return RunConfig.model_validate({**values, **changes})


@pytest.mark.parametrize(
    "minimizer",
    [
        {"name": "base"},
        {"name": "sam"},
        {"name": "asam"},
        {"name": "looksam"},
        {"name": "esam"},
        {"name": "aesam"},
        {"name": "lesam"},
        {"name": "sam", "ascent_fraction": 0.25},
    ],
    ids=lambda v: "-".join(map(str, v.values())),
)
@pytest.mark.parametrize("parts", [None, 2])
def test_captured_agrees_with_eager(digits, tmp_path, minimizer, parts):
    config = make_config(minimizer=minimizer, accumulate=parts)
    eager = train(config, digits, tmp_path / "eager", device="cuda", captured=False)
    captured = train(config, digits, tmp_path / "captured", device="cuda", captured=True)
    assert captured.summary["compile_s"] > 0
    for one, other in zip(eager.metrics(), captured.metrics(), strict=True):
        assert other["train_loss"] == pytest.approx(one["train_loss"], rel=0.02)
        alike = (
            0.04 if minimizer["name"] == "esam" else 0.02
        )  # its second pass sees examples chosen by a hair's breadth
        assert other["train_accuracy"] == pytest.approx(one["train_accuracy"], abs=alike)
        assert other["val_loss"] == pytest.approx(one["val_loss"], rel=0.05)
        near = 0.1 if minimizer["name"] == "aesam" else 0.0  # whose steps are sharp or not by a hair's breadth
        assert other["gradient_evaluations"] == pytest.approx(one["gradient_evaluations"], rel=near)
        assert other["lr"] == pytest.approx(one["lr"])


@pytest.mark.parametrize("minimizer", ["base", "sam", "gsam"])
@pytest.mark.parametrize(
    "own", [{"layer_decay": 0.7, "head_lr_factor": 2.0}, {"nesterov": True}], ids=["rates", "nesterov"]
)
def test_captured_agrees_with_eager_whatever_the_base_optimizer_does(digits, tmp_path, minimizer, own):
    config = make_config(minimizer={"name": minimizer}, optimizer={"name": "sgd", "lr": 0.02, **own})
    eager = train(config, digits, tmp_path / "eager", device="cuda", captured=False)
    captured = train(config, digits, tmp_path / "captured", device="cuda", captured=True)
    for one, other in zip(eager.metrics(), captured.metrics(), strict=True):
        assert other["train_loss"] == pytest.approx(one["train_loss"], rel=0.02)
        assert other["val_loss"] == pytest.approx(one["val_loss"], rel=0.05)
        assert other["lr"] == one["lr"]


@pytest.mark.parametrize("objective", ["adversarial", "contrastive"])
@pytest.mark.parametrize("minimizer", ["base", "sam", "looksam", "msam"])
def test_captured_agrees_with_eager_in_every_objective(digits, tmp_path, minimizer, objective):
    config = make_config(minimizer={"name": minimizer, **({} if minimizer == "base" else {"rho": 0.05})})
    config = RunConfig.model_validate({**config.model_dump(), "objective": {"name": objective}})
    eager = train(config, digits, tmp_path / "eager", device="cuda", captured=False)
    captured = train(config, digits, tmp_path / "captured", device="cuda", captured=True)
    assert captured.summary["compile_s"] > 0
    for one, other in zip(eager.metrics(), captured.metrics(), strict=True):
        assert other.get("stage") == one.get("stage")
        assert other["train_loss"] == pytest.approx(one["train_loss"], rel=0.05)
        assert other["val_loss"] == pytest.approx(one["val_loss"], rel=0.1)
        assert other["gradient_evaluations"] == one["gradient_evaluations"]


@pytest.mark.parametrize("objective", ["supervised", "adversarial", "contrastive"])
@pytest.mark.parametrize("captured", [False, True])
def test_killed_and_resumed(digits, tmp_path, captured, objective):
    config = make_config(objective={"name": objective})
    whole = train(config, digits, tmp_path / "whole", device="cuda", captured=captured)
    with pytest.raises(KilledError):
        train(config, digits, tmp_path / "killed", device="cuda", captured=captured, observer=KillAt(1.5))
    resumed = train(config, digits, tmp_path / "killed", device="cuda", captured=captured)
    for one, other in zip(whole.metrics(), resumed.metrics(), strict=True):
        assert other["val_loss"] == pytest.approx(one["val_loss"], rel=0.02)


def test_memory_that_runs_out_divides_the_recorded_step(digits, tmp_path):
    said = []

    class Listen(Observer):
        def say(self, text: str) -> None:
            said.append(text)

    config = make_config(model={"name": "vit_4l_4h_256_p2"}, batch_size=1024, minimizer={"name": "sam"})
    whole = train(config, digits, tmp_path / "whole", device="cuda", captured=True)
    room = 0.8 * whole.summary["peak_memory_mib"] * 2**20 / torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(room)
    try:
        split = train(config, digits, tmp_path / "split", device="cuda", captured=True, observer=Listen())
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert said[0].startswith("memory ran out: going on with 2 micro-batches a step")
    assert not any("eager" in text for text in said)
    for one, other in zip(whole.metrics(), split.metrics(), strict=True):
        assert other["val_loss"] == pytest.approx(one["val_loss"], rel=0.02)


def test_bfloat16_and_a_budget_of_seconds(digits, tmp_path):
    run = train(make_config(precision="bfloat16", budget={"seconds": 2.0}), digits, tmp_path / "r", device="cuda")
    assert 2.0 <= run.summary["time_s"] < 2.3
    assert run.summary["test"]["accuracy"] > 0.9
    assert run.summary["peak_memory_mib"] > 0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_step_is_recorded_while_images_are_streamed(tmp_path, workers):
    """Other threads pin memory while the graph is recorded."""
    random = np.random.default_rng(0)
    for label in ("a", "b"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(60):
            pixels = random.integers(0, 256, (32, 32, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{number}.png")
    config = make_config(data={"name": str(tmp_path / "photos"), "image_size": 32}, batch_size=16)
    kept = {"memory": Keeping("memory"), "stream": Keeping("stream", workers=workers)}
    runs = {
        way: train(config, data.load(config.data, keeping=how), tmp_path / way, device="cuda", keeping=how)
        for way, how in kept.items()
    }
    assert not data.load(config.data, keeping=kept["stream"]).train.in_memory
    assert runs["stream"].summary["compile_s"] > 0
    for one, other in zip(runs["memory"].metrics(), runs["stream"].metrics(), strict=True):
        assert other["train_loss"] == pytest.approx(one["train_loss"], rel=0.02)


def test_compiled_step_of_speednet_learns_in_bfloat16(digits, tmp_path):
    """A compiled backward of `amax` divides by zero where it recomputes the largest value in another precision."""
    config = make_config(
        model={"name": "speednet2_16_32"},
        optimizer={"name": "muon", "lr": 0.2, "hold_norm": True, "rest_lr": 0.01},
        precision="bfloat16",
        budget={"epochs": 3},
    )
    run = train(config, digits, tmp_path / "run", device="cuda")
    losses = [record["train_loss"] for record in run.metrics()]
    assert losses[-1] < losses[0]
