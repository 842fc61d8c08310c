"""Which parameters are scaled, and what the scaling is good for."""

import pytest
import torch
from cases import Perceptron, TinyConvNet, TinyTransformer, images
from torch import nn
from torch.nn.functional import cross_entropy

from steppe.minimizers import ASAM, SAM, create


def names_of(minimizer, model, attribute):
    names = [name for name, _ in model.named_parameters()]
    return {names[i] for block in minimizer.blocks if getattr(block, attribute) for i in block.members}


def test_the_authors_preset_goes_by_names():
    model = TinyTransformer()
    minimizer = ASAM(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    expected = {name for name, _ in model.named_parameters() if "weight" in name}
    assert names_of(minimizer, model, "scaled") == expected
    assert {"norm.weight", "attention.in_proj_weight"} <= expected
    assert not {"cls_token", "pos_embed", "norm.bias", "head.bias"} & expected


def test_normalisation_layers_are_found_by_what_they_are():
    for model, expected in (
        (TinyConvNet(), {"norm.weight", "norm.bias"}),
        (TinyTransformer(), {"norm.weight", "norm.bias"}),
        (nn.Sequential(nn.Linear(2, 2), nn.RMSNorm(2), nn.GroupNorm(1, 2)), {"1.weight", "2.weight", "2.bias"}),
    ):
        minimizer = create("samon", torch.optim.SGD(model.parameters(), lr=0.1), model)
        assert names_of(minimizer, model, "perturbed") == expected


def test_only_the_filtered_parameters_move():
    model = TinyConvNet()
    x, y = images()
    minimizer = create("samon", torch.optim.SGD(model.parameters(), lr=0.1), model, rho=0.3)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    cross_entropy(model(x), y).backward()
    minimizer.ascend()
    moved = {name: p.detach() - before[name] for name, p in model.named_parameters()}
    assert {name for name, d in moved.items() if d.any()} == {"norm.weight", "norm.bias"}
    assert float(torch.cat([d.flatten() for d in moved.values()]).norm()) == pytest.approx(0.3, rel=1e-5)


def rescaled_pair(factor=7.0):
    """Two ReLU networks that are the same function with different weights and biases."""
    plain = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    twin = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    twin.load_state_dict(plain.state_dict())
    with torch.no_grad():
        twin[0].weight *= factor
        twin[0].bias *= factor
        twin[2].weight /= factor
    return plain, twin


@pytest.mark.parametrize(("scaling", "invariant"), [("all", True), ("weights", False), ("none", False)])
def test_invariance_to_rescaling_of_weights_and_biases(scaling, invariant):
    x = torch.randn(16, 4, dtype=torch.float64)
    y = torch.randint(3, (16,))
    outputs = []
    for model in rescaled_pair():
        minimizer = ASAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.5, eta=0.0, scaling=scaling, model=model)
        cross_entropy(model(x), y).backward()
        minimizer.ascend()
        outputs.append(model(x).detach())
    assert torch.allclose(*outputs, rtol=1e-9, atol=1e-9) == invariant


def test_mixed_dtypes_and_channels_last_share_one_norm():
    model = TinyConvNet().to(memory_format=torch.channels_last)
    model.head.to(torch.bfloat16)
    minimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.5, model=model)
    before = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    minimizer.ascend()
    moved = torch.cat([(p.detach() - b).flatten().double() for p, b in zip(model.parameters(), before, strict=True)])
    assert float(moved.norm()) == pytest.approx(0.5, rel=1e-2)
    assert model.conv.weight.is_contiguous(memory_format=torch.channels_last)


def test_frozen_parameters_stay():
    model = Perceptron()
    model.hidden.requires_grad_(False)
    frozen = model.hidden.weight.clone()
    minimizer = ASAM(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    x = torch.randn(5, 4)

    def closure():
        assert torch.equal(model.hidden.weight, frozen)
        loss = model(x).square().mean()
        loss.backward()
        return loss

    minimizer.step(closure)
    assert torch.equal(model.hidden.weight, frozen)
