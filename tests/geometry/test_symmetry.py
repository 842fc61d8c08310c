from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from cases import Perceptron
from torch import nn

from steppe import data
from steppe.config import DataConfig, ModelConfig
from steppe.errors import MeasureError
from steppe.geometry import measure_symmetry
from steppe.geometry.measures import MEASURES
from steppe.geometry.rescaling import as_chain
from steppe.geometry.symmetry import (
    CASES,
    hidden_widths,
    rescale_before_batchnorm,
    rescale_neurons,
    rescale_query_key,
    seed_network,
    sharp_loss,
)
from steppe.measuring import Settings
from steppe.minimizers import ASAM, SAM
from steppe.models import build
from steppe.studies.measured import settings_of

X = torch.randn(60, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
Y = (X.prod(1) > 0).long()


def loss(answer):
    return F.cross_entropy(answer, Y)


def factors(network, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [0.5 + torch.rand(n, generator=generator, dtype=torch.float64) for n in hidden_widths(network)]


def sharpness(network, scaling, eta=0.0, rho=0.2):
    plain, sharp = sharp_loss(network, loss, X, rho=rho, scaling=scaling, eta=eta)
    return sharp - plain


@pytest.mark.parametrize("bias", [False, True])
def test_outputs_stay_and_sam_moves_and_the_right_preset_does_not(bias):
    network = seed_network(bias=bias)
    before = {scaling: sharpness(network, scaling) for scaling in ("none", "weights", "all")}
    outputs = network(X)
    rescale_neurons(network, [f**3 for f in factors(network)], biases=True)
    assert torch.allclose(network(X), outputs, rtol=1e-12, atol=1e-14)
    after = {scaling: sharpness(network, scaling) for scaling in ("none", "weights", "all")}
    assert abs(after["none"] / before["none"] - 1) > 0.1
    assert after["all"] == pytest.approx(before["all"], rel=1e-9)
    if bias:
        assert abs(after["weights"] / before["weights"] - 1) > 0.1
    else:
        assert after["weights"] == pytest.approx(before["weights"], rel=1e-9)


def test_weights_alone_are_a_symmetry_only_without_biases():
    with_biases, without = seed_network(bias=True), seed_network(bias=False)
    for network, stays in ((with_biases, False), (without, True)):
        outputs = network(X)
        rescale_neurons(network, factors(network), biases=False)
        assert torch.allclose(network(X), outputs, rtol=1e-12, atol=1e-14) == stays


def test_the_perturbed_loss_is_the_one_the_minimizers_see():
    for kind, scaling, options in ((SAM, "none", {}), (ASAM, "weights", {"eta": 0.01}), (ASAM, "all", {"eta": 0.0})):
        network = seed_network(bias=True)
        if kind is ASAM:
            options = {**options, "scaling": scaling}
        minimizer = kind(torch.optim.SGD(network.parameters(), lr=0.0), rho=0.2, model=network, **options)
        seen: list[float] = []

        def closure(network=network, minimizer=minimizer, seen=seen):
            minimizer.zero_grad()
            value = loss(network(X))
            value.backward()
            seen.append(value.item())
            return value

        minimizer.step(closure)
        assert sharp_loss(network, loss, X, rho=0.2, scaling=scaling, eta=options.get("eta", 0.0)) == pytest.approx(
            seen
        )


def test_sharp_loss_in_closed_form_and_without_a_trace():
    """On a linear function w·x the first-order worst point of SAM's ball adds exactly ρ‖x‖."""
    model = nn.Linear(3, 1, bias=False).double()
    x = torch.tensor([[1.0, 2.0, 2.0]], dtype=torch.float64)
    before = model.weight.detach().clone()
    plain, sharp = sharp_loss(model, torch.sum, x, rho=0.5, scaling="none")
    assert sharp - plain == pytest.approx(0.5 * 3)
    plain, sharp = sharp_loss(model, torch.sum, x, rho=0.5, scaling="weights")
    assert sharp - plain == pytest.approx(0.5 * (model.weight.abs() * x).norm().item())
    assert torch.equal(model.weight, before)
    assert model.weight.grad is None


def test_queries_and_keys():
    torch.manual_seed(0)
    model = build(ModelConfig(name="vit_tiny_p2"), image_size=8, channels=1, classes=3).double().eval()
    images = torch.randn(4, 1, 8, 8, dtype=torch.float64)
    outputs = model(images)
    for block in model.blocks:
        weight = block.attn.qkv.weight.detach().clone()
        rescale_query_key(block.attn, 0.5 + torch.rand(64, dtype=torch.float64))
        assert not torch.allclose(block.attn.qkv.weight[:128], weight[:128])
        assert torch.equal(block.attn.qkv.weight[128:], weight[128:])
    assert torch.allclose(model(images), outputs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("training", [False, True])
def test_what_feeds_batchnorm(training):
    torch.manual_seed(0)
    model = build(ModelConfig(name="resnet_tiny"), image_size=8, channels=3, classes=3).double()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-12
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.5, 2.0)
    images = torch.randn(6, 3, 8, 8, dtype=torch.float64)
    model.train(training)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    outputs = model(images)
    model.load_state_dict(state)
    convolutions = sum(isinstance(m, nn.Conv2d) for m in model.modules())
    count = rescale_before_batchnorm(model, images, lambda n: 0.5 + torch.rand(n))
    assert count == convolutions
    assert not torch.allclose(model.conv1.weight, state["conv1.weight"])
    assert torch.allclose(model(images), outputs, rtol=1e-8, atol=1e-10)
    assert model.training == training


def test_the_figures_data():
    rng = torch.get_rng_state()
    found = measure_symmetry(steps=12)
    assert torch.equal(torch.get_rng_state(), rng)
    assert measure_symmetry(steps=12) == found
    assert measure_symmetry(steps=12, seed=1)["weights"]["loss"] != found["weights"]["loss"]
    plain, biased = found["weights"], found["weights_and_biases"]
    assert len(plain["outputs"]) == len(plain["sharp_loss"]["sam"]) == 13
    for case in (plain, biased):
        assert case["largest_change"]["outputs"] < 1e-12
        assert case["largest_change"]["sam"] > 1e-4
        assert case["largest_change"]["asam_all"] < 1e-10
    assert plain["largest_change"]["asam_weights"] < 1e-10
    assert plain["largest_change"]["asam_weights_eta"] > 1e-8
    assert biased["largest_change"]["asam_weights"] > 1e-4
    assert found["weights_only_despite_biases"]["largest_change"]["outputs"] > 1e-2


@pytest.mark.parametrize("name", ["rho", "asam_rho", "eta"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_radii_that_are_no_numbers_are_refused(name, value):
    with pytest.raises(MeasureError, match="above 0"):
        measure_symmetry(steps=1, **{name: value})


def test_bad_input_is_told():
    network = seed_network(bias=True)
    with pytest.raises(MeasureError, match="one factor for each hidden neuron"):
        rescale_neurons(network, factors(network)[:-1], biases=True)
    with pytest.raises(MeasureError, match="positive"):
        rescale_neurons(network, [-f for f in factors(network)], biases=True)
    with pytest.raises(MeasureError, match="chains"):
        hidden_widths(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)))
    with pytest.raises(MeasureError, match="no joint layer"):
        rescale_query_key(nn.Linear(2, 2), torch.ones(2))
    with pytest.raises(MeasureError, match="feeds a BatchNorm"):
        rescale_before_batchnorm(Perceptron(), torch.ones(2, 4), torch.ones)


def test_a_perceptron_of_ours_is_followed_through_rescalings():
    """The measure of a run's own network: outputs stay, SAM's loss moves, the preset that covers the biases holds."""
    dataset = data.load(DataConfig(name="toy_rings", variance=1))
    torch.manual_seed(0)
    model = build(ModelConfig(name="mlp_10l_10_10_10"), image_size=1, channels=2, classes=2).eval()
    before = [p.clone() for p in model.parameters()]
    asked = settings_of(MEASURES["rescaling"], {"steps": 8, "examples": 64})
    found = MEASURES["rescaling"].function(model, dataset, Settings(asked))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    plain, both, wrong = (found[case]["largest_change"] for case in CASES)
    assert len(found["weights"]["loss"]) == 9
    assert max(plain["outputs"], plain["asam_weights"], both["outputs"], both["asam_all"]) < 1e-10
    assert min(plain["sam"], both["sam"], both["asam_weights"], wrong["outputs"]) > 1e-3


def test_what_is_no_chain_is_refused():
    model = build(ModelConfig(name="vit_tiny_p2"), image_size=8, channels=1, classes=10).eval()
    with pytest.raises(MeasureError, match="no chain"):
        as_chain(model, torch.randn(2, 1, 8, 8, dtype=torch.float64), bias=True)
    resnet = build(ModelConfig(name="resnet_tiny"), image_size=8, channels=1, classes=10).eval()
    with pytest.raises(MeasureError, match="no chain"):
        as_chain(resnet, torch.randn(2, 1, 8, 8, dtype=torch.float64), bias=True)
