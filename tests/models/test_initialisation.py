from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from steppe.config import ModelConfig, RunConfig
from steppe.errors import ConfigError
from steppe.models import build


def make(name: str, **keys):
    torch.manual_seed(0)
    return build(ModelConfig(name=name, **keys), image_size=32, channels=3, classes=10)


def deviation(model, name: str) -> float:
    return model.get_parameter(name).std().item()


@pytest.mark.parametrize("name", ["vit_2l_2h_64", "vit_2l_2h_64_conv", "cct_2_3x1", "r50_vit_1l_2h_32"])
def test_pos_embed_std_is_the_deviation_of_the_positions_alone(name):
    plain, loud = make(name), make(name, pos_embed_std=1.5)
    assert deviation(loud, "pos_embed") == pytest.approx(1.5, rel=0.05)
    assert deviation(plain, "pos_embed") < 0.25
    for key, value in plain.named_parameters():
        assert key == "pos_embed" or torch.equal(value, loud.get_parameter(key))


@pytest.mark.parametrize(
    ("scheme", "std"), [("jax", (6 / (128 + 384) / 3) ** 0.5), ("timm", 0.02), ("torch", (1 / 128 / 3) ** 0.5)]
)
@pytest.mark.parametrize("name", ["vit_2l_2h_128", "cct_2_3x1"])
def test_init_draws_dense_layers_by_the_scheme(name, scheme, std):
    model = make(name, init=scheme)
    assert deviation(model, "blocks.1.attn.qkv.weight") == pytest.approx(std, rel=0.05)
    assert (deviation(model, "head.weight") == 0) == (scheme == "jax")


def test_init_jax_is_the_default_of_a_vit():
    plain, named = make("vit_2l_2h_64"), make("vit_2l_2h_64", init="jax")
    for key, value in plain.named_parameters():
        if value.ndim > 1 and value.std() > 0:
            assert deviation(named, key) == pytest.approx(value.std().item(), rel=0.1)


@pytest.mark.parametrize("key", [{"init": "torch"}, {"pos_embed_std": 1.0}])
def test_initialisation_of_a_convolutional_network_is_refused(key):
    with pytest.raises(ConfigError, match="means nothing to 'resnet_tiny'"):
        make("resnet_tiny", **key)


def test_fresh_weights_beside_trained_ones_are_refused():
    with pytest.raises(ValidationError, match="trained weights are given"):
        ModelConfig(name="vit_tiny_p2", weights="timm", pos_embed_std=1.0)


def test_hash_counts_initial_weights_only_where_they_are_given():
    plain = RunConfig()
    loud = RunConfig(model=ModelConfig(pos_embed_std=1.0))
    assert loud.hash != plain.hash
    assert RunConfig(model=ModelConfig(init=None, pos_embed_std=None)).hash == plain.hash
