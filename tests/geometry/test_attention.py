from __future__ import annotations

import pytest
import timm
import torch

from steppe.config import ModelConfig
from steppe.errors import MeasureError
from steppe.geometry import attention_maps, attention_weights
from steppe.geometry.attention import enlarge, evenness, roll_out
from steppe.models import build


def vit(name: str = "vit_tiny_p2", size: int = 8):
    torch.manual_seed(0)
    return build(ModelConfig(name=name), image_size=size, channels=3, classes=4)


IMAGES = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def by_hand(model, images) -> list[torch.Tensor]:
    """The matrices of a ViT from its own layers: softmax(q kᵀ / √d) of each block's input."""
    found = []
    model.eval()
    with torch.no_grad():
        x = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(images))))
        for block in model.blocks:
            layer = block.attn
            qkv = layer.qkv(block.norm1(x))
            q, k, _ = qkv.reshape(len(x), x.shape[1], 3, layer.num_heads, -1).permute(2, 0, 3, 1, 4)
            found.append((q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1))
            x = block(x)
    return found


def test_equals_a_computation_by_hand_and_rows_sum_to_one():
    model = vit().train()
    found = attention_weights(model, IMAGES)
    assert model.training
    assert len(found) == 3
    for ours, plain in zip(found, by_hand(model, IMAGES), strict=True):
        assert ours.shape == (3, 4, 17, 17)
        assert torch.allclose(ours, plain, atol=1e-6)
        assert torch.allclose(ours.sum(-1), torch.ones(3, 4, 17), atol=1e-5)


def test_the_map_is_the_class_tokens_row_and_rollout_its_product():
    model = vit()
    matrices = by_hand(model, IMAGES)
    expected = matrices[-1].mean(1)[:, 0, 1:].view(3, 4, 4)
    assert torch.allclose(attention_maps(model, IMAGES), expected, atol=1e-6)
    assert torch.allclose(
        attention_maps(model, IMAGES, layer=0), matrices[0].mean(1)[:, 0, 1:].view(3, 4, 4), atol=1e-6
    )
    identity = torch.eye(17)
    rolled = identity.repeat(3, 1, 1)
    for matrix in matrices:
        rolled = torch.bmm(0.5 * matrix.mean(1) + 0.5 * identity, rolled)
    assert torch.allclose(attention_maps(model, IMAGES, rollout=True), rolled[:, 0, 1:].view(3, 4, 4), atol=1e-6)
    assert torch.allclose(roll_out(matrices).sum(-1), torch.ones(3, 17), atol=1e-5)


def test_leaves_the_model_as_it_was():
    model = vit().train()
    fused = [block.attn.fused_attn for block in model.blocks]
    model.blocks[1].attn.fused_attn = not fused[1]
    state = torch.get_rng_state()
    before = model(IMAGES)
    attention_maps(model, IMAGES)
    assert [block.attn.fused_attn for block in model.blocks] == [fused[0], not fused[1], fused[2]]
    assert torch.equal(model(IMAGES), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(block.attn.attn_drop._forward_pre_hooks for block in model.blocks)
    with pytest.raises(RuntimeError):
        attention_maps(model, torch.randn(1, 5, 8, 8))
    assert [block.attn.fused_attn for block in model.blocks] == [fused[0], not fused[1], fused[2]]
    assert not any(block.attn.attn_drop._forward_pre_hooks for block in model.blocks)


def test_a_mean_pooled_model_averages_over_the_patches():
    options = {"img_size": 8, "patch_size": 2, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", **options, global_pool="avg", class_token=False)
    expected = by_hand(model, IMAGES)[-1].mean((1, 2)).view(3, 4, 4)
    assert torch.allclose(attention_maps(model, IMAGES), expected, atol=1e-6)
    model = timm.create_model("vit_tiny_patch16_224", **options, global_pool="avg", class_token=True)
    expected = by_hand(model, IMAGES)[-1].mean(1)[:, 1:, 1:].mean(1).view(3, 4, 4)
    assert torch.allclose(attention_maps(model, IMAGES), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "grid"),
    [("vit_tiny_patch16_224", 2), ("deit_tiny_distilled_patch16_224", 2), ("vit_small_r26_s32_224", 1)],
)
def test_timm_models_and_prefix_tokens(name, grid):
    model = timm.create_model(name, img_size=32, num_classes=3, depth=2)
    maps = attention_maps(model, torch.randn(2, 3, 32, 32))
    assert maps.shape == (2, grid, grid)
    assert (maps.sum((1, 2)) < 1).all(), "the class token looks at itself as well"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("resnet_tiny", "no attention"),
        ("mixer_tiny_p2", "no attention"),
        ("swin_tiny_p2", "within windows"),
        ("vit_2l_2h_32_p2_free", "without softmax"),
    ],
)
def test_models_without_such_attention_are_told(name, said):
    with pytest.raises(MeasureError, match=said):
        attention_maps(vit(name), IMAGES)


def test_no_such_layer():
    with pytest.raises(MeasureError, match="the model has 3"):
        attention_maps(vit(), IMAGES, layer=3)


def test_enlarged_maps_lie_over_the_image():
    maps = torch.tensor([[[0.0, 0.0], [0.0, 0.2]], [[0.1, 0.1], [0.1, 0.1]]])
    large = enlarge(maps, 8)
    assert large.shape == (2, 8, 8)
    assert [large[0].min(), large[0].max(), large[0, -1, -1]] == pytest.approx([0, 1, 1])
    assert torch.isfinite(large).all()


def test_evenness_of_a_map():
    alike, one = torch.full((1, 2, 3), 0.1), torch.zeros(1, 2, 3)
    one[0, 1, 2] = 5.0
    half = torch.tensor([[[1.0, 1.0], [0.0, 0.0]]])
    assert evenness(torch.cat([alike, one])).tolist() == pytest.approx([1.0, 0.0], abs=1e-6)
    assert evenness(half).item() == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["cct_2_3x1", "vit_1l_2h_32_p2_mean", "vit_1l_2h_32_p2_conv"])
def test_networks_with_other_stems_and_pooling_have_maps(name):
    maps = attention_maps(vit(name), IMAGES)
    assert maps.shape == (3, 4, 4)
    assert ((evenness(maps) > 0) & (evenness(maps) <= 1 + 1e-6)).all()
