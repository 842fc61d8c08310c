"""Weights under other projects' names: by hand-written names, and with the real files where they are.

Tests of real weights skip where STEPPE_WEIGHTS names no folder that has them; `steppe weights get` fetches them.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

import pytest
import timm
import torch
from sklearn.datasets import load_sample_image

from steppe.config import PRETRAINED, ModelConfig, locate
from steppe.errors import ConfigError
from steppe.models import build, expected_statistics, foreign, weights
from steppe.models.foreign import rename

EXPANDING = {
    "conv_pw": "_expand_conv",
    "bn1": "_bn0",
    "conv_dw": "_depthwise_conv",
    "bn2": "_bn1",
    "conv_pwl": "_project_conv",
    "bn3": "_bn2",
}
PLAIN = {"conv_dw": "_depthwise_conv", "bn1": "_bn1", "conv_pw": "_project_conv", "bn2": "_bn2"}
OUTER = {"conv_stem": "_conv_stem", "bn1": "_bn0", "conv_head": "_conv_head", "bn2": "_bn1", "classifier": "_fc"}


@pytest.fixture(autouse=True)
def said(caplog):
    weights._SAID.clear()
    caplog.set_level(logging.WARNING, "steppe.models.weights")
    return caplog


def filled(name: str):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=7)
    for value in model.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand_like(value))
    return model


def load(name: str, state: dict, path: Path):
    torch.save(state, path)
    config = ModelConfig(name=name, mode="finetune", weights=str(path))
    return build(config, image_size=64, channels=3, classes=7)


@pytest.mark.parametrize("name", ["tf_efficientnet_lite0", "efficientnet_b0"])
def test_efficientnet_pytorch(name, tmp_path, said):
    model = filled(name)
    first = [sum(len(stage) for stage in model.blocks[:index]) for index in range(len(model.blocks))]
    state = {}
    for key, value in model.state_dict().items():
        if match := re.fullmatch(r"blocks\.(\d+)\.(\d+)\.(.+)\.(\w+)", key):
            stage, block, layer, kind = int(match[1]), int(match[2]), match[3], match[4]
            gates = {"se.conv_reduce": "_se_reduce", "se.conv_expand": "_se_expand"}
            table = (PLAIN if stage == 0 else EXPANDING) | gates
            state[f"_blocks.{first[stage] + block}.{table[layer]}.{kind}"] = value
        else:
            layer, kind = key.split(".")
            state[f"{OUTER[layer]}.{kind}"] = value
    loaded = load(name, state, tmp_path / "w.pth")
    assert all(torch.equal(value, loaded.state_dict()[key]) for key, value in model.state_dict().items())
    assert not said.messages


def test_mobile_sam(tmp_path, said):
    model = filled("tiny_vit_5m_224")
    state = {"mask_decoder.x": torch.zeros(1), "image_encoder.neck.0.weight": torch.zeros(1)}
    for key, value in model.state_dict().items():
        name = key.replace("head.norm.", "norm_head.").replace("head.fc.", "head.")
        name = name.replace("patch_embed.conv1.", "patch_embed.seq.0.").replace(
            "patch_embed.conv2.", "patch_embed.seq.2."
        )
        name = re.sub(r"stages\.(\d)\.downsample", lambda m: f"layers.{int(m[1]) - 1}.downsample", name)
        name = name.replace("stages.", "layers.").replace(".conv.weight", ".c.weight")
        state[f"image_encoder.{name}"] = value
    loaded = load("tiny_vit_5m_224", state, tmp_path / "w.pth")
    same = {key for key, value in model.state_dict().items() if torch.equal(value, loaded.state_dict()[key])}
    assert set(model.state_dict()) - same == {"head.fc.weight", "head.fc.bias"}
    assert "has none, this run 7" in said.messages[0]


@pytest.mark.parametrize("name", ["efficientnet-lite0-57934424.pth", "mobile_sam.pt"])
def test_a_missing_file_says_how_to_get_it(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the project's own folder may have fetched it
    with pytest.raises(ConfigError) as caught:
        weights.read_weights(f"pretrained/{name}", "")
    assert "fetch them: steppe weights get" in str(caught.value)
    assert "--original 'my folder'" in str(foreign.how_to_fetch(Path("my folder") / name))


def test_other_names_are_left_alone():
    state = {"conv1.weight": torch.zeros(1)}
    assert rename(state, torch.nn.Identity()) == state


def real(name: str) -> str:
    """The name of real weights, where STEPPE_WEIGHTS has them."""
    if not os.environ.get("STEPPE_WEIGHTS") or locate(name) is None:
        pytest.skip(f"{name} is not here: `steppe weights get {name}`, and set STEPPE_WEIGHTS to its folder")
    return name


@pytest.mark.parametrize(
    ("name", "image", "label"),
    [
        ("efficientnet_lite0", "flower.jpg", 985),
        *((name, "china.jpg", 698) for name, known in PRETRAINED.items() if known.package and known.has_head),
    ],
)
def test_real_weights_see_a_palace_and_a_daisy(name, image, label):
    config = ModelConfig(name=PRETRAINED[name].model, weights=real(name))
    size = PRETRAINED[name].image_size
    model = build(config, image_size=size, channels=3, classes=1000).eval()
    picture = torch.from_numpy(load_sample_image(image).copy()).permute(2, 0, 1).float()
    side = min(picture.shape[1:])
    top, left = (picture.shape[1] - side) // 2, (picture.shape[2] - side) // 2
    square = picture[None, :, top : top + side, left : left + side] / 255
    square = torch.nn.functional.interpolate(square, (size, size), mode="bilinear", antialias=True)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in expected_statistics(config, 3))
    with torch.no_grad():
        assert model((square - mean) / std).argmax().item() == label


def test_the_real_tiny_vit_fills_all_but_the_head(said):
    config = ModelConfig(name="tiny_vit_5m_224", mode="frozen", weights=real("tiny_vit_5m"))
    model = build(config, image_size=96, channels=3, classes=37)
    assert model(torch.zeros(2, 3, 96, 96)).isfinite().all()
    assert len(said.messages) == 1
    means = [value for key, value in model.state_dict().items() if key.endswith("running_mean")]
    assert all(mean.any() for mean in means)  # a fresh model has zeros here
