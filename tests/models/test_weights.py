"""Weights from elsewhere: read without running anything, fitted to other sizes, refused in plain words."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from steppe.config import ModelConfig
from steppe.errors import ConfigError
from steppe.models import build, weights


def make(name: str, size: int = 16, channels: int = 3, classes: int = 10, **options):
    return build(ModelConfig(name=name, **options), image_size=size, channels=channels, classes=classes)


def finetune(name: str, source, size: int = 16, channels: int = 3, classes: int = 10, **options):
    return make(name, size, channels, classes, mode="finetune", weights=str(source), **options)


def trained(name: str, size: int = 16, **options):
    """A model no entry of which is at its beginning."""
    torch.manual_seed(1)
    model = make(name, size, **options)
    with torch.no_grad():
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.rand_like(value) * 0.1 + 0.05)
    return model.eval()


@pytest.fixture(autouse=True)
def said(caplog):
    weights._SAID.clear()
    caplog.set_level(logging.WARNING, "steppe.models.weights")
    return caplog


NAMES = ["resnet_tiny", "vit_tiny_p2", "swin_tiny_p2", "mixer_tiny_p2", "wrn_10_1", "vit_1l_2h_32_free"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["safetensors", "run", "pth", "wrapped"])
def test_at_the_same_size_the_weights_are_the_same(name, form, tmp_path, said):
    before = trained(name)
    state = before.state_dict()
    path = tmp_path / {"safetensors": "w.safetensors", "run": "weights.safetensors"}.get(form, "w.pth")
    if form in ("safetensors", "run"):
        save_file({k: v.contiguous() for k, v in state.items()}, path)
    elif form == "pth":
        torch.save(state, path)
    else:
        torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in state.items()}}, path)
    after = finetune(name, tmp_path if form == "run" else path).eval()
    x = torch.randn(4, 3, 16, 16)
    assert torch.equal(before(x), after(x))
    assert not said.messages


@pytest.mark.parametrize("name", ["vit_tiny_p2", "swin_tiny_p2"])
def test_another_image_size_resizes_positions_and_windows(name, tmp_path):
    before = trained(name)
    torch.save(before.state_dict(), tmp_path / "w.pth")
    after = finetune(name, tmp_path / "w.pth", size=24).eval()
    assert after(torch.randn(2, 3, 24, 24)).isfinite().all()
    for key, value in after.state_dict().items():
        if key != "pos_embed":
            assert torch.equal(value, before.state_dict()[key])


def test_resized_positions_keep_a_constant_and_an_order(tmp_path):
    before = make("vit_tiny_p2", 16)
    ramp = torch.arange(8.0).repeat(8, 1)
    with torch.no_grad():
        before.pos_embed.fill_(3.0)
        before.pos_embed[0, 1:, 0] = ramp.flatten()
        before.pos_embed[0, 0] = 7.0
    torch.save(before.state_dict(), tmp_path / "w.pth")
    after = finetune("vit_tiny_p2", tmp_path / "w.pth", size=32).pos_embed.detach()
    assert after.shape == (1, 1 + 16 * 16, 64)
    assert torch.equal(after[0, 0], torch.full((64,), 7.0))
    torch.testing.assert_close(after[0, 1:, 1:], torch.full((256, 63), 3.0))
    row = after[0, 1:, 0].reshape(16, 16)
    assert (row.diff(dim=1) > 0).all()
    assert row.std(dim=0).max() < 1e-5


def test_swin_tables_are_resized_with_the_windows(tmp_path):
    source = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=56, num_classes=5, depths=(1, 1), num_heads=(1, 2), embed_dim=8
    )
    with torch.no_grad():
        for block in (b for stage in source.layers for b in stage.blocks):
            block.attn.relative_position_bias_table.fill_(0.5)
    torch.save(source.state_dict(), tmp_path / "w.pth")
    target = timm.create_model(
        "swin_tiny_patch4_window7_224",
        img_size=32,
        num_classes=5,
        depths=(1, 1),
        num_heads=(1, 2),
        embed_dim=8,
        window_size=4,
    )
    weights.load_pretrained(target, str(tmp_path / "w.pth"), "swin")
    assert target.layers[0].blocks[0].attn.relative_position_bias_table.shape == (49, 1)
    for block in (b for stage in target.layers for b in stage.blocks):
        table = block.attn.relative_position_bias_table
        torch.testing.assert_close(table, torch.full_like(table, 0.5))


def test_another_patch_resizes_the_embedding(tmp_path):
    """A patch twice as large must see an enlarged image as the small patch saw the image."""
    before = trained("vit_1l_2h_32_p2")
    torch.save(before.state_dict(), tmp_path / "w.pth")
    after = finetune("vit_1l_2h_32_p4", tmp_path / "w.pth", size=32).eval()
    image = torch.rand(2, 3, 1, 1).expand(-1, -1, 16, 16)
    large = torch.nn.functional.interpolate(image, scale_factor=2)
    torch.testing.assert_close(before.patch_embed(image), after.patch_embed(large), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["resnet_tiny", "vit_tiny_p2", "mixer_tiny_p2", "tf_efficientnet_lite0"])
def test_grey_images_get_the_sum_of_the_colours(name, tmp_path):
    before = trained(name)
    torch.save(before.state_dict(), tmp_path / "w.pth")
    after = finetune(name, tmp_path / "w.pth", channels=1).eval()
    x = torch.randn(2, 1, 16, 16)
    torch.testing.assert_close(after(x), before(x.expand(-1, 3, -1, -1)), rtol=1e-4, atol=1e-4)


def test_a_head_of_another_size_begins_at_zero_and_says_so_once(tmp_path, said):
    before = trained("resnet_tiny")
    torch.save(before.state_dict(), tmp_path / "w.pth")
    for _ in range(2):
        after = finetune("resnet_tiny", tmp_path / "w.pth", classes=4)
        assert not after(torch.randn(2, 3, 16, 16)).any()
        assert torch.equal(after.conv1.weight, before.conv1.weight)
    assert len(said.messages) == 1
    assert "has 10 classes, this run 4" in said.messages[0]


def test_entries_that_are_not_used_are_named(tmp_path, said):
    torch.save({**trained("resnet_tiny").state_dict(), "teacher.weight": torch.zeros(3)}, tmp_path / "w.pth")
    finetune("resnet_tiny", tmp_path / "w.pth")
    assert "1 entries" in said.messages[0]
    assert "teacher.weight" in said.messages[0]


def test_weights_are_not_read_where_they_are_overwritten(tmp_path):
    config = ModelConfig(name="resnet_tiny", mode="frozen", weights=str(tmp_path / "gone.pth"))
    model = build(config, image_size=8, channels=1, classes=3, load=False)
    assert [key for key, p in model.named_parameters() if p.requires_grad] == ["head.weight", "head.bias"]


class Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


@pytest.mark.parametrize("protocol", ["torch", "pickle"])
def test_a_file_that_would_run_a_program_is_not_opened(protocol, tmp_path):
    content = {"conv1.weight": torch.zeros(1), "bomb": Bomb(tmp_path / "exploded")}
    if protocol == "torch":
        torch.save(content, tmp_path / "w.pth")
    else:
        (tmp_path / "w.pth").write_bytes(pickle.dumps(content))
    with pytest.raises(ConfigError, match="may hold more than numbers"):
        finetune("resnet_tiny", tmp_path / "w.pth")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("content", [b"", b"junk", b"PK\x03\x04 not a zip"])
@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
def test_damaged_files_are_said_to_be(content, name, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read"):
        finetune("resnet_tiny", tmp_path / name)


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, {"state_dict": {"a": 1}}, torch.zeros(3)])
def test_files_without_weights_are_said_to_be(content, tmp_path):
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(ConfigError, match="holds no weights"):
        finetune("resnet_tiny", tmp_path / "w.pth")


def test_weights_of_another_model_are_refused(tmp_path):
    torch.save(trained("resnet_tiny").state_dict(), tmp_path / "w.pth")
    with pytest.raises(ConfigError, match=r"do not fit vit_tiny_p2: \d+ of \d+ entries are not in it, such as 'cls"):
        finetune("vit_tiny_p2", tmp_path / "w.pth")
    torch.save(trained("mixer_tiny_p2").state_dict(), tmp_path / "w.pth")
    with pytest.raises(ConfigError, match="tied to its grid"):
        finetune("mixer_tiny_p2", tmp_path / "w.pth", size=32)
    torch.save(timm.create_model("resnet18", num_classes=10).state_dict(), tmp_path / "w.pth")
    with pytest.raises(ConfigError, match="name the model timm:NAME"):
        finetune("resnet18", tmp_path / "w.pth", size=32)
    assert finetune("timm:resnet18", tmp_path / "w.pth", size=32).conv1.kernel_size == (7, 7)
    torch.save(trained("vit_1l_2h_32").state_dict(), tmp_path / "w.pth")
    with pytest.raises(ConfigError, match="has shape"):
        finetune("vit_1l_2h_64", tmp_path / "w.pth")


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("resnet18", "nowhere.safetensors", "no weights at nowhere.safetensors"),
        ("resnet18", "resnet18", "did you mean timm:resnet18?"),
        ("vit_tiny_p2", "timm", "name a model of the same sizes"),
        ("resnet18", "timm:resnet81", "did you mean timm:resnet"),
        ("resnet18", "timm:resnet18.a1_in1k", "model.safetensors of 'resnet18.a1_in1k'"),
        ("resnet18", "hf-hub:timm/resnet18.a1_in1k", "cannot be reached, and they are not in the cache"),
    ],
)
def test_what_cannot_be_had_is_explained(name, source, expected, monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        finetune(name, source)
    assert expected in str(error.value)
    assert error.value.where == "model.weights"


def test_names_of_timm_are_fetched_by_timm(monkeypatch):
    """No network here: the hub is played by timm itself, with the fresh weights of the model asked for."""
    asked = []
    create = timm.create_model

    def pretend(name, pretrained=False, **options):
        asked.extend([name] * pretrained)
        return create(name, **options)

    monkeypatch.setattr(timm, "create_model", pretend)
    finetune("vit_ti_p16", "timm", size=32)
    finetune("vit_ti_p4", "timm:vit_tiny_patch16_224", size=32)
    assert asked == ["vit_tiny_patch16_224"] * 2


def test_a_head_without_dimensions_begins_afresh(tmp_path):
    state = {**trained("mlp_8", 8).state_dict(), "head.weight": torch.tensor(1.0), "head.bias": torch.tensor(1.0)}
    save_file(state, tmp_path / "w.safetensors")
    assert finetune("mlp_8", tmp_path / "w.safetensors", 8).head.weight.shape == (10, 8)


@pytest.mark.parametrize("kind", [torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
def test_weights_that_are_not_floating_point_are_refused(kind, name, tmp_path):
    state = {k: v.to(kind) if v.is_floating_point() else v for k, v in trained("resnet_tiny").state_dict().items()}
    save_file(state, tmp_path / name) if name.endswith("safetensors") else torch.save(state, tmp_path / name)
    with pytest.raises(ConfigError, match="weights are floating-point numbers"):
        finetune("resnet_tiny", tmp_path / name)


def test_a_head_that_is_not_floating_point_is_refused(tmp_path):
    state = trained("mlp_8").state_dict()
    head = list(state)[-1]
    save_file({**state, head: state[head].to(torch.int64)}, tmp_path / "w.safetensors")
    with pytest.raises(ConfigError, match="weights are floating-point numbers"):
        finetune("mlp_8", tmp_path / "w.safetensors")


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_pretrained_weights_of_another_precision_are_converted(kind, tmp_path):
    before = trained("resnet_tiny").state_dict()
    save_file({k: v.to(kind) if v.is_floating_point() else v for k, v in before.items()}, tmp_path / "w.safetensors")
    after = finetune("resnet_tiny", tmp_path / "w.safetensors").state_dict()
    for key, value in before.items():
        assert after[key].dtype == value.dtype
        torch.testing.assert_close(after[key], value, rtol=1e-2, atol=1e-3)
