"""Short names: every family at small sizes, and parameter counts as published."""

from __future__ import annotations

import pytest
import torch
from timm.layers.attention import Attention

from steppe.config import ModelConfig
from steppe.cost import count_flops
from steppe.errors import ConfigError
from steppe.models import SMALL_MODELS, build
from steppe.models.names import short_name
from steppe.models.transformers import CompactBlock, FreeAttention, SequencePool, fitting_window

FAMILIES = [
    "resnet18",
    "wrn_10_2",
    "vit_2l_2h_32_p4",
    "vit_2l_2h_32_p2_free",
    "vit_2l_2h_32_mlp48_p4",
    "vit_2l_2h_32_p4_conv",
    "vit_2l_2h_32_p4_mean",
    "vit_2l_2h_32_p4_qknorm",
    "vit_2l_2h_32_p4_qknorm_free",
    "cct_2_3x1",
    "cct_2_3x2",
    "swin_t_p2",
    "mixer_s_p4",
    "mixer_2l_32",
    "hybrid_tiny",
    "r50_vit_s_p16",
    "r50_vit_2l_2h_32",
]


def count(name: str, size: int = 224, classes: int = 1000) -> int:
    with torch.device("meta"):
        model = build(ModelConfig(name=name), image_size=size, channels=3, classes=classes)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("size", "channels"), [(28, 1), (32, 3)])
def test_every_family_learns_on_small_images(name, size, channels):
    torch.manual_seed(0)
    model = build(ModelConfig(name=name), image_size=size, channels=channels, classes=10)
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.02)  # what begins at zero hides what lies behind it
    out = model(torch.randn(2, channels, size, size))
    assert out.shape == (2, 10)
    out.square().sum().backward()
    silent = [key for key, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []


TABLES = {
    # source 003, table 8 (and 2): ViT and MLP-Mixer
    "vit_s_p32": 23,
    "vit_s_p16": 22,
    "vit_s_p14": 22,
    "vit_s_p8": 22,
    "vit_b_p32": 88,
    "vit_b_p16": 87,
    "mixer_s_p32": 19,
    "mixer_s_p16": 18,
    "mixer_s_p8": 20,
    "mixer_b_p32": 60,
    "mixer_b_p16": 59,
    "mixer_b_p8": 64,
    # table 2: ResNet
    "resnet50": 25,
    "resnet101": 44,
    "resnet152": 60,
    "resnet50x2": 98,
    "resnet101x2": 173,
    "resnet152x2": 236,
    # table 3: hybrids
    "r50_vit_s_p16": 34,
    "r50_vit_b_p16": 99,
}


@pytest.mark.parametrize(("name", "millions"), TABLES.items())
def test_parameters_agree_with_the_paper(name, millions):
    """The paper cuts some figures and rounds others, so one of the two must give its number."""
    ours = count(name) / 1e6
    assert millions in (int(ours), round(ours))


def test_the_model_without_softmax_has_the_same_parameters():
    assert count("vit_b_p16_free") == count("vit_b_p16")


@pytest.mark.parametrize(
    ("name", "classes", "parameters"),
    [
        ("resnet18", 100, 11_220_132),
        ("wrn_28_10", 10, 36_479_194),
        ("wrn_16_8", 10, 10_961_370),
        ("vit_2l_2h_128", 100, 424_420),
        ("vit_4l_4h_256", 100, 3_214_692),
        ("vit_6l_8h_384", 100, 10_730_212),
        ("vit_8l_8h_512", 100, 25_330_276),
        ("swin_t_p2", 100, 27_574_318),
        ("swin_s_p2", 100, 48_874_942),
        ("vit_ti_p4", 100, 5_380_132),
        ("vit_7l_12h_384_mlp384", 10, 6_268_810),
        ("cct_7_3x1", 10, 3_760_139),
        ("cct_2_3x2", 10, 283_723),
    ],
)
def test_parameters_at_32_pixels(name, classes, parameters):
    assert count(name, 32, classes) == parameters


def test_swin_at_224_pixels_is_the_published_one():
    assert count("swin_t_p4") == 28_288_354
    assert count("swin_s_p4") == 49_606_258


def test_parameters_of_cct_14_are_the_published_22_million():
    assert count("cct_14_7x2") == 22_367_273


def test_compact_block_normalises_the_tokens_before_its_mlp():
    torch.manual_seed(0)
    block = CompactBlock(24, num_heads=3, mlp_ratio=2, qkv_bias=False).double()
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    normalised = block.norm2(x + block.attn(block.norm1(x)))
    torch.testing.assert_close(block(x), normalised + block.mlp(normalised))


def test_sequence_pool_averages_tokens_by_the_softmax_of_their_scores():
    torch.manual_seed(0)
    pool, x = SequencePool(8), torch.randn(2, 5, 8)
    shares = (x @ pool.weight[0] + pool.bias).softmax(1)
    torch.testing.assert_close(pool(x), torch.einsum("bn,bnd->bd", shares, x))


def test_convolutional_stem_makes_the_grid_that_the_patch_says():
    with torch.device("meta"):
        model = build(ModelConfig(name="vit_2l_2h_64_p8_conv"), image_size=32, channels=3, classes=10)
    assert model.patch_embed.grid_size == (4, 4)
    widths = [layer.conv.out_channels for layer in model.patch_embed.backbone]
    assert widths == [16, 32, 64]


def test_qknorm_makes_logits_independent_of_the_scale_of_queries_and_keys():
    torch.manual_seed(0)
    model = build(ModelConfig(name="vit_2l_2h_32_qknorm"), image_size=16, channels=3, classes=10).eval()
    x = torch.randn(2, 3, 16, 16)
    before = model(x)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight[:64] *= 5
            block.attn.qkv.bias[:64] *= 5
    torch.testing.assert_close(model(x), before, rtol=1e-3, atol=1e-4)


def test_convolutional_stem_refuses_a_patch_that_is_no_power_of_two():
    with pytest.raises(ConfigError, match="its patch is 2, 4, 8 or 16, not 7"):
        build(ModelConfig(name="vit_2l_2h_32_p7_conv"), image_size=28, channels=1, classes=10)


def test_parameters_of_a_vit_follow_the_formula():
    """12·d² + 13·d a layer, patches, positions, class token, norm, head: source 001's own figures cannot be right."""
    for layers, width in ((2, 128), (8, 512)):
        body = layers * (12 * width**2 + 13 * width) + 2 * width
        ends = (3 * 16 + 1) * width + (64 + 1) * width + width + (width + 1) * 100
        assert count(f"vit_{layers}l_{2 if layers == 2 else 8}h_{width}", 32, 100) == body + ends


def test_flops_of_resnet18_are_twice_the_multiply_adds_of_seed_001():
    model = build(ModelConfig(name="resnet18"), image_size=32, channels=3, classes=100)
    assert count_flops(model, (3, 32, 32)) / 2 == pytest.approx(558e6, rel=0.01)


def test_every_listed_name_can_be_read_and_says_what_it_is():
    for name, (builder, about) in SMALL_MODELS.items():
        known = short_name(name)
        assert known is not None
        assert callable(builder)
        assert known.about == about


@pytest.mark.parametrize(
    "name",
    [
        "resnet19",
        "cct_5_3x1",
        "vit_s_p4_mean_conv",
        "wrn_28",
        "vit_x_p4",
        "vit_s_p0",
        "swin_b_p4",
        "mixer_s",
        "vit_s_p4_fre",
    ],
)
def test_what_is_no_short_name_is_not_read(name):
    assert short_name(name) is None


def test_the_grammar_reads_more_than_is_listed():
    assert "wrn_40_4" not in SMALL_MODELS
    assert count("wrn_40_4", 32, 10) == 8_949_210
    assert count("vit_3l_3h_96_p8", 32, 10) == count("vit_3l_3h_96_p8_free", 32, 10)


@pytest.mark.parametrize("tokens", [5, 40])
def test_attention_without_softmax_weighs_values_by_logits(tokens):
    torch.manual_seed(0)
    softmax = Attention(24, num_heads=3, qkv_bias=True).double()
    free = FreeAttention(softmax)
    x = torch.randn(2, tokens, 24, dtype=torch.float64)
    q, k, v = softmax.qkv(x).reshape(2, tokens, 3, 3, 8).permute(2, 0, 3, 1, 4)
    expected = torch.einsum("bhid,bhjd,bhje->bihe", q, k, v) / 8**0.5
    torch.testing.assert_close(free(x), softmax.proj(expected.reshape(2, tokens, 24)))
    assert free.state_dict().keys() == softmax.state_dict().keys()


@pytest.mark.parametrize(
    ("grid", "window"), [(1, 1), (4, 4), (7, 7), (8, 4), (14, 7), (16, 4), (24, 6), (28, 7), (32, 4), (56, 7), (11, 6)]
)
def test_windows_fit(grid, window):
    assert fitting_window(grid) == window


@pytest.mark.parametrize("size", [28, 32])
def test_swin_counts_odd_grids_as_its_merging_does(size):
    with torch.device("meta"):
        model = build(ModelConfig(name="swin_t_p2"), image_size=size, channels=1, classes=10)
    grid = size // 2
    for stage in model.layers:
        assert stage.output_resolution == (grid, grid)
        for block in stage.blocks:
            assert block.input_resolution == (grid, grid)
            assert grid % block.window_size[0] == 0
        grid = -(-grid // 2)


def test_small_images_keep_their_size_in_the_stem():
    small = build(ModelConfig(name="resnet18"), image_size=64, channels=3, classes=10)
    assert isinstance(small.maxpool, torch.nn.Identity)
    assert small.layer1(small.maxpool(small.conv1(torch.zeros(1, 3, 64, 64)))).shape[-1] == 64
    large = build(ModelConfig(name="resnet18"), image_size=65, channels=3, classes=10)
    assert large.conv1.kernel_size == (7, 7)
