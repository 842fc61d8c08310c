"""Where the head alone learns, the body is asked once for every image, and nothing else changes."""

from __future__ import annotations

import signal
import time

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from training import KillAt, KilledError, make_config, story, weights

import steppe.train.features as features
import steppe.train.loop as loop
from steppe.config import AugmentConfig, RunConfig
from steppe.data import Loader
from steppe.errors import Interrupted
from steppe.runs import Observer, Run
from steppe.train import build_model, train
from steppe.train.checkpoint import save_weights


@pytest.fixture(scope="module")
def began(digits, tmp_path_factory):
    """Weights that a body can keep: of a fresh network of each kind."""
    folder = tmp_path_factory.mktemp("began")

    def save(name: str) -> str:
        path = folder / f"{name}.safetensors"
        if not path.exists():
            save_weights(path, build_model(RunConfig.model_validate({"model": {"name": name}}), digits).state_dict())
        return str(path)

    return save


@pytest.fixture
def frozen(began):
    def make(name: str = "resnet_tiny", **changes) -> RunConfig:
        model = {"name": name, "mode": "frozen", "weights": began(name), **changes.pop("model", {})}
        values = {"augment": {}, "minimizer": {"name": "sam", "rho": 0.5}, "optimizer": {"lr": 0.01}}
        return make_config(model=model, **{**values, **changes})

    return make


@pytest.fixture
def passes(monkeypatch):
    """Images that bodies were asked for."""
    counts = []
    ask, look = features.Body.__call__, loop.find_body

    def count(self, images):
        counts.append(len(images))
        return ask(self, images)

    def look_uncounted(*arguments):
        found = look(*arguments)
        counts.clear()
        return found

    monkeypatch.setattr(features.Body, "__call__", count)
    monkeypatch.setattr(loop, "find_body", look_uncounted)
    return counts


def plainly(monkeypatch) -> None:
    monkeypatch.setattr(loop, "find_body", lambda *_: None)


@pytest.mark.parametrize("minimizer", ["base", "sam", "asam", "esam", "msam", "looksam"])
@pytest.mark.parametrize("augment", [{}, {"crop_padding": 1, "mixup": 0.2}])
def test_the_head_learns_what_it_learns_from_images(digits, frozen, tmp_path, monkeypatch, minimizer, augment):
    config = frozen(minimizer={"name": minimizer}, augment=augment)
    kept = train(config, digits, tmp_path / "kept")
    plainly(monkeypatch)
    plain = train(config, digits, tmp_path / "plain")
    ours, theirs = load_file(kept.weights), load_file(plain.weights)
    assert ours.keys() == theirs.keys()
    start = load_file(config.model.weights)
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-5)
        assert torch.equal(value, start[name]) == (not name.startswith("head.")), name
    assert kept.summary["test"]["loss"] == pytest.approx(plain.summary["test"]["loss"], rel=1e-4)
    assert kept.summary["gradient_evaluations"] == plain.summary["gradient_evaluations"]
    assert [r["val_loss"] for r in story(kept)] == pytest.approx([r["val_loss"] for r in story(plain)], rel=1e-4)


@pytest.mark.parametrize("name", ["vit_tiny_p2", "swin_tiny_p2", "mixer_tiny_p2", "wrn_10_1", "timm:test_resnet"])
def test_an_image_is_asked_for_once_in_a_run(digits, frozen, tmp_path, passes, name):
    train(frozen(name, budget={"epochs": 2}), digits, tmp_path / "run")
    assert sum(passes) == sum(len(split) for split in (digits.train, digits.val, digits.test))


def test_augmented_images_are_asked_for_once_a_step(digits, frozen, tmp_path, passes):
    run = train(frozen(augment={"flip": True}), digits, tmp_path / "run")
    assert passes.count(256) == run.summary["steps"] == 15
    assert run.summary["gradient_evaluations"] == 30


class StopAt(Observer):
    """Ctrl-C after a step."""

    def __init__(self, step: int, per_epoch: int) -> None:
        self.at = step / per_epoch

    def step(self, epochs: float) -> None:
        if epochs == pytest.approx(self.at):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("augment", [{}, {"flip": True}])
@pytest.mark.parametrize("stop_at", [2, 6, 8, 13])
def test_stopped_anywhere_and_resumed_gives_the_same_run(digits, frozen, tmp_path, monkeypatch, augment, stop_at):
    """Also where what is computed for an image depends on those that are computed with it."""
    ask = features.Body.__call__
    monkeypatch.setattr(features.Body, "__call__", lambda self, images: ask(self, images) + images.std(0).mean())
    config = frozen("vit_tiny_p2", augment=augment, batch_size=200)
    per_epoch = len(digits.train) // 200
    whole = train(config, digits, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(config, digits, tmp_path / "stopped", observer=StopAt(stop_at, per_epoch))
    resumed = train(config, digits, tmp_path / "stopped")
    assert weights(resumed) == weights(whole)
    assert story(resumed) == story(whole)
    assert resumed.summary["test"] == whole.summary["test"]
    assert resumed.summary["train"] == whole.summary["train"]


@pytest.mark.parametrize("kill_at", [5, 8])
def test_killed_anywhere_and_resumed_gives_the_same_run(digits, frozen, tmp_path, kill_at):
    config = frozen(batch_size=200)
    whole = train(config, digits, tmp_path / "whole")
    with pytest.raises(KilledError):
        train(config, digits, tmp_path / "killed", observer=KillAt(kill_at, len(digits.train) // 200))
    assert weights(train(config, digits, tmp_path / "killed")) == weights(whole)


def test_a_stop_in_bfloat16_is_clean(digits, frozen, tmp_path):
    config = frozen(precision="bfloat16")
    whole = train(config, digits, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(config, digits, tmp_path / "stopped", observer=StopAt(7, 5))
    assert weights(train(config, digits, tmp_path / "stopped")) == weights(whole)


def test_what_is_computed_again_is_not_paid_for_again(digits, frozen, tmp_path, monkeypatch):
    config = frozen(batch_size=200, ema=0.9)
    with pytest.raises(Interrupted):
        train(config, digits, tmp_path / "run", observer=StopAt(8, 6))
    before = Run(tmp_path / "run").metrics()[0]["time_s"]
    ask = features.Body.__call__

    def slowly(self, images):
        time.sleep(0.2)
        return ask(self, images)

    monkeypatch.setattr(features.Body, "__call__", slowly)
    run = train(config, digits, tmp_path / "run")
    assert run.summary["time_s"] < before + 1.2, "six batches would take that long"


def test_ctrl_c_is_met_while_features_are_computed_again(digits, frozen, tmp_path, monkeypatch):
    config = frozen(batch_size=200)
    whole = train(config, digits, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(config, digits, tmp_path / "run", observer=StopAt(8, 6))
    asked, ask = [], features.Features._learn

    def interrupted(self, index):
        asked.append(index)
        if len(asked) == 2:
            signal.raise_signal(signal.SIGINT)
        ask(self, index)

    with monkeypatch.context() as patched:
        patched.setattr(features.Features, "_learn", interrupted)
        with pytest.raises(Interrupted, match="step 8"):
            train(config, digits, tmp_path / "run")
    assert asked == [0, 1]
    assert weights(train(config, digits, tmp_path / "run")) == weights(whole)


def test_many_features_are_not_kept(digits, frozen, tmp_path, monkeypatch, passes):
    monkeypatch.setattr(features, "MOST_BYTES", 10_000)
    run = train(frozen(budget={"epochs": 2}), digits, tmp_path / "run")
    assert passes.count(256) == run.summary["steps"] == 10


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"dropout": 0.2}},
        {"objective": {"name": "adversarial", "epsilon": 8}},
    ],
)
def test_what_is_no_fixed_function_goes_through_the_whole_network(digits, frozen, tmp_path, monkeypatch, change):
    config = frozen(budget={"epochs": 1}, **change)
    usual = train(config, digits, tmp_path / "usual")
    plainly(monkeypatch)
    assert weights(train(config, digits, tmp_path / "plain")) == weights(usual)


def test_a_network_that_learns_is_not_taken_apart(digits):
    model = build_model(RunConfig.model_validate({"model": {"name": "resnet_tiny"}}), digits)
    assert features.find_body(model, make_config(), lambda: pytest.fail("images were asked for")) is None


class Odd(nn.Module):
    """A head that is not the last word, or says two of them, or is something else than one linear layer."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.body = kind, nn.Linear(4, 8)
        self.head: nn.Module = nn.Linear(8, 3)
        if kind == "convolution":
            self.head = nn.Conv2d(8, 3, 1)
        if kind == "norm":
            self.head = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 3))
        if kind == "list":
            self.head = nn.ModuleList([nn.Linear(8, 3)])
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)  # as fresh heads are: all of them say the same
        self.body.requires_grad_(False)

    def get_classifier(self) -> nn.Module:
        return self.head

    def forward(self, x):
        x = self.body(x.flatten(1))
        if self.kind == "convolution":
            return self.head(x[..., None, None]).flatten(1)
        if self.kind == "list":
            return self.head[0](x)
        if self.kind == "twice":
            x = self.head(x) @ torch.ones(3, 8)
        return self.head(x) * (2 if self.kind == "doubled" else 1)


@pytest.mark.parametrize("kind", ["doubled", "twice", "convolution", "norm", "list"])
def test_other_heads_are_left_alone(kind):
    model = Odd(kind)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert features.find_body(model, make_config(), lambda: torch.randn(8, 1, 2, 2)) is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_one_linear_layer_at_the_end_is_a_head():
    assert features.find_body(Odd("usual"), make_config(), lambda: torch.randn(8, 1, 2, 2)) is not None


def test_the_second_stage_of_contrastive_learning_keeps_features(digits, tmp_path, monkeypatch, passes):
    objective = {"name": "contrastive", "pretrain": 0.5, "head_optimizer": "adamw", "head_lr": 0.01}
    config = make_config(
        model={"name": "resnet_tiny"}, objective=objective, budget={"epochs": 6}, augment={}, minimizer={"name": "base"}
    )
    run = train(config, digits, tmp_path / "run")
    assert sum(passes) == sum(len(split) for split in (digits.train, digits.val, digits.test))
    plainly(monkeypatch)
    plain = train(config, digits, tmp_path / "plain")
    assert run.summary["test"]["loss"] == pytest.approx(plain.summary["test"]["loss"], rel=1e-3)


def test_the_images_of_a_batch_are_those_that_were_picked(digits):
    loader = Loader(digits, batch_size=32, augment=AugmentConfig(), seed=0, device=torch.device("cpu"))
    assert torch.equal(loader.batch(3, 1)[1], digits.train.labels[loader.picked(3, 1)])
