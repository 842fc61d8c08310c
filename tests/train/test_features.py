"""Where the head alone learns, the body is asked once for every image, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from training import KillAt, KilledError, make_config, story, weights

import steppe.train.features as features
import steppe.train.loop as loop
from steppe.config import AugmentConfig, RunConfig
from steppe.data import Loader
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
    ask = features.Body.with_answers

    def count(self, images):
        counts.append(len(images))
        return ask(self, images)

    monkeypatch.setattr(features.Body, "with_answers", count)
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
def test_every_kind_of_network_is_taken_apart(digits, frozen, tmp_path, passes, name):
    train(frozen(name, budget={"epochs": 1}), digits, tmp_path / "run")
    assert passes


def test_an_image_is_asked_for_once_in_a_run(digits, frozen, tmp_path, passes):
    train(frozen(budget={"epochs": 4}), digits, tmp_path / "run")
    looked_at = sum(passes[:2])
    assert sum(passes) - looked_at == sum(len(split) for split in (digits.train, digits.val, digits.test))


def test_augmented_images_are_asked_for_once_a_step(digits, frozen, tmp_path, passes):
    run = train(frozen(augment={"flip": True}), digits, tmp_path / "run")
    steps = run.summary["steps"]
    assert passes.count(256) == steps + passes[2 + steps :].count(256)
    assert run.summary["gradient_evaluations"] == 2 * steps


@pytest.mark.parametrize("augment", [{}, {"flip": True}])
@pytest.mark.parametrize("kill_at", [2, 5, 8])
def test_killed_anywhere_and_resumed_gives_the_same_run(digits, frozen, tmp_path, augment, kill_at):
    config = frozen("vit_tiny_p2", augment=augment, batch_size=200)
    per_epoch = len(digits.train) // 200
    whole = train(config, digits, tmp_path / "whole")
    with pytest.raises(KilledError):
        train(config, digits, tmp_path / "killed", observer=KillAt(kill_at, per_epoch))
    resumed = train(config, digits, tmp_path / "killed")
    assert weights(resumed) == weights(whole)
    assert story(resumed) == story(whole)
    assert resumed.summary["test"] == whole.summary["test"]


def test_many_features_are_not_kept(digits, frozen, tmp_path, monkeypatch, passes):
    monkeypatch.setattr(features, "MOST_BYTES", 10_000)
    run = train(frozen(budget={"epochs": 2}), digits, tmp_path / "run")
    assert passes.count(256) >= run.summary["steps"] > 5


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
    """Its head is not the last word."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.body.requires_grad_(False)

    def get_classifier(self) -> nn.Module:
        return self.head

    def forward(self, x):
        return 2 * self.head(self.body(x.flatten(1)))


def test_a_head_that_is_not_the_last_word_is_found_out():
    assert features.find_body(Odd(), make_config(), lambda: torch.randn(8, 1, 2, 2)) is None


def test_the_second_stage_of_contrastive_learning_keeps_features(digits, tmp_path, monkeypatch, passes):
    objective = {"name": "contrastive", "pretrain": 0.5, "head_optimizer": "adamw", "head_lr": 0.01}
    config = make_config(
        model={"name": "resnet_tiny"}, objective=objective, budget={"epochs": 6}, augment={}, minimizer={"name": "base"}
    )
    run = train(config, digits, tmp_path / "run")
    assert sum(passes[2:]) == sum(len(split) for split in (digits.train, digits.val, digits.test))
    plainly(monkeypatch)
    plain = train(config, digits, tmp_path / "plain")
    assert run.summary["test"]["loss"] == pytest.approx(plain.summary["test"]["loss"], rel=1e-3)


def test_the_images_of_a_batch_are_those_that_were_picked(digits):
    loader = Loader(digits, batch_size=32, augment=AugmentConfig(), seed=0, device=torch.device("cpu"))
    assert torch.equal(loader.batch(3, 1)[1], digits.train.labels[loader.picked(3, 1)])
