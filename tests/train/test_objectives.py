"""Adversarial training: the attack and the three-level step against closed forms, and the loop's promises under it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from training import KillAt, KilledError

from steppe import data, models
from steppe.cli import main
from steppe.config import DataConfig, RunConfig
from steppe.data import Loader, Normalise, in_order
from steppe.runs import Run
from steppe.train import build_minimizer, train
from steppe.train.objectives import Pixels, make_objective
from steppe.train.steps import CompiledStep, EagerStep

CPU = torch.device("cpu")


def make_config(**changes) -> RunConfig:
    values = {
        "batch_size": 256,
        "model": {"name": "resnet_tiny"},
        "minimizer": {"name": "sam"},
        "objective": {"name": "adversarial", "epsilon": 16.0},
        "optimizer": {"name": "sgd", "lr": 0.05},
        "augment": {"crop_padding": 1},
        "budget": {"epochs": 2},
    }
    return RunConfig.model_validate({**values, **changes})


def make_parts(config: RunConfig, dataset, model: nn.Module):
    loader = Loader(dataset, batch_size=config.batch_size, augment=config.augment, seed=config.seed, device=CPU)
    return build_minimizer(config, model), make_objective(config, loader, dataset)


def make_step(kind: str, config: RunConfig, minimizer, objective, model: nn.Module):
    if kind == "eager":
        return EagerStep(model.train(), minimizer, objective, config, lambda _: None)
    return CompiledStep(model.train(), minimizer, objective, config, objective.batch(0, 0), compiled=False)


class Linear(nn.Module):
    """A softmax on the pixels: its gradients can be written down."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layer(images.flatten(1))


def gradients(weight, bias, pixels, labels):
    """Mean cross-entropy of the softmax in float64: gradients of weight, bias and pixels."""
    logits = pixels @ weight.T + bias
    share = np.exp(logits - logits.max(1, keepdims=True))
    error = share / share.sum(1, keepdims=True) - np.eye(10)[labels]
    error /= len(labels)
    return error.T @ pixels, error.sum(0), error @ weight


def attacked(dataset, epsilon, images, started, gradient):
    """FGSM in pixels from 0 to 1, where the budget is ε/255 and the range is plain."""
    mean, std = (np.array(v, dtype=np.float64) for v in (dataset.mean, dataset.std))
    clean, start = images * std + mean, started * std + mean
    radius = epsilon / 255
    change = np.clip(start - clean + 1.25 * radius * np.sign(gradient), -radius, radius)
    return (np.clip(clean + change, 0, 1) - mean) / std


@pytest.mark.parametrize("kind", ["eager", "compiled"])
@pytest.mark.parametrize("minimizer", [{"name": "base"}, {"name": "sam", "rho": 0.3}])
def test_the_step_is_the_three_level_objective(digits, kind, minimizer):
    config = make_config(minimizer=minimizer, optimizer={"name": "sgd", "lr": 0.5, "momentum": 0.0, "weight_decay": 0})
    model = Linear()
    weight, bias = (p.detach().double().numpy().copy() for p in model.parameters())
    made, objective = make_parts(config, digits, model)
    inputs = objective.batch(0, 1)
    started, labels, images = (t.double().numpy() if t.is_floating_point() else t.numpy() for t in inputs)
    loss, hits, seen = make_step(kind, config, made, objective, model)(*inputs)

    flat = (len(labels), 64)
    first = gradients(weight, bias, started.reshape(flat), labels)
    hostile = attacked(digits, 16.0, images, started, first[2].reshape(images.shape)).reshape(flat)
    rho = minimizer.get("rho", 0.0) / np.sqrt((first[0] ** 2).sum() + (first[1] ** 2).sum())
    second = gradients(weight + rho * first[0], bias + rho * first[1], hostile, labels)
    np.testing.assert_allclose(model.layer.weight.detach().numpy(), weight - 0.5 * second[0], rtol=0, atol=2e-6)
    np.testing.assert_allclose(model.layer.bias.detach().numpy(), bias - 0.5 * second[1], rtol=0, atol=2e-6)

    logits = started.reshape(flat) @ weight.T + bias
    assert seen == len(labels)
    assert int(hits) == (logits.argmax(1) == labels).sum()
    expected = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(labels)), labels]
    assert float(loss) == pytest.approx(expected.mean(), rel=1e-5)
    assert made.gradient_evaluations == 2
    assert np.abs(second[0] - gradients(weight, bias, images.reshape(flat), labels)[0]).max() > 1e-3  # it matters


def test_the_attack_stays_in_its_budget_and_raises_the_loss(digits):
    pixels = Pixels(digits, 16.0, 1.25, CPU)
    images, labels = next(in_order(digits.train, digits, batch_size=200, device=CPU))
    scale = Normalise(digits, CPU)
    generator = torch.Generator().manual_seed(0)
    started = pixels.start(images, generator)
    watched = started.clone().requires_grad_()
    model = Linear()
    loss = nn.functional.cross_entropy(model(watched), labels)
    loss.backward()
    hostile = pixels.climb(images, started, watched.grad)
    for moved in (started, hostile):
        change = (moved - images) * scale.std * 255
        values = moved * scale.std + scale.mean
        assert change.abs().max() <= 16 + 1e-3
        assert values.min() >= -1e-6
        assert values.max() <= 1 + 1e-6
    assert (started - images).std() > 0.1 * (16 / 255 / scale.std).item()
    assert nn.functional.cross_entropy(model(hostile), labels) > loss + 0.05
    assert not torch.equal(started, pixels.start(images, generator))


def test_points_have_no_range():
    toy = data.load(DataConfig(name=next(iter(data.TOYS))))
    pixels = Pixels(toy, 0.5, 1.0, CPU)
    images, _ = next(in_order(toy.train, toy, batch_size=50, device=CPU))
    far = pixels.climb(images, images, torch.ones_like(images))
    torch.testing.assert_close((far - images) * Normalise(toy, CPU).std, torch.full_like(images, 0.5))


COSTS = {
    "base": 2.0,
    "sam": 2.0,
    "asam": 2.0,
    "looksam": 2.0,
    "msam": 2.0,
    "gsam": 2.0,
    "fsam": 2.0,
    "samon": 2.0,
    "esam": 1 + 1 / 3 + 0.5,
}


@pytest.mark.parametrize("name", sorted(COSTS))
def test_every_minimizer_takes_it_and_resumes(digits, tmp_path, name):
    config = make_config(minimizer={"name": name})
    whole = train(config, digits, tmp_path / "whole")
    assert whole.metrics()[-1]["train_loss"] < whole.metrics()[0]["train_loss"]
    assert whole.summary["gradient_evaluations"] / whole.summary["steps"] == pytest.approx(COSTS[name])
    assert config.expected_gradients == pytest.approx(COSTS[name])
    with pytest.raises(KilledError):
        train(config, digits, tmp_path / "killed", observer=KillAt(8, 5))
    resumed = train(config, digits, tmp_path / "killed")
    assert resumed.weights.read_bytes() == whole.weights.read_bytes()
    assert resumed.summary["test"] == whole.summary["test"]


@pytest.mark.parametrize(
    "minimizer",
    [{"name": "base"}, {"name": "sam"}, {"name": "sam", "sharp_every": 2}, {"name": "sam", "m": 64}, {"name": "msam"}],
    ids=lambda v: "-".join(map(str, v.values())),
)
def test_micro_batches_give_the_same_update(digits, tmp_path, minimizer):
    found = []
    for parts in (None, 3):
        config = make_config(
            model={"name": "mixer_tiny_p2"}, minimizer=minimizer, accumulate=parts, budget={"epochs": 1}
        )
        found.append(train(config, digits, tmp_path / str(parts)).metrics())
    (whole,), (split,) = found
    for key in ("train_loss", "train_accuracy", "val_loss"):
        assert split[key] == pytest.approx(whole[key], rel=1e-3)
    assert split["gradient_evaluations"] == pytest.approx(whole["gradient_evaluations"])
    assert whole["gradient_evaluations"] == 10


@pytest.mark.parametrize(
    ("minimizer", "changes"),
    [
        ({"name": "base"}, {}),
        ({"name": "sam"}, {}),
        ({"name": "asam"}, {}),
        ({"name": "msam"}, {}),
        ({"name": "looksam", "k": 2}, {}),
        ({"name": "base"}, {"accumulate": 3}),
        ({"name": "sam"}, {"accumulate": 3}),
        ({"name": "sam", "replay_rng": True}, {"precision": "bfloat16"}),
    ],
    ids=lambda v: "-".join(map(str, v.values())),
)
def test_the_compiled_step_makes_the_eager_steps(digits, minimizer, changes):
    """What a CUDA graph would record, run without recording; bfloat16 soon makes much of the last digit."""
    steps = 2 if "precision" in changes else 4
    config = make_config(minimizer=minimizer, batch_size=64, **changes)
    ends = []
    for kind in ("eager", "compiled"):
        torch.manual_seed(0)
        model = models.build(config.model, image_size=8, channels=1, classes=10)
        made, objective = make_parts(config, digits, model)
        step = make_step(kind, config, made, objective, model)
        told = []
        for index in range(steps):
            loss, hits, seen = step(*objective.batch(0, index))
            told.append((float(loss), int(hits), seen))
        ends.append((told, made.gradient_evaluations, model.state_dict()))
    (told, spent, state), (other_told, other_spent, other_state) = ends
    torch.testing.assert_close(torch.tensor(told), torch.tensor(other_told), rtol=1e-4, atol=1e-5)
    assert spent == other_spent == 2 * steps
    torch.testing.assert_close(state, other_state, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ["eager", "compiled"])
@pytest.mark.parametrize("minimizer", ["base", "sam", "msam"])
def test_statistics_move_once_a_step(digits, kind, minimizer):
    config = make_config(minimizer={"name": minimizer})
    model = models.build(config.model, image_size=8, channels=1, classes=10)
    made, objective = make_parts(config, digits, model)
    step = make_step(kind, config, made, objective, model)
    for index in range(3):
        step(*objective.batch(0, index))
    counts = {int(b) for name, b in model.named_buffers() if name.endswith("num_batches_tracked")}
    assert counts == {3}


def accuracy_under_attack(run: Run, dataset, epsilon: float) -> float:
    """Accuracy on the test images, each moved by ε/255 along the sign of its gradient."""
    model = models.build(run.config.model, image_size=8, channels=1, classes=10)
    models.load_weights(model, run.weights)
    model.eval()
    images, labels = next(in_order(dataset.test, dataset, batch_size=10**6, device=CPU))
    std, mean = float(dataset.std[0]), float(dataset.mean[0])
    images.requires_grad_()
    nn.functional.cross_entropy(model(images), labels).backward()
    pixels = (images.detach() * std + mean + epsilon / 255 * images.grad.sign()).clamp(0, 1)
    return float((model((pixels - mean) / std).argmax(1) == labels).float().mean())


def test_it_makes_the_model_robust(digits, tmp_path):
    made = {}
    for name in ("supervised", "adversarial"):
        objective = {"name": name, **({"epsilon": 32.0} if name == "adversarial" else {})}
        config = make_config(
            objective=objective, minimizer={"name": "sam"}, batch_size=64, optimizer={}, budget={"epochs": 8}
        )
        run = train(config, digits, tmp_path / name)
        made[name] = run.summary["test"]["accuracy"], accuracy_under_attack(run, digits, 32.0)
    assert made["adversarial"][1] > made["supervised"][1] + 0.05
    assert made["adversarial"][0] > 0.8


def test_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["train", "--objective", "adversarial", "--epsilon", "8", "--model", "resnet_tiny", "--epochs", "1", "-o"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "r"])
    assert not ended.value.code
    run = Run(tmp_path / "r")
    assert (run.config.objective.name, run.config.objective.epsilon) == ("adversarial", 8.0)
    assert (tmp_path / "r" / "geometry.json").exists()
    with pytest.raises(SystemExit) as ended:
        main([*words, "s", "--minimizer", "aesam"])
    assert ended.value.code == 2
    assert "does not go with minimizer 'aesam'" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()
