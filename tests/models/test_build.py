from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from steppe.config import ModelConfig
from steppe.cost import count_flops, count_parameters
from steppe.errors import ConfigError, RunError
from steppe.models import SMALL_MODELS, build, load_weights


def make(name: str, size: int = 8, channels: int = 1, **options):
    return build(ModelConfig(name=name, **options), image_size=size, channels=channels, classes=10)


@pytest.mark.parametrize("name", sorted(SMALL_MODELS))
@pytest.mark.parametrize("size", [8, 16])
def test_small_models_fit_small_images(name, size):
    model = make(name, size, channels=3, dropout=0.1, drop_path=0.1)
    out = model(torch.randn(4, 3, size, size))
    assert out.shape == (4, 10)
    out.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("name", sorted(SMALL_MODELS))
def test_regularisation_rates_reach_the_model(name):
    torch.manual_seed(0)
    for option in ({"dropout": 0.5}, {"drop_path": 0.5}):
        model = make(name, **option).train()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)  # some heads begin at zero
        check_is_random(model)
        make_plain = make(name).train()
        x = torch.randn(8, 1, 8, 8)
        assert torch.equal(make_plain(x), make_plain(x))


def check_is_random(model) -> None:
    x = torch.randn(8, 1, 8, 8)
    assert not torch.equal(model(x), model(x))


def test_timm_models_by_name():
    assert make("resnet18", 32, 3)(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    assert make("vit_tiny_patch16_224", 32, 3)(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_bad_names_and_sizes_are_explained():
    with pytest.raises(ConfigError, match="did you mean 'vit_tiny_p2'"):
        make("vit_tny_p2")
    with pytest.raises(ConfigError, match="does not fit 8×8"):
        make("vit_tiny_patch16_224")


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
