from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from steppe.config import ModelConfig
from steppe.cost import count_flops, count_parameters
from steppe.errors import ConfigError, RunError
from steppe.models import build, load_weights, model_names
from steppe.models.small import TINY_MODELS


def make(name: str, size: int = 8, channels: int = 1, **options):
    return build(ModelConfig(name=name, **options), image_size=size, channels=channels, classes=10)


@pytest.mark.parametrize("name", sorted(TINY_MODELS))
@pytest.mark.parametrize("size", [8, 16])
def test_tiny_models_fit_small_images(name, size):
    model = make(name, size, channels=3, dropout=0.1, drop_path=0.1)
    out = model(torch.randn(4, 3, size, size))
    assert out.shape == (4, 10)
    out.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("name", [*sorted(TINY_MODELS), "wrn_10_1", "resnet18", "vit_2l_2h_16_p2_free", "cct_2_3x1"])
@pytest.mark.parametrize("rate", ["dropout", "drop_path", "block_dropout", "attention_dropout"])
def test_rates_reach_the_model_or_are_refused(name, rate):
    torch.manual_seed(0)
    meaningless = {
        "block_dropout": ("resnet_tiny", "resnet18"),
        "attention_dropout": ("resnet_tiny", "resnet18", "mixer_tiny_p2", "wrn_10_1"),
    }
    if name in meaningless.get(rate, ()):
        with pytest.raises(ConfigError, match=f"{rate} means nothing to"):
            make(name, **{rate: 0.5})
        return
    x = torch.randn(8, 1, 8, 8)
    for model, random in ((make(name).train(), False), (make(name, **{rate: 0.5}).train(), True)):
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.5)  # some heads begin at zero
        assert torch.equal(model(x), model(x)) is not random


def test_positions_drop_with_the_blocks():
    assert make("vit_tiny_p2", block_dropout=0.25).pos_drop.p == 0.25


def test_timm_models_by_name():
    assert make("vit_tiny_patch16_224", 32, 3)(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    small, timms = make("resnet18", 32, 3), make("timm:resnet18", 32, 3)
    assert small.conv1.kernel_size == (3, 3)
    assert timms.conv1.kernel_size == (7, 7)


def test_attention_biases_are_not_kept_between_answers():
    """timm keeps them in evaluation: noise would miss them, and a second gradient would find its graph gone."""
    torch.manual_seed(0)
    model = make("tiny_vit_5m_224", 32, 3).eval()
    x = torch.randn(2, 3, 32, 32)
    before = model(x)
    before.sum().backward()
    model(x).sum().backward()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("attention_biases"):
                parameter.normal_()
    assert not torch.allclose(model(x), before, atol=1e-4)


def test_names_are_listed_once():
    names = model_names()
    assert len(names) == len(set(names))
    assert {"vit_tiny_p2", "resnet18", "vit_base_patch16_224"} <= set(names)


@pytest.mark.parametrize("name", ["vgg11", "ghostnet_100", "repvit_m0_9"])
def test_timm_models_without_stochastic_depth(name):
    assert make(name, 32, 3)(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_bad_names_and_sizes_are_explained():
    with pytest.raises(ConfigError, match="did you mean 'vit_tiny_p2'"):
        make("vit_tny_p2")
    with pytest.raises(ConfigError, match="does not fit 8×8"):
        make("vit_tiny_patch16_224")
    with pytest.raises(ConfigError, match="28×28 images: patches of 8 do not tile it"):
        make("mixer_s_p8", 28)
    with pytest.raises(ConfigError, match="depth is 10, 16, 22, 28…, not 12"):
        make("wrn_12_1", 28)


def test_flops_of_a_vit_agree_with_the_formula():
    """Attention is counted on the CPU too: QK^T and AV cost 2 · 2 · n² · d each layer."""
    width, depth, tokens, patch, mlp = 64, 3, 17, 4, 128
    per_layer = 2 * tokens * width * (3 * width + width + 2 * mlp) + 2 * 2 * tokens * tokens * width
    expected = 2 * 16 * patch * width + depth * per_layer + 2 * width * 10
    assert count_flops(make("vit_tiny_p2"), (1, 8, 8)) == expected


def test_flops_of_a_convolution():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Flatten(), torch.nn.Linear(8 * 64, 10))
    assert count_flops(model, (3, 8, 8)) == 2 * 64 * 8 * 27 + 2 * 512 * 10
    assert count_parameters(model) == 8 * 27 + 8 + 5120 + 10


def test_weights_are_loaded_or_refused(tmp_path):
    model = make("resnet_tiny")
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    other = make("resnet_tiny")
    load_weights(other, tmp_path / "w.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))
    with pytest.raises(RunError, match="another model"):
        load_weights(make("vit_tiny_p2"), tmp_path / "w.safetensors")
    (tmp_path / "w.safetensors").write_bytes(b"junk")
    with pytest.raises(RunError, match="cannot be read"):
        load_weights(other, tmp_path / "w.safetensors")


@pytest.mark.parametrize("kind", [torch.int64, torch.bool, torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_another_type_than_training_wrote_are_refused(kind, tmp_path):
    model = make("resnet_tiny")
    state = model.state_dict()
    save_file({k: v.to(kind) if v.is_floating_point() else v for k, v in state.items()}, tmp_path / "w.safetensors")
    with pytest.raises(RunError, match="changed after training") as caught:
        load_weights(model, tmp_path / "w.safetensors")
    assert f"{str(kind).removeprefix('torch.')}, not float32" in str(caught.value)


def test_counters_of_a_run_stay_whole_numbers(tmp_path):
    model = make("resnet_tiny")
    name = next(key for key in model.state_dict() if key.endswith("num_batches_tracked"))
    save_file(model.state_dict() | {name: torch.tensor(3)}, tmp_path / "w.safetensors")
    load_weights(model, tmp_path / "w.safetensors")
    assert model.state_dict()[name].item() == 3
