"""Contrastive learning: the loss against its formula and its limits, and a run of two stages."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from training import KillAt, KilledError

import steppe.train.loop as loop
from steppe import data, models
from steppe.cli import main
from steppe.config import DataConfig, RunConfig
from steppe.data import Loader
from steppe.errors import ConfigError, Interrupted, TrainingError
from steppe.evaluate import measure_accuracy
from steppe.runs import Observer, Run
from steppe.train import build_minimizer, train
from steppe.train.contrastive import contrastive_losses, plan_stages, put_classifier, put_projection
from steppe.train.objectives import make_objective
from steppe.train.steps import CompiledStep, EagerStep

CPU = torch.device("cpu")


def make_config(**changes) -> RunConfig:
    values = {
        "batch_size": 256,
        "model": {"name": "resnet_tiny", "dropout": 0.1},
        "minimizer": {"name": "sam"},
        "objective": {"name": "contrastive", "pretrain": 0.5},
        "augment": {"crop_padding": 1},
        "budget": {"epochs": 4},
    }
    return RunConfig.model_validate({**values, **changes})


def reference(features, labels, temperature):
    """Equation 2 of the paper, one pair after the other, in float64."""
    z = features / np.linalg.norm(features, axis=1, keepdims=True)
    losses = []
    for i in range(len(z)):
        others = [a for a in range(len(z)) if a != i]
        below = math.log(sum(math.exp(z[i] @ z[a] / temperature) for a in others))
        positive = [p for p in others if labels[p] == labels[i]]
        losses.append(-sum(z[i] @ z[p] / temperature - below for p in positive) / max(1, len(positive)))
    return losses


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**31), st.integers(2, 12), st.integers(1, 4), st.sampled_from([0.07, 0.1, 0.5, 3.0]))
def test_the_loss_is_its_formula(seed, count, classes, temperature):
    generator = np.random.default_rng(seed)
    features, labels = generator.normal(size=(count, 5)) * 3, generator.integers(classes, size=count)
    expected = reference(features, labels, temperature)
    found, paired = contrastive_losses(torch.tensor(features), torch.tensor(labels), temperature)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-12)
    assert paired.tolist() == [(labels == label).sum() > 1 for label in labels]
    single, _ = contrastive_losses(torch.tensor(features).float(), torch.tensor(labels), temperature)
    np.testing.assert_allclose(single.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_the_loss_in_its_limits():
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    same = torch.ones(6, 4, dtype=torch.float64)
    assert contrastive_losses(same, labels, 0.1)[0].tolist() == pytest.approx([math.log(5)] * 6)
    corners = torch.eye(2, dtype=torch.float64)[labels]  # two positives at 1, three negatives at 0
    expected = math.log(2 * math.e**10 + 3) - 10
    assert contrastive_losses(corners, labels, 0.1)[0].tolist() == pytest.approx([expected] * 6)
    assert expected == pytest.approx(math.log(2), abs=1e-4)  # the best there is: two positives share it
    random = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert contrastive_losses(random, labels, 1e6)[0].tolist() == pytest.approx([math.log(5)] * 6, rel=1e-5)


def test_two_views_of_one_batch_are_compared(digits):
    config = make_config()
    loader = Loader(digits, batch_size=16, augment=config.augment, seed=0, device=CPU)
    objective = make_objective(config, loader, digits)
    first, second, labels = objective.batch(0, 2)
    assert not torch.equal(first, second)
    assert torch.equal(first, loader.batch(0, 2)[0])
    assert torch.equal(second, loader.batch(0, 2, view=1)[0])
    losses, _ = objective.losses(torch.nn.Flatten(), first, second, labels)
    both = torch.cat((first, second)).flatten(1).double().numpy()
    expected = np.array(reference(both, np.tile(labels.numpy(), 2), 0.1)).reshape(2, 16).mean(0)
    np.testing.assert_allclose(losses.numpy(), expected, rtol=1e-4)


def test_the_projection_takes_the_classifiers_place_and_leaves_it(digits):
    for name in ("resnet_tiny", "vit_tiny_p2", "swin_tiny_p2", "timm:efficientnet_b0"):
        config = make_config(model={"name": name})
        model = models.build(config.model, image_size=8, channels=1, classes=10).eval()
        images = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        before, state = model(images), {k: v.clone() for k, v in model.state_dict().items()}
        classifier = put_projection(model, config)
        assert model(images).shape == (3, 128)
        put_classifier(model, classifier)
        assert torch.equal(model(images), before)
        assert list(model.state_dict()) == list(state)
        trained = [p for p in model.parameters() if p.requires_grad]
        assert {id(p) for p in trained} == {id(p) for p in classifier.parameters()}
        model.train()
        assert not any(m.training for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d))


def test_stages_divide_the_budget():
    ends = {
        (10, 0.8): 0.8,
        (2, 0.99): 0.5,
        (3, 0.01): 1 / 3,
        (7, 0.5): 4 / 7,
    }
    for (epochs, share), end in ends.items():
        config = make_config(budget={"epochs": epochs}, objective={"name": "contrastive", "pretrain": share})
        first, second = plan_stages(config)
        assert (first.name, first.end, second.name, second.end) == ("pretrain", end, "head", 1.0)
        assert second.config.minimizer.name == "base"
        assert (second.config.optimizer.name, second.config.optimizer.lr) == ("rmsprop", 0.005)
        assert second.config.objective.name is None
    assert plan_stages(RunConfig())[0].name is None


@pytest.mark.parametrize("minimizer", ["base", pytest.param("sam", marks=pytest.mark.long), "msam"])
def test_killed_in_either_stage_and_resumed_gives_the_same_run(digits, tmp_path, minimizer):
    config = make_config(minimizer={"name": minimizer}, ema=0.9 if minimizer == "base" else None)
    whole = train(config, digits, tmp_path / "whole")
    steps = {"pretrain": {"base": 2, "sam": 4, "msam": 2}[minimizer], "head": 1}
    spent = 0.0
    assert [r["stage"] for r in whole.metrics()] == ["pretrain", "pretrain", "head", "head"]
    for number, record in enumerate(whole.metrics(), 1):
        spent += 5 * steps[record["stage"]]
        assert (record["epoch"], record["gradient_evaluations"]) == (number, spent)
        assert (record["val_accuracy"] is None) == (record["stage"] == "pretrain")
        assert (record["rho"] is None) == (record["stage"] == "head" or minimizer == "base")
    assert config.expected_gradients * 20 == pytest.approx(spent)
    for kill_at in (1, 6, 10, 11, 17):
        out = tmp_path / f"killed-{kill_at}"
        with pytest.raises(KilledError):
            train(config, digits, out, observer=KillAt(kill_at, 5))
        resumed = train(config, digits, out)
        assert resumed.weights.read_bytes() == whole.weights.read_bytes()
        assert resumed.summary["test"] == whole.summary["test"]
        for one, other in zip(resumed.metrics(), whole.metrics(), strict=True):
            assert {**one, "time_s": 0} == {**other, "time_s": 0}


def test_ctrl_c_in_the_second_stage_keeps_the_very_step(digits, tmp_path):
    config = make_config()
    whole = train(config, digits, tmp_path / "whole")
    training: list[loop.Training] = []

    class StopAt(Observer):
        def step(self, epochs: float) -> None:
            if round(epochs * 5) in (10, 13):
                training[-1].stop.set()

    class Watched(loop.Training):
        def __init__(self, *arguments) -> None:
            super().__init__(*arguments)
            training.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("steppe.train.session.Training", Watched)
        for step in (10, 13):
            with pytest.raises(Interrupted, match=f"stopped after step {step} "):
                train(config, digits, tmp_path / "stopped", observer=StopAt())
    assert training[-1].stage.name == "head"
    assert train(config, digits, tmp_path / "stopped").weights.read_bytes() == whole.weights.read_bytes()


def test_it_learns_and_leaves_an_ordinary_model(digits, tmp_path):
    config = make_config(
        batch_size=64, objective={"name": "contrastive"}, budget={"epochs": 10}, minimizer={"name": "sam", "rho": 0.02}
    )
    run = train(config, digits, tmp_path / "r")
    losses = [r["val_loss"] for r in run.metrics() if r["stage"] == "pretrain"]
    assert len(losses) == 8
    assert losses[-1] < losses[0] - 0.5
    assert run.summary["test"]["accuracy"] > 0.8
    model = models.build(run.config.model, image_size=8, channels=1, classes=10)
    models.load_weights(model, run.weights)
    found = measure_accuracy(model, digits.test, digits, device=CPU)
    assert found["accuracy"] == run.summary["test"]["accuracy"]


def test_the_second_stage_leaves_the_backbone_alone(digits, tmp_path):
    """Running statistics included, which a model in training mode would move."""
    states = []
    for epochs in (2, 3):
        pretrain = 1.0 / epochs
        config = make_config(
            budget={"epochs": epochs}, objective={"name": "contrastive", "pretrain": pretrain}, schedule={"final": 1.0}
        )
        run = train(config, digits, tmp_path / str(epochs))
        assert [r["stage"] for r in run.metrics()].count("pretrain") == 1
        model = models.build(run.config.model, image_size=8, channels=1, classes=10)
        models.load_weights(model, run.weights)
        states.append(model.state_dict())
    one, other = states
    assert [name for name in one if not torch.equal(one[name], other[name])] == ["head.weight", "head.bias"]


def test_budgets_of_seconds_and_gradients_reach_both_stages(digits, tmp_path):
    for budget in ({"seconds": 1.0}, {"gradient_evaluations": 63}):
        run = train(make_config(budget=budget), digits, tmp_path / next(iter(budget)))
        stages = [r["stage"] for r in run.metrics()]
        assert stages == sorted(stages, reverse=True)
        assert set(stages) == {"pretrain", "head"}
        spent = [r["gradient_evaluations"] for r in run.metrics() if r["stage"] == "pretrain"][-1]
        if "seconds" in budget:
            assert 1.0 <= run.summary["time_s"] < 1.5
        else:
            assert spent == 28  # seven steps of four gradients in half of 63
            assert run.summary["gradient_evaluations"] == 63
        assert [r["epoch"] for r in run.metrics()] == list(range(1, len(stages) + 1))
    with pytest.raises(TrainingError, match="of which 3 are for the stage 'pretrain'"):
        train(make_config(budget={"gradient_evaluations": 6}), digits, tmp_path / "poor")


def test_patience_waits_for_the_second_stage(digits, tmp_path, monkeypatch):
    losses = iter([3.0, 4.0, 5.0, 1.0])
    monkeypatch.setattr(loop, "measure_contrast", lambda _: {"loss": 9.0, "accuracy": None})
    monkeypatch.setattr(loop, "measure", lambda *_: {"loss": next(losses, 1.0), "accuracy": 0.5, "examples": 1})
    run = train(make_config(patience=2, budget={"epochs": 12}), digits, tmp_path / "r")
    assert [r["stage"] for r in run.metrics()] == ["pretrain"] * 6 + ["head"] * 3


def test_the_compiled_step_makes_the_eager_steps(digits):
    """In float64, where four steps do not make much of the last digit."""
    config = make_config(batch_size=64, model={"name": "resnet_tiny"}, optimizer={"name": "sgd", "lr": 0.05})
    ends = []
    for kind in ("eager", "compiled"):
        torch.manual_seed(0)
        model = models.build(config.model, image_size=8, channels=1, classes=10)
        put_projection(model, config)
        minimizer = build_minimizer(config, model.double().train())
        loader = Loader(digits, batch_size=64, augment=config.augment, seed=0, device=CPU)
        objective = make_objective(config, loader, digits)
        batches = [tuple(t.double() for t in objective.batch(0, index)) for index in range(4)]
        if kind == "eager":
            step = EagerStep(model, minimizer, objective, config, lambda _: None)
        else:
            step = CompiledStep(model, minimizer, objective, config, batches[0], compiled=False)
        told = [float(step(*batch)[0]) for batch in batches]
        ends.append((told, minimizer.gradient_evaluations, model.state_dict()))
    (told, spent, state), (other_told, other_spent, other_state) = ends
    assert told == pytest.approx(other_told, rel=1e-6)
    assert spent == other_spent == 16
    torch.testing.assert_close(state, other_state, rtol=1e-6, atol=1e-9)


def test_memory_that_runs_out_is_not_met_by_parts(digits, tmp_path, monkeypatch):
    def none_left(*_):
        raise torch.OutOfMemoryError("none")

    monkeypatch.setattr("steppe.train.objectives.contrastive_losses", none_left)
    with pytest.raises(TrainingError, match="memory ran out"):
        train(make_config(), digits, tmp_path / "r")


def test_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["train", "--objective", "contrastive", "--batch-size", "256", "--epochs", "2"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--model", "resnet_tiny", "-o", "r"])
    assert not ended.value.code
    said = capsys.readouterr().out
    assert "pretrain  train loss" in said
    assert "head  train loss" in said
    assert Run(tmp_path / "r").finished
    with pytest.raises(SystemExit) as ended:
        main(["report", "r"])
    assert not ended.value.code
    with pytest.raises(SystemExit) as ended:
        main([*words, "--model", "timm:resnetv2_50", "-o", "s"])
    assert ended.value.code == 2
    assert "not one linear layer" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_a_head_that_is_no_linear_layer_is_refused(tmp_path):
    dataset = data.load(DataConfig(image_size=32))
    with pytest.raises(ConfigError, match="not one linear layer"):
        train(make_config(model={"name": "timm:resnetv2_50"}), dataset, tmp_path / "r")
