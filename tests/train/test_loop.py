"""What the loop does with budgets, methods, batches and averages."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from training import KillAt, make_config, story, train_whole_and_resumed, weights

import steppe.train.loop as loop
import steppe.train.objectives as objectives
from steppe.config import MINIMIZER_DEFAULTS, OPTIMIZER_DEFAULTS
from steppe.errors import TrainingError
from steppe.minimizers import METHODS, defaults_of
from steppe.runs import Observer
from steppe.train import build_minimizer, build_model, train


def test_an_unfinished_epoch_does_not_count_as_one(digits, tmp_path):
    run = train(make_config(minimizer={}, budget={"gradient_evaluations": 7}), digits, tmp_path / "r")  # 5 an epoch
    first, second = run.metrics()
    assert (first["steps"], second["steps"]) == (5, 7)
    assert run.summary["time_per_epoch_s"] == pytest.approx(first["time_s"])
    run = train(make_config(minimizer={}, budget={"gradient_evaluations": 3}), digits, tmp_path / "short")
    assert run.summary["time_per_epoch_s"] == pytest.approx(5 / 3 * run.summary["time_s"])


def test_a_budget_of_gradient_evaluations_is_kept(digits, tmp_path):
    every_second = {"name": "sam", "sharp_every": 2}
    cases = [({"name": "base"}, 7, 7), ({"name": "sam"}, 7, 3), (every_second, 7, 4), (every_second, 6, 4)]
    for number, (minimizer, evaluations, expected) in enumerate(cases):
        config = make_config(minimizer=minimizer, budget={"gradient_evaluations": evaluations})
        summary = train(config, digits, tmp_path / str(number)).summary
        assert summary["steps"] == expected
        assert summary["gradient_evaluations"] <= evaluations
    with pytest.raises(TrainingError, match="does not pay for one step"):
        train(make_config(budget={"gradient_evaluations": 1}), digits, tmp_path / "none")


def test_the_seed_decides_everything_and_the_callers_randomness_is_left_alone(digits, tmp_path):
    config = make_config(budget={"epochs": 1})
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one = train(config, digits, tmp_path / "1")
    assert torch.equal(torch.rand(3), expected)
    two = train(config, digits, tmp_path / "2")
    assert weights(one) == weights(two)
    other = train(config.model_copy(update={"seed": 1}), digits, tmp_path / "3")
    assert weights(other) != weights(one)


def test_training_learns(digits, tmp_path):
    config = make_config(
        model={"name": "resnet_tiny"}, batch_size=64, optimizer={"lr": 2e-3}, augment={}, budget={"epochs": 4}
    )
    run = train(config, digits, tmp_path / "r")
    assert run.summary["test"]["accuracy"] > 0.9
    assert run.summary["test"]["examples"] == 359
    records = run.metrics()
    assert records[-1]["train_loss"] < 0.3 < records[0]["train_loss"]
    assert [r["gradient_evaluations"] for r in records] == [40, 80, 120, 160]


def test_bfloat16_runs(digits, tmp_path):
    run = train(make_config(precision="bfloat16", budget={"epochs": 1}), digits, tmp_path / "r")
    assert run.finished


@pytest.mark.parametrize(
    ("optimizer", "decays"),
    [
        ({"name": "adamw"}, {(True, 0.05), (False, 0.0)}),
        ({"name": "sgd"}, {(True, 5e-4), (False, 5e-4)}),
        ({"name": "sgd", "decay_norms": False}, {(True, 5e-4), (False, 0.0)}),
    ],
)
def test_whether_biases_and_norms_decay(digits, optimizer, decays):
    config = make_config(model={"name": "resnet_tiny"}, optimizer=optimizer)
    minimizer = build_minimizer(config, build_model(config, digits))
    assert {(p.ndim > 1, group["weight_decay"]) for group in minimizer.param_groups for p in group["params"]} == decays


@pytest.mark.parametrize("name", sorted(MINIMIZER_DEFAULTS))
def test_config_and_minimizers_agree_on_defaults(name):
    own = defaults_of(METHODS[name])
    ours = {key: value for key, value in MINIMIZER_DEFAULTS[name].items() if key != "scaling"}
    assert {key: own[key] for key in ours} == ours


def test_every_minimizer_has_a_config():
    assert set(METHODS) == set(MINIMIZER_DEFAULTS)


VARIANTS = [
    *({"name": name} for name in MINIMIZER_DEFAULTS),
    {"name": "sam", "ascent_fraction": 0.25},
    {"name": "asam", "m": 64, "scaling": "layer"},
    {"name": "sam", "sharp_every": 3, "replay_rng": True},
    {"name": "sam", "sharp_last": 0.5},
]


@pytest.mark.parametrize("minimizer", VARIANTS, ids=lambda v: "-".join(map(str, v.values())))
def test_every_method_trains_and_resumes_exactly(digits, tmp_path, minimizer):
    config = make_config(minimizer=minimizer, optimizer={"name": "sgd", "lr": 0.05}, budget={"epochs": 2})
    whole, resumed = train_whole_and_resumed(config, digits, tmp_path, KillAt(8, 5))
    assert weights(resumed) == weights(whole)
    assert story(resumed) == story(whole)
    spent = whole.summary["gradient_evaluations"] / whole.summary["steps"]
    if minimizer["name"] != "aesam":
        assert spent == pytest.approx(config.minimizer.expected_gradients, abs=0.21)


def test_micro_batches_give_the_same_update(digits, tmp_path):
    """No BatchNorm, no dropout: only the order of additions differs."""
    model = {"name": "mixer_tiny_p2"}
    for minimizer in ({"name": "base"}, {"name": "sam"}, {"name": "asam"}, {"name": "sam", "ascent_fraction": 0.5}):
        runs = []
        for parts in (None, 3):
            config = make_config(
                model=model,
                minimizer=minimizer,
                accumulate=parts,
                optimizer={"name": "sgd", "lr": 0.05},
                budget={"epochs": 1},
            )
            runs.append(train(config, digits, tmp_path / f"{minimizer['name']}-{len(minimizer)}-{parts}"))
        whole, *split = (run.metrics() for run in runs)
        for other in split:
            for key in ("train_loss", "val_loss", "train_accuracy"):
                assert [r[key] for r in other] == pytest.approx([r[key] for r in whole], rel=1e-3)
            assert [r["gradient_evaluations"] for r in other] == [r["gradient_evaluations"] for r in whole]


def test_running_out_of_memory_splits_the_batch(digits, tmp_path, monkeypatch):
    plain = objectives.example_losses
    said = []

    def limited(logits, targets, config):
        if len(targets) > 100:
            raise torch.OutOfMemoryError("out of memory")
        return plain(logits, targets, config)

    class Listen(Observer):
        def say(self, text: str) -> None:
            said.append(text)

    config = make_config(model={"name": "mixer_tiny_p2"})
    whole = train(config, digits, tmp_path / "whole")
    monkeypatch.setattr(objectives, "example_losses", limited)
    split = train(config, digits, tmp_path / "split", observer=Listen())
    assert said == [
        "memory ran out: going on with 2 micro-batches a step, which is the same update",
        "memory ran out: going on with 4 micro-batches a step, which is the same update",
    ]
    assert split.metrics()[-1]["val_loss"] == pytest.approx(whole.metrics()[-1]["val_loss"], rel=1e-3)
    monkeypatch.setattr(objectives, "example_losses", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("none")))
    with pytest.raises(TrainingError, match="even in parts"):
        train(config, digits, tmp_path / "none")


def test_a_budget_of_seconds_is_kept_and_the_schedule_follows_it(digits, tmp_path):
    config = make_config(budget={"seconds": 1.0}, schedule={"name": "linear"})
    run = train(config, digits, tmp_path / "r")
    assert 1.0 <= run.summary["time_s"] < 1.5
    began = 0.0
    for record in run.metrics():  # the rate is that of the epoch's last step, which began in the epoch
        assert max(0.0, 1 - record["time_s"]) <= record["lr"] / config.optimizer.lr <= 1 - began
        began = record["time_s"]
    rates = [r["lr"] for r in run.metrics()]
    assert rates == sorted(rates, reverse=True)


def test_early_stopping(digits, tmp_path, monkeypatch):
    losses = iter([3.0, 2.0, 2.5, 2.1, 1.0, 9.0])
    monkeypatch.setattr(loop, "measure", lambda *_: {"loss": next(losses, 5.0), "accuracy": 0.5, "examples": 1})
    run = train(make_config(patience=2, budget={"epochs": 10}), digits, tmp_path / "r")
    assert run.summary["epochs"] == 4


def test_the_radius_can_fall(digits, tmp_path):
    config = make_config(minimizer={"name": "sam", "rho": 0.1, "rho_final": 0.5})
    rhos = [r["rho"] for r in train(config, digits, tmp_path / "r").metrics()]
    expected = [0.1 * (0.5 + 0.25 * (1 + math.cos(math.pi * step / 15))) for step in (4, 9, 14)]
    assert rhos == pytest.approx(expected)


@pytest.mark.parametrize("name", sorted(OPTIMIZER_DEFAULTS))
def test_every_optimizer_learns_and_resumes(digits, tmp_path, name):
    optimizer = {"name": name, **({"lr": 5e-3} if name == "muon" else {})}  # its 1e-3 needs more than 15 steps
    config = make_config(
        model={"name": "resnet_tiny"}, minimizer={"name": "sam"}, optimizer=optimizer, batch_size=128, augment={}
    )
    whole, resumed = train_whole_and_resumed(config, digits, tmp_path, KillAt(15, 10))
    assert whole.metrics()[-1]["train_loss"] < 1.5
    assert weights(resumed) == weights(whole)


def test_losses():
    logits = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).float()
    labels = torch.tensor([0, 2, 1, 1, 0])
    hot = torch.nn.functional.one_hot(labels, 3).float()
    plain = objectives.example_losses(logits, labels, make_config())
    torch.testing.assert_close(plain, -(logits.log_softmax(1) * hot).sum(1))
    torch.testing.assert_close(plain, objectives.example_losses(logits, hot, make_config()))
    wanted = hot * 0.9 + 0.1 / 3
    by_hand = -(wanted * logits.sigmoid().log() + (1 - wanted) * (1 - logits.sigmoid()).log()).sum(1)
    config = make_config(sigmoid_loss=True, label_smoothing=0.1)
    torch.testing.assert_close(objectives.example_losses(logits, labels, config), by_hand)
    torch.testing.assert_close(objectives.example_losses(logits, hot, config), by_hand)
    assert (
        objectives.count_hits(logits, labels)
        == objectives.count_hits(logits, hot)
        == (logits.argmax(1) == labels).sum()
    )


def test_metrics_are_plain_json(digits, tmp_path):
    run = train(make_config(budget={"epochs": 1}), digits, tmp_path / "r")
    for path in Path(run.path).glob("*.json"):
        json.loads(path.read_text(), parse_constant=pytest.fail)
