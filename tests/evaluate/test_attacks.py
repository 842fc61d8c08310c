from __future__ import annotations

import pytest
import torch
from torch import nn

from steppe import data
from steppe.config import DataConfig
from steppe.data import in_order
from steppe.errors import MeasureError
from steppe.evaluate import Pixels, fgsm, measure_attacks, pgd
from steppe.evaluate.attacks import margin, random_starts

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def digits():
    return data.load(DataConfig())


@pytest.fixture(scope="module")
def trained(digits):
    """A small network that has learned the digits."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(12):
        for x, y in in_order(digits.train, digits, batch_size=128, device=CPU):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    optimizer.zero_grad()
    return model.eval()


@pytest.fixture(scope="module")
def batch(digits):
    return next(in_order(digits.test, digits, batch_size=100, device=CPU))


def test_agrees_with_torchattacks(trained, digits, batch):
    torchattacks = pytest.importorskip(
        "torchattacks", reason="the attacks were not compared: `pip install --no-deps torchattacks requests`"
    )
    model = Pixels(trained, digits, CPU)
    pixels, labels = model.pixels(batch[0]), batch[1]
    for epsilon in (2 / 255, 20 / 255):
        theirs = torchattacks.FGSM(model, eps=epsilon)(pixels, labels)
        assert torch.equal(fgsm(model, pixels, labels, epsilon=epsilon), theirs)
        theirs = torchattacks.PGD(model, eps=epsilon, alpha=epsilon / 8, steps=10, random_start=False)(pixels, labels)
        ours = pgd(model, pixels, labels, epsilon=epsilon, step=epsilon / 8, steps=10)
        assert torch.allclose(ours, theirs, atol=1e-7)
    torch.manual_seed(0)
    theirs = torchattacks.PGD(model, eps=20 / 255, alpha=2.5 / 255, steps=10)(pixels, labels)
    starts = random_starts(pixels, first=0, count=1)
    ours = pgd(model, pixels, labels, epsilon=20 / 255, step=2.5 / 255, steps=10, starts=starts)
    hold = [(model(x).argmax(1) == labels).float().mean().item() for x in (pixels, ours, theirs)]
    assert hold[0] > 0.9
    assert abs(hold[1] - hold[2]) <= 0.04
    assert hold[1] < hold[0] - 0.1


def test_a_linear_model_falls_just_where_the_closed_form_says():
    """The margin of a linear two-class model shrinks by exactly ε‖w₁ - w₀‖₁, away from the edges of the range."""
    torch.manual_seed(0)
    linear = nn.Linear(12, 2).double()
    model = nn.Sequential(nn.Flatten(), linear)
    pixels = 0.3 + 0.4 * torch.rand(50, 3, 2, 2, dtype=torch.float64)
    labels = model(pixels).argmax(1)
    difference = linear.weight[1] - linear.weight[0]
    for epsilon in (0.01, 0.1):
        expected = margin(model(pixels), labels) + epsilon * difference.abs().sum()
        for attacked in (
            fgsm(model, pixels, labels, epsilon=epsilon),
            pgd(model, pixels, labels, epsilon=epsilon, step=epsilon / 3, steps=4),
            pgd(
                model,
                pixels,
                labels,
                epsilon=epsilon,
                step=epsilon / 3,
                steps=7,
                starts=random_starts(pixels, first=0, count=2),
                objective=margin,
            ),
        ):
            assert torch.allclose(margin(model(attacked), labels), expected)
            assert (attacked - pixels).abs().max() <= epsilon * (1 + 1e-12)


def test_stays_in_the_ball_and_in_the_range_and_restarts_only_help(trained, digits, batch):
    model = Pixels(trained, digits, CPU)
    pixels, labels = model.pixels(batch[0]), batch[1]
    assert pixels.min() == 0  # the digits' background lies on the edge of the range
    kept = []
    for count in (1, 4):
        starts = random_starts(pixels, first=0, count=count)
        attacked = pgd(model, pixels, labels, epsilon=0.06, step=0.01, steps=5, starts=starts)
        assert attacked.min() >= 0
        assert attacked.max() <= 1
        assert (attacked - pixels).abs().max() <= 0.06 + 1e-6
        kept.append(model(attacked).argmax(1) == labels)
    assert not (kept[1] & ~kept[0]).any(), "an image that fell to one start falls to four that include it"


def test_starts_belong_to_images_not_to_batches(digits, batch):
    pixels = Pixels(nn.Flatten(), digits, CPU).pixels(batch[0])
    whole = next(random_starts(pixels, first=0, count=1))
    part = next(random_starts(pixels[30:40], first=30, count=1))
    assert torch.equal(whole[30:40], part)
    assert whole.min() < -0.99
    assert whole.max() > 0.99


def test_measuring_is_the_same_in_chunks_and_leaves_the_model_alone(trained, digits):
    split = digits.test.take(torch.arange(60))
    trained.train()
    before = [p.clone() for p in trained.parameters()]
    found = [
        measure_attacks(
            trained,
            in_order(split, digits, batch_size=size, device=CPU),
            digits,
            device=CPU,
            epsilon=0.08,
            step=0.01,
            restarts=2,
            check=20,
        )
        for size in (60, 7)
    ]
    assert found[0] == found[1]
    assert found[0]["examples"] == 60
    assert found[0]["check"]["examples"] == 20
    assert found[0]["pgd"] < found[0]["clean"]
    assert trained.training
    assert all(p.grad is None and torch.equal(p, old) for p, old in zip(trained.parameters(), before, strict=True))
    trained.eval()


def test_masked_gradients_are_found(trained, digits):
    """Logits a thousand times as large saturate cross-entropy: its gradient is exactly zero, so PGD goes nowhere."""

    class Loud(nn.Module):
        def forward(self, x):
            return 1e4 * trained(x)

    split = digits.test.take(torch.arange(100))
    options = {"device": CPU, "epsilon": 0.1, "step": 0.02, "check": 100}
    batches = list(in_order(split, digits, batch_size=100, device=CPU))
    masked = measure_attacks(Loud(), batches, digits, **options)
    honest = measure_attacks(trained, batches, digits, **options)
    assert masked["pgd"] > honest["pgd"] + 0.1
    assert "gradients are masked" in masked["check"]["warning"]
    assert "margin" in masked["check"]["warning"]
    assert masked["check"]["zero_gradients"] > 0.5
    assert honest["check"]["warning"] is None
    assert honest["check"]["zero_gradients"] == 0
    told = measure_attacks(Loud(), batches, digits, surrogate=trained, **options)["check"]
    assert told["transfer"] < told["pgd"] - 0.1
    assert "transfer" in told["warning"]


def test_what_cannot_be_attacked_is_refused(trained, digits, batch):
    with pytest.raises(MeasureError, match="at least one step"):
        measure_attacks(trained, [batch], digits, device=CPU, steps=0)
    toy = data.load(DataConfig(name="toy_moons"))
    with pytest.raises(MeasureError, match="points, not pictures"):
        measure_attacks(trained, [], toy, device=CPU)
    with pytest.raises(MeasureError, match="no images"):
        measure_attacks(trained, [], digits, device=CPU)
