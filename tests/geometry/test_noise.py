from __future__ import annotations

import pytest
import torch

from steppe.errors import SteppeError
from steppe.geometry import ClassLoss, measure_noise_loss
from steppe.geometry.how import spread_over_subsets


def linear(weight: float) -> torch.nn.Module:
    model = torch.nn.Linear(1, 2, bias=False)
    torch.nn.init.constant_(model.weight, weight)
    return model.double()


def test_agrees_with_the_closed_form():
    """Two logits ±: the loss of x = 1 is softplus of a difference drawn from N(0, 2σ²)."""
    batches = [(torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.long))]
    sigma = 0.3
    found = measure_noise_loss(linear(0.0), batches, sigma=sigma, draws=4000)
    nodes = torch.distributions.Normal(0, sigma * 2**0.5)
    grid = torch.linspace(-4, 4, 20001, dtype=torch.float64)
    exact = (nodes.log_prob(grid).exp() * torch.nn.functional.softplus(grid)).sum() * (grid[1] - grid[0])
    assert found["clean"] == pytest.approx(0.6931471805599453, abs=1e-6)
    assert abs(found["mean"] - exact.item()) < 4 * found["stderr"]
    assert 0 < found["stderr"] < 0.005


def test_leaves_the_model_as_it_was_and_is_deterministic():
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)
    )
    model.train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.get_rng_state()
    batches = [(torch.randn(6, 1, 2, 2, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3)]
    first = measure_noise_loss(model, batches, sigma=0.1, draws=5)
    assert measure_noise_loss(model, batches, sigma=0.1, draws=5) == first
    assert measure_noise_loss(model, batches, sigma=0.1, draws=5, seed=1) != first
    assert model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert first["examples"] == 6


def test_a_sharper_model_loses_more():
    batches = [(torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.long))]
    losses = [measure_noise_loss(linear(0.0), batches, sigma=s, draws=200)["mean"] for s in (0.01, 0.5, 2.0)]
    assert losses == sorted(losses)


def test_on_the_loss_asked_for_and_over_subsets():
    model = torch.nn.Linear(3, 2)
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    batches = [(x[:5], torch.arange(5) % 2), (x[5:], torch.arange(7) % 2)]
    loss = ClassLoss(sigmoid=True)
    with torch.no_grad():
        expected = torch.cat([loss(model(images), labels) for images, labels in batches])
    found = measure_noise_loss(model, batches, sigma=0.1, draws=3, loss=loss)
    assert found["clean"] == pytest.approx(expected.mean().item(), rel=1e-6)
    spread = spread_over_subsets(lambda part: measure_noise_loss(model, part, draws=3, loss=loss)["clean"], batches, 3)
    assert spread["values"] == pytest.approx([expected[i::3].mean().item() for i in range(3)], rel=1e-6)
    assert spread["stderr"] > 0


def test_weights_that_are_not_finite_are_refused():
    with pytest.raises(SteppeError, match="NaN"):
        measure_noise_loss(linear(float("nan")), [(torch.ones(1, 1).double(), torch.zeros(1, dtype=torch.long))])
