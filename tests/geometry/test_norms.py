from __future__ import annotations

import pytest
import torch
from cases import Perceptron, TinyConvNet, images
from oracle import gradient, make, positions
from timm.models.mlp_mixer import MlpMixer
from torch import Tensor, nn

from steppe.errors import ConfigError, SteppeError
from steppe.geometry import (
    CROSS_ENTROPY,
    measure_activations,
    measure_gradient_norms,
    measure_missing_rate,
    weight_norms,
)
from steppe.models import activations, blocks


def test_weight_norms_add_up():
    model, _ = make("vit")
    roles = ("embedding", "attention", "mlp", "norm", "head")
    found = weight_norms(model, ("whole", *roles))
    exact = torch.cat([p.detach().flatten() for p in model.parameters()]).norm().item()
    assert found["whole"] == pytest.approx(exact)
    assert sum(found[role] ** 2 for role in roles) == pytest.approx(exact**2)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    assert weight_norms(model)["whole"] == pytest.approx(exact)
    with pytest.raises(ConfigError, match="unknown part"):
        weight_norms(model, ("block7",))


def test_gradient_norms():
    model, batches = make("vit")
    found = measure_gradient_norms(model, batches, parts=("whole", "block1"), chunk=4)
    exact = gradient(model.eval(), batches, CROSS_ENTROPY)
    assert found["parts"]["whole"] == pytest.approx(exact.norm().item())
    here = positions(model, blocks(model)["block1"])
    assert found["parts"]["block1"] == pytest.approx(exact[here].norm().item())


def test_active_neurons_and_norms_of_known_activations():
    model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU())
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0], [0, 1], [-1, 0]]))
    x = torch.tensor([[3.0, 4.0], [-1.0, 0.0], [0.0, 0.0]])
    found = measure_activations(
        model, [(x[:2], torch.tensor([0, 0])), (x[2:], torch.tensor([0]))], modules={"a": ["1"]}
    )
    assert found["blocks"]["a"] == {  # ReLU leaves (3, 4, 0), (0, 0, 1), (0, 0, 0)
        "active": pytest.approx(3 / 9),
        "norm": pytest.approx((5 + 1 + 0) / 3),
        "rms": pytest.approx((26 / 9) ** 0.5),
        "neurons": 3,
    }


@pytest.mark.parametrize("kind", ["vit", "mixer", "resnet"])
def test_activations_of_every_block(kind):
    if kind == "mixer":
        torch.manual_seed(0)
        model, batches = MlpMixer(img_size=4, patch_size=2, num_blocks=2, embed_dim=8, num_classes=3), [images(6)]
    else:
        model, batches = make(kind)
    model.train()
    outputs: dict[str, list[Tensor]] = {}
    named = activations(model)
    handles = [
        model.get_submodule(name).register_forward_hook(
            lambda module, inputs, output, block=block: outputs.setdefault(block, []).append(output.flatten(1))
        )
        for block, names in named.items()
        for name in names
    ]
    model.eval()
    x = torch.cat([x for x, _ in batches])
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    model.train()
    found = measure_activations(model, batches)
    assert list(found["blocks"]) == list(named)
    assert "block1" in found["blocks"]
    for block, parts in outputs.items():
        values = torch.cat(parts, 1)
        assert found["blocks"][block]["active"] == pytest.approx((values > 0).double().mean().item())
        assert found["blocks"][block]["norm"] == pytest.approx(values.norm(dim=1).mean().item(), rel=1e-6)
        assert found["blocks"][block]["neurons"] == values.shape[1]
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


class Nearest(nn.Module):
    """The class of the nearest of three points on a line; what lies between 0 and 2 is taken for 1."""

    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Parameter(torch.tensor([0.0, 1.0, 2.0]))

    def forward(self, x: Tensor) -> Tensor:
        return -(x - self.points).abs()


def test_missing_rate():
    x = torch.tensor([[0.0], [2.0], [0.0], [2.0]])
    found = measure_missing_rate(Nearest(), [(x[:3], torch.tensor([0, 2, 0])), (x[3:], torch.tensor([2]))])
    order = torch.randperm(4, generator=torch.Generator().manual_seed(0))
    crossed = (x[order] != x[order.roll(1)]).float().mean().item()
    assert crossed > 0
    assert found["rate"] == crossed
    assert found["pairs"] == 4
    assert 0 <= found["low"] < crossed < found["high"] <= 1
    at_the_ends = measure_missing_rate(Nearest(), [(x, torch.tensor([0, 2, 0, 2]))], weight=1.0)
    assert at_the_ends["rate"] == 0.0


def test_missing_rate_of_none_has_an_interval():
    x = torch.tensor([[0.0], [2.0]]).repeat(20, 1)
    found = measure_missing_rate(Nearest(), [(x, torch.tensor([0, 2]).repeat(20))], weight=1.0)
    assert (found["rate"], found["low"], found["pairs"]) == (0.0, 0.0, 40)
    assert found["high"] == pytest.approx(0.0876, abs=1e-4)


def test_the_model_is_left_as_it_was_found():
    torch.manual_seed(0)
    model = TinyConvNet(dropout=0.5)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    random = torch.get_rng_state()
    batches = [images(12)]
    measure_missing_rate(model, batches)
    measure_gradient_norms(model, batches)
    measure_activations(model, batches, modules={"head": ["dropout"]})
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), random)


def test_bad_input_gets_one_clear_message():
    model, (x, y) = Perceptron(), (torch.randn(5, 4), torch.zeros(5, dtype=torch.long))
    with pytest.raises(SteppeError, match="no activation functions that are modules"):
        measure_activations(model, [(x, y)])
    with pytest.raises(SteppeError, match="one class"):
        measure_missing_rate(model, [(x, y)])
    with torch.no_grad():
        model.out.bias[0] = float("nan")
    for measure in (measure_missing_rate, measure_gradient_norms):
        with pytest.raises(SteppeError, match="NaN"):
            measure(model, [(x, torch.arange(5) % 2)])
    with pytest.raises(SteppeError, match="NaN"):
        weight_norms(model)
