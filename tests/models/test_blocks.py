"""Names of the parts: each way of dividing covers every parameter once, in every family."""

from __future__ import annotations

import math

import pytest
import torch
from timm.optim import param_groups_layer_decay

from steppe.config import ModelConfig
from steppe.errors import ConfigError
from steppe.models import activations, blocks, build, count_depths, partitions

CASES = {
    "resnet_tiny": (3, ("stages", "blocks")),
    "vit_tiny_p2": (3, ("roles", "blocks")),
    "swin_tiny_p2": (4, ("roles", "stages", "blocks")),
    "mixer_tiny_p2": (4, ("roles", "blocks")),
    "wrn_16_1": (6, ("stages", "blocks")),
    "resnet50": (16, ("stages", "blocks")),
    "vit_2l_2h_32_free": (2, ("roles", "blocks")),
    "vit_2l_2h_32_conv": (2, ("roles", "blocks")),
    "vit_2l_2h_32_mean": (2, ("roles", "blocks")),
    "vit_2l_2h_32_qknorm": (2, ("roles", "blocks")),
    "cct_2_3x2": (2, ("roles", "blocks")),
    "swin_t_p2": (12, ("roles", "stages", "blocks")),
    "mixer_s_p4": (8, ("roles", "blocks")),
    "r50_vit_s_p16": (12, ("roles", "blocks")),
    "vit_tiny_patch16_224": (12, ("roles", "blocks")),
    "deit_tiny_distilled_patch16_224": (12, ("roles", "blocks")),
    "swinv2_tiny_window8_256": (12, ("roles", "stages", "blocks")),
    "mixer_s16_224": (8, ("roles", "blocks")),
    "resnetv2_50": (16, ("stages", "blocks")),
    "efficientnet_b0": (16, ("stages", "blocks")),
    "tf_efficientnet_lite0": (16, ("stages", "blocks")),
    "mobilenetv3_small_100": (12, ("stages", "blocks")),
    "tiny_vit_5m_224": (12, ("roles", "stages", "blocks")),
}


def size_for(name: str) -> int:
    return 256 if "256" in name else 224 if "224" in name else 32


def make(name: str):
    with torch.device("meta"):
        return build(ModelConfig(name=name), image_size=size_for(name), channels=3, classes=10)


@pytest.mark.parametrize("name", CASES)
def test_each_way_covers_every_parameter_once(name):
    model = make(name)
    depth, ways = CASES[name]
    names = sorted(key for key, _ in model.named_parameters())
    found = partitions(model)
    assert tuple(found) == ways
    for parts in found.values():
        assert sorted(key for keys in parts.values() for key in keys) == names
    assert [part for part in found["blocks"] if part.startswith("block")] == [f"block{i + 1}" for i in range(depth)]


@pytest.mark.parametrize("name", CASES)
def test_parts_of_one_name_are_one_part(name):
    model = make(name)
    merged = blocks(model)
    for parts in partitions(model).values():
        for part, keys in parts.items():
            assert sorted(merged[part]) == sorted(keys)
    assert "head" in merged
    own = {id(p) for p in torch.nn.ModuleList(_heads(model)).parameters()}
    assert sorted(merged["head"]) == sorted(key for key, p in model.named_parameters() if id(p) in own)


def _heads(model):
    found = model.get_classifier()
    return found if isinstance(found, tuple) else (found,)


def test_a_block_is_its_attention_and_its_mlp():
    parts = blocks(make("vit_tiny_p2"))
    assert parts["norm"] == ["norm.weight", "norm.bias"]
    assert set(parts["attention"]) | set(parts["mlp"]) == {k for i in (1, 2, 3) for k in parts[f"block{i}"]}
    assert "blocks.0.norm1.weight" in parts["attention"]
    assert {"cls_token", "pos_embed"} <= set(parts["embedding"])


def test_merging_belongs_to_the_block_after_it():
    parts = blocks(make("swin_tiny_p2"))
    assert "layers.1.downsample.reduction.weight" in parts["block3"]
    assert "layers.1.downsample.reduction.weight" in parts["stage2"]


@pytest.mark.parametrize("name", CASES)
def test_activations_are_modules_that_run(name):
    model = make(name).eval()
    named = activations(model)
    heard = set()
    for key in (key for keys in named.values() for key in keys):
        model.get_submodule(key).register_forward_hook(lambda _module, _inputs, _out, key=key: heard.add(key))
    model(torch.empty(1, 3, size_for(name), size_for(name), device="meta"))
    assert heard == {key for keys in named.values() for key in keys}
    assert {f"block{i + 1}" for i in range(CASES[name][0])} <= set(named)


def test_activations_of_the_tiny_ones():
    assert activations(make("resnet_tiny"))["block1"] == ["stages.0.0.act1", "stages.0.0.act2"]
    assert activations(make("vit_tiny_p2")) == {f"block{i + 1}": [f"blocks.{i}.mlp.act"] for i in range(3)}
    assert activations(make("mixer_tiny_p2"))["block2"] == ["blocks.1.mlp_tokens.act", "blocks.1.mlp_channels.act"]
    assert activations(make("wrn_10_1"))["norm"] == ["act"]


def test_a_family_without_names_is_refused():
    with pytest.raises(ConfigError, match="parts of a ConvNeXt have no names") as error:
        blocks(make("convnext_atto"))
    assert "EfficientNet" in str(error.value)


@pytest.mark.parametrize("name", [name for name in CASES if hasattr(make(name), "group_matcher")])
def test_depths_are_those_of_timm(name):
    """But for what timm counts into the head of some families: the norm, or neck, that we give a name of its own."""
    model = make(name)
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    layers = param_groups_layer_decay(model, 0.0, layer_decay=0.5)
    theirs = {names[id(p)]: round(-math.log2(group["lr_scale"])) for group in layers for p in group["params"]}
    theirs |= {key: 1 for key in theirs if name == "tiny_vit_5m_224" and key.startswith("head.norm.")}
    theirs |= {key: 1 for key in theirs if name == "mobilenetv3_small_100" and key.startswith("conv_head.")}
    theirs |= {key: 1 for key in theirs if key.startswith(("fc_norm.", "attn_pool."))}
    assert count_depths(model) == theirs


@pytest.mark.parametrize("name", ["resnet_tiny", "wrn_16_1"])
def test_depths_of_our_own_networks_count_their_blocks(name):
    model = make(name)
    depths, blocks = count_depths(model), CASES[name][0]
    assert depths["conv1.weight"] == blocks + 1
    assert depths["head.weight"] == 0
    assert depths["stages.0.0.conv1.weight"] == blocks
    assert sorted(set(depths.values())) == list(range(blocks + 2))
