"""The base optimizer of a run: rates of the layers, momentum; through schedules, methods, capture and resumption."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
from training import KillAt, make_config, story, train_whole_and_resumed, weights

import steppe.train.loop as loop
from steppe.data import Loader
from steppe.errors import ConfigError
from steppe.models import count_depths
from steppe.models.side_by_side import SideBySide
from steppe.train import build_minimizer, build_model, train
from steppe.train.objectives import make_objective
from steppe.train.steps import CompiledStep, EagerStep

CPU = torch.device("cpu")
LAYERED = {"name": "sgd", "lr": 0.1, "layer_decay": 0.5}
NESTEROV = {"name": "sgd", "lr": 0.05, "nesterov": True}


def rates(minimizer, model) -> dict[str, float]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {names[p]: float(group["lr"]) for group in minimizer.param_groups for p in group["params"]}


@pytest.mark.parametrize("name", ["resnet_tiny", "vit_tiny_p2", "swin_tiny_p2", "mixer_tiny_p2"])
def test_layer_decay_lowers_the_rate_from_the_head_to_the_stem(digits, name):
    config = make_config(model={"name": name}, optimizer=LAYERED)
    model = build_model(config, digits)
    depths = count_depths(model)
    assert rates(build_minimizer(config, model), model) == {
        key: pytest.approx(0.1 * 0.5**depth) for key, depth in depths.items()
    }
    assert set(depths.values()) == set(range(max(depths.values()) + 1))


def test_layer_decay_of_one_gives_the_groups_of_none(digits):
    model = build_model(make_config(), digits)
    groups = [
        build_minimizer(make_config(optimizer={"name": "adamw", **own}), model).param_groups
        for own in ({"layer_decay": 1.0}, {})
    ]
    assert [group["lr"] for group in groups[0]] == [group["lr"] for group in groups[1]] == [1e-3, 1e-3]
    for one, other in zip(*groups, strict=True):
        assert all(a is b for a, b in zip(one["params"], other["params"], strict=True))


def test_layer_decay_leaves_the_decay_of_biases_and_norms_alone(digits):
    for decays, expected in ((False, 0.0), (True, 5e-4)):
        config = make_config(model={"name": "resnet_tiny"}, optimizer={**LAYERED, "decay_norms": decays})
        groups = build_minimizer(config, build_model(config, digits)).param_groups
        assert {g["weight_decay"] for g in groups for p in g["params"] if p.ndim <= 1} == {expected}
        assert {g["weight_decay"] for g in groups for p in g["params"] if p.ndim > 1} == {5e-4}


def test_layer_decay_of_a_network_without_named_blocks_is_refused(digits):
    config = make_config(optimizer=LAYERED)
    with pytest.raises(ConfigError, match="parts of a Sequential have no names") as error:
        build_minimizer(config, torch.nn.Sequential(torch.nn.Linear(4, 2)))
    assert error.value.where == "optimizer.layer_decay"
    assert error.value.fix.startswith("leave it out, or choose a model")


def test_head_lr_factor_multiplies_the_rate_of_the_head_alone(digits):
    for own in ({}, {"layer_decay": 1.0}):
        config = make_config(optimizer={"name": "sgd", "lr": 0.1, "head_lr_factor": 10.0, **own})
        model = build_model(config, digits)
        found = rates(build_minimizer(config, model), model)
        assert {name for name, rate in found.items() if rate == pytest.approx(1.0)} == {"head.weight", "head.bias"}
        assert sorted(set(found.values())) == pytest.approx([0.1, 1.0])


def test_head_lr_factor_needs_no_named_blocks(digits):
    parts = [timm.create_model("resnet18", num_classes=0), timm.create_model("convnext_atto", num_classes=0)]
    model = SideBySide(parts, channels=3, classes=10)
    found = rates(build_minimizer(make_config(optimizer={"lr": 1e-3, "head_lr_factor": 4.0}), model), model)
    assert found.pop("head.weight") == found.pop("head.bias") == pytest.approx(4e-3)
    assert set(found.values()) == {1e-3}


def test_head_lr_factor_of_a_network_without_a_head_is_refused(digits):
    config = make_config(optimizer={"head_lr_factor": 4.0})
    with pytest.raises(ConfigError, match="head of Sequential cannot be told") as error:
        build_minimizer(config, torch.nn.Sequential(torch.nn.Linear(4, 2)))
    assert error.value.where == "optimizer.head_lr_factor"
    assert error.value.fix == "leave it out"


def test_metrics_have_the_rate_of_the_schedule_and_not_the_heads_multiple(digits, tmp_path):
    optimizer = {"name": "sgd", "lr": 0.01, "head_lr_factor": 5.0}
    config = make_config(optimizer=optimizer, schedule={"name": "constant"}, budget={"epochs": 1})
    assert train(config, digits, tmp_path / "r").metrics()[-1]["lr"] == 0.01


def test_the_schedule_keeps_the_ratio_of_the_rates(digits, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(loop, "build_minimizer", lambda *given: made.append(build_minimizer(*given)) or made[-1])
    run = train(make_config(optimizer=LAYERED, budget={"epochs": 2}), digits, tmp_path / "r")
    found = [float(group["lr"]) for group in made[0].param_groups]
    last = run.metrics()[-1]["lr"]
    assert 0 < last < 0.1
    assert sorted({rate / last for rate in found}, reverse=True) == pytest.approx([0.5**depth for depth in range(6)])


def test_gsam_has_one_radius_in_all_layers(digits):
    config = make_config(minimizer={"name": "gsam", "rho": 0.2}, optimizer=LAYERED)
    minimizer = build_minimizer(config, build_model(config, digits))
    for group in minimizer.param_groups:
        group["lr"] *= 0.25
    minimizer.move_radius()
    assert [group["rho"] for group in minimizer.param_groups] == pytest.approx([0.05] * len(minimizer.param_groups))


@pytest.mark.parametrize("minimizer", ["base", "gsam"])
@pytest.mark.parametrize("optimizer", [LAYERED, NESTEROV], ids=["layers", "nesterov"])
def test_a_run_with_these_settings_resumes_exactly(digits, tmp_path, minimizer, optimizer):
    config = make_config(minimizer={"name": minimizer}, optimizer=optimizer, budget={"epochs": 2})
    whole, resumed = train_whole_and_resumed(config, digits, tmp_path, KillAt(8, 5))
    assert weights(resumed) == weights(whole)
    assert story(resumed) == story(whole)


def two_trainings(digits, config):
    """An eager step and one from recorded parts, of the same network."""
    network = build_model(config, digits).train()
    for kind in (EagerStep, CompiledStep):
        model = copy.deepcopy(network)
        loader = Loader(digits, batch_size=64, augment=config.augment, seed=0, device=CPU)
        minimizer, objective = build_minimizer(config, model), make_objective(config, loader, digits)
        rest = (lambda _: None,) if kind is EagerStep else (objective.batch(0, 0),)
        options = {"compiled": False} if kind is CompiledStep else {}
        yield model, kind(model, minimizer, objective, config, *rest, **options), objective


@pytest.mark.parametrize("minimizer", ["base", "sam", "gsam", "msam"])
@pytest.mark.parametrize("optimizer", [LAYERED, NESTEROV], ids=["layers", "nesterov"])
def test_recorded_steps_with_these_settings_equal_eager_ones(digits, minimizer, optimizer):
    config = make_config(
        batch_size=64, minimizer={"name": minimizer}, optimizer=optimizer, schedule={"name": "constant"}, augment={}
    )
    models = []
    for model, step, objective in two_trainings(digits, config):
        for number in range(4):
            torch.manual_seed(number)
            step(*objective.batch(0, number))
        models.append(model)
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("optimizer", [LAYERED, NESTEROV], ids=["layers", "nesterov"])
def test_steps_with_these_settings_are_those_of_sgd_by_hand(digits, optimizer):
    config = make_config(batch_size=64, minimizer={"name": "base"}, optimizer=optimizer, model={"name": "resnet_tiny"})
    model = build_model(config, digits).train()
    plain = copy.deepcopy(model)
    minimizer, depths = build_minimizer(config, model), count_depths(model)
    images, labels = Loader(digits, batch_size=64, augment=config.augment, seed=0, device=CPU).batch(0, 0)
    buffers = {name: torch.zeros_like(parameter) for name, parameter in plain.named_parameters()}
    for _ in range(3):
        minimizer.zero_grad()
        minimizer.step(lambda: backward(model, images, labels))
        plain.zero_grad()
        backward(plain, images, labels)
        with torch.no_grad():
            for name, parameter in plain.named_parameters():
                gradient = parameter.grad + 5e-4 * parameter
                buffers[name] = 0.9 * buffers[name] + gradient
                step = gradient + 0.9 * buffers[name] if "nesterov" in optimizer else buffers[name]
                parameter -= optimizer["lr"] * optimizer.get("layer_decay", 1.0) ** depths[name] * step
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def backward(model, images, labels):
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    return loss
