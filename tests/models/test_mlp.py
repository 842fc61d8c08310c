"""The perceptron: the network of source 004's toys, its names, and a training on each toy."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from steppe import data
from steppe.config import DataConfig, ModelConfig, RunConfig
from steppe.cost import count_flops, count_parameters
from steppe.data import TOYS
from steppe.errors import ConfigError
from steppe.models import activations, blocks, build, partitions
from steppe.train import train


def make(name: str, size: int = 1, channels: int = 2, classes: int = 2, **options) -> nn.Module:
    return build(ModelConfig(name=name, **options), image_size=size, channels=channels, classes=classes)


def test_the_network_of_the_seed():
    """Table II of source 004, layer by layer: the input layer has no activation behind it."""
    torch.manual_seed(0)
    linear = nn.Linear
    wanted = nn.Sequential(
        nn.Flatten(),
        linear(2, 10),
        *(linear(10, 10), nn.ReLU()),
        *(linear(10, 10), nn.ReLU()),
        *(linear(10, 10), nn.ReLU()),
        linear(10, 2),
    )
    model = make("mlp_10l_10_10_10")
    with torch.no_grad():
        for ours, theirs in zip(model.parameters(), wanted.parameters(), strict=True):
            ours.copy_(theirs)
    points = torch.randn(64, 2, 1, 1)
    assert torch.equal(model(points), wanted(points))
    assert count_parameters(model) == 30 + 3 * 110 + 22
    assert count_flops(model, (2, 1, 1)) == 2 * (20 + 3 * 100 + 20)


def test_without_a_stem_every_hidden_layer_has_its_relu():
    model = make("mlp_64_32", size=4, channels=3, classes=5)
    assert [p.shape[1] for p in model.parameters() if p.ndim == 2] == [48, 64, 32]
    x = torch.randn(8, 3, 4, 4)
    first, second = (layer.linear for layer in model.layers)
    assert torch.equal(model(x), model.head(second(first(x.flatten(1)).relu()).relu()))


def test_its_parts_have_names():
    model = make("mlp_10l_10_10_10")
    parts = blocks(model)
    assert list(parts) == ["stem", "block1", "block2", "block3", "head"]
    assert parts["block2"] == ["layers.1.linear.weight", "layers.1.linear.bias"]
    assert set(partitions(model)) == {"blocks"}
    assert activations(model) == {f"block{k + 1}": [f"layers.{k}.act"] for k in range(3)}


def test_rates_act_or_are_refused():
    model = make("mlp_64", dropout=0.5, block_dropout=0.25)
    assert (model.dropout.p, model.layers[0].dropout.p) == (0.5, 0.25)
    with pytest.raises(ConfigError, match="no residual branches"):
        make("mlp_64", drop_path=0.1)
    with pytest.raises(ConfigError, match="attention_dropout means nothing"):
        make("mlp_64", attention_dropout=0.1)


@pytest.mark.parametrize("name", ["mlp_", "mlp_0", "mlp_64_", "mlp_8l", "mlp_8_8l_8"])
def test_names_that_are_none(name):
    with pytest.raises(ConfigError, match="unknown model"):
        make(name)


@pytest.mark.parametrize("toy", TOYS)
def test_it_learns_every_toy(toy, tmp_path):
    """At variance 1 the classes are far apart: a line cannot part them, the perceptron does."""
    config = RunConfig.model_validate(
        {
            "data": {"name": toy},
            "model": {"name": "mlp_10l_10_10_10"},
            "minimizer": {"name": "asam", "rho": 0.5, "eta": 0.01},
            "optimizer": {"name": "adam", "lr": 0.01},
            "budget": {"epochs": 20},
        }
    )
    dataset = data.load(DataConfig(name=toy))
    assert len(dataset.train) + len(dataset.val) == len(dataset.test) == 2000
    run = train(config, dataset, tmp_path / "r")
    assert run.summary["test"]["accuracy"] > 0.95
