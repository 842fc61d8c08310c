from __future__ import annotations

import pytest
import torch
from cases import TinyConvNet, images
from oracle import gradient, make, mean_loss
from torch import Tensor, nn

from steppe.errors import ConfigError, SteppeError
from steppe.geometry import CROSS_ENTROPY, measure_adaptive_sharpness, measure_sharpness
from steppe.minimizers import ASAM, SAM

CURVES = torch.tensor([4.0, 1.0, 0.25], dtype=torch.float64)


class Bowl(nn.Module):
    """Weights as logits: with a loss of ½ Σ cᵢ wᵢ² every ball has a known top."""

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(values, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight.expand(len(x), -1)


def quadratic(logits: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (CURVES * logits.square()).sum(1)


DATA = [(torch.zeros(4, 1, dtype=torch.float64), torch.arange(4) % 2)]


@pytest.mark.parametrize("scaling", ["none", "weights", "all", "layer"])
def test_first_order_on_a_quadratic(scaling):
    start = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    slope = CURVES * start
    eta = 0.0 if scaling == "none" else 0.1
    scale = {"none": torch.ones(3), "layer": (start.norm() + eta).expand(3)}.get(scaling, start.abs() + eta)
    step = 0.3 * scale.double() ** 2 * slope / (scale.double() * slope).norm()
    expected = step @ slope + 0.5 * (CURVES * step.square()).sum()
    found = measure_sharpness(Bowl(start.tolist()), DATA, rho=0.3, scaling=scaling, eta=eta, loss=quadratic)
    assert found["value"] == pytest.approx(expected.item(), rel=1e-12)
    assert found["loss"] == pytest.approx(quadratic(start[None], start)[0].item())
    assert found["settings"]["loss"] == "quadratic"


def test_several_steps_reach_the_top_of_the_ball():
    """From a point beside the valley's floor the first-order step misses most of the rise along the sharp direction."""
    start, rho = torch.tensor([0.01, 0.3, 0.3], dtype=torch.float64), 0.5
    model = Bowl(start.tolist())
    angles = torch.randn(200_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    around = start + rho * angles / angles.norm(dim=1, keepdim=True)
    top = (quadratic(around, around) - quadratic(start[None], start)).max().item()
    first = measure_sharpness(model, DATA, rho=rho, loss=quadratic)["value"]
    many = measure_sharpness(model, DATA, rho=rho, loss=quadratic, steps=50)["value"]
    assert first < 0.9 * many
    assert many == pytest.approx(top, rel=1e-3)


@pytest.mark.parametrize(("kind", "scaling"), [(SAM, "none"), (ASAM, "weights")])
def test_the_point_is_the_minimizers_own(kind, scaling):
    """The second pass of the minimizer happens where the figure is measured."""
    model, batches = make("transformer")
    model.eval()
    found = measure_sharpness(model, batches, rho=0.1, scaling=scaling)
    losses = []

    def closure() -> Tensor:
        loss = mean_loss(model, batches, CROSS_ENTROPY)
        losses.append(loss.item())
        loss.backward()
        return loss

    kind(torch.optim.SGD(model.parameters(), lr=0.0), rho=0.1, model=model).step(closure)
    assert found["loss"] == pytest.approx(losses[0], rel=1e-12)
    assert found["perturbed_loss"] == pytest.approx(losses[1], rel=1e-9)


def test_small_balls_give_the_gradients_length():
    model, batches = make("vit")
    model.eval()
    length = gradient(model, batches, CROSS_ENTROPY).norm().item()
    found = measure_sharpness(model, batches, rho=1e-5)
    assert found["value"] == pytest.approx(1e-5 * length, rel=1e-2)


def test_each_batch_by_itself_is_sharper_than_all_together():
    model, batches = make("transformer")
    together = measure_sharpness(model, batches, rho=0.05)
    apart = measure_sharpness(model, batches, rho=0.05, per_batch=True)
    alone = [measure_sharpness(model, [batch], rho=0.05) for batch in batches]
    sizes = [len(y) for _, y in batches]
    mean = sum(a["value"] * n for a, n in zip(alone, sizes, strict=True)) / sum(sizes)
    assert apart["value"] == pytest.approx(mean, rel=1e-9)
    assert apart["value"] > together["value"]
    assert together["stderr"] is None
    assert apart["stderr"] > 0
    assert apart["loss"] == pytest.approx(together["loss"])


def test_rescaling_moves_sam_and_not_asam():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    x = torch.randn(20, 4, dtype=torch.float64)
    batches = [(x, torch.arange(20) % 3)]
    radii = {"none": 0.1, "all": 0.1, "layer": 0.02}
    before = measure_adaptive_sharpness(model, batches, rho=radii, eta=0.0)
    with torch.no_grad():
        model[0].weight.mul_(5)
        model[0].bias.mul_(5)
        model[2].weight.div_(5)
    after = measure_adaptive_sharpness(model, batches, rho=radii, eta=0.0)
    assert list(after) == ["none", "all", "layer"]
    for preset in ("all", "layer"):
        assert after[preset]["value"] == pytest.approx(before[preset]["value"], rel=1e-9)
    assert after["none"]["value"] > 1.5 * before["none"]["value"]


def test_a_far_step_is_no_step_back():
    """Its square is beyond float32: once, it was cut back to nothing and the rise was 0."""
    model = Bowl([1.0, -2.0, 0.5]).float()
    data = [(torch.zeros(4, 1), torch.arange(4) % 2)]
    found = measure_sharpness(model, data, rho=1e25, loss=lambda logits, targets: logits.sum(1))
    assert found["value"] == pytest.approx(1e25 * 3**0.5, rel=1e-5)
    with pytest.raises(SteppeError, match="not finite within the ball"):
        measure_sharpness(model, data, rho=1e25, loss=lambda logits, targets: logits.square().sum(1))


def test_a_stationary_point_has_no_way_up():
    found = measure_sharpness(Bowl([0.0, 0.0, 0.0]), DATA, rho=0.3, loss=quadratic, steps=3)
    assert found["value"] == 0.0


def test_the_model_is_left_as_it_was_found():
    torch.manual_seed(0)
    model = TinyConvNet(dropout=0.5)
    model.conv.weight.requires_grad_(False)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    random = torch.get_rng_state()
    first = measure_sharpness(model, [images(12)], rho=0.5, steps=4, scaling="weights", batch_norm="batch")
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not model.conv.weight.requires_grad
    assert model.training
    assert torch.equal(torch.get_rng_state(), random)
    assert first == measure_sharpness(model, [images(12)], rho=0.5, steps=4, scaling="weights", batch_norm="batch")


def test_bad_input_gets_one_clear_message():
    model, batches = make("perceptron")
    with pytest.raises(ConfigError, match="unknown scaling"):
        measure_sharpness(model, batches, scaling="weight")
    with pytest.raises(ConfigError, match="rho"):
        measure_sharpness(model, batches, rho=0.0)
    x, y = batches[0]
    with pytest.raises(SteppeError, match="one class"):
        measure_sharpness(model, [(x, torch.zeros_like(y))])
    with torch.no_grad():
        model.out.bias[0] = float("inf")
    with pytest.raises(SteppeError, match="NaN or infinity"):
        measure_sharpness(model, batches)
