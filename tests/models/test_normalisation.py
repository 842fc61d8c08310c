"""What pretrained weights expect images to be: told by timm, a hub, a run, or the entries of a file we know."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import timm
import torch
from huggingface_hub import constants

from steppe.config import ModelConfig
from steppe.data.dataset import STATISTICS
from steppe.errors import ConfigError
from steppe.models import expected_statistics, runs_beside


def expected(name: str, weights: str | Path, channels: int = 3):
    return expected_statistics(ModelConfig(name=name, mode="finetune", weights=str(weights)), channels)


@pytest.mark.parametrize(
    ("name", "weights", "named"),
    [
        ("timm:resnet18", "timm", "imagenet"),
        ("vit_s_p16", "timm", "inception"),
        ("vit_s_p16", "timm:vit_small_patch16_224", "inception"),
        ("vit_b_p16", "timm:vit_base_patch16_224.augreg_in21k", "inception"),
        ("vit_b_p16", "timm:deit_base_patch16_224", "imagenet"),
    ],
)
def test_timm_tells_it_of_its_weights(name, weights, named):
    assert expected(name, weights) == STATISTICS[named]
    assert expected(name, weights, channels=1) is None, "grey images have no such statistics"


def test_statistics_that_have_no_name_here_are_taken_as_well():
    mean, _ = expected("vit_b_p16", "timm:vit_base_patch16_clip_224.openai")
    assert mean == (0.48145466, 0.4578275, 0.40821073)


def test_names_that_timm_lacks_are_refused_as_where_weights_are_read():
    with pytest.raises(ConfigError, match="timm has no weights for 'vit_tiny_p2'"):
        expected("vit_tiny_p2", "timm")
    assert expected_statistics(ModelConfig(name="vit_tiny_p2"), 3) is None


def save(path: Path, *keys: str) -> Path:
    torch.save({key: torch.zeros(1) for key in keys}, path)
    return path


def test_files_of_other_projects_are_known_by_their_entries(tmp_path):
    lite = save(tmp_path / "any.pth", "_conv_stem.weight", "_blocks.0._depthwise_conv.weight")
    assert expected("tf_efficientnet_lite0", lite) == STATISTICS["efficientnet_lite"]
    gated = save(tmp_path / "gated.pth", "_conv_stem.weight", "_blocks.0._se_reduce.weight")
    assert expected("efficientnet_b0", gated) is None, "these exist with two normalisations"
    sam = save(tmp_path / "sam.pt", "image_encoder.patch_embed.seq.0.c.weight")
    assert expected("tiny_vit_5m_224", sam) == STATISTICS["imagenet"]
    assert expected("resnet18", save(tmp_path / "timm_like_file.pth", "conv1.weight")) is None
    with pytest.raises(ConfigError, match="there are no weights"):
        expected("resnet18", tmp_path / "gone.pth")


def test_a_run_tells_what_its_images_were(tmp_path):
    run = tmp_path / "begin"
    run.mkdir()
    (run / "weights.safetensors").touch()
    (run / "config.toml").write_text('[model]\nname = "resnet18"\n')
    assert expected("resnet18", run) is None
    (run / "data.json").write_text(json.dumps({"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}))
    assert expected("resnet18", run) == expected("resnet18", run / "weights.safetensors")
    with runs_beside(tmp_path):
        assert expected("resnet18", "run:begin") == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


@pytest.mark.parametrize(
    "about",
    [
        "{",
        "[]",
        "{}",
        '{"mean": 3, "std": [1, 1, 1]}',
        '{"mean": [0, 0, 0], "std": [1, 1, 0]}',
        '{"mean": [0, 0, NaN], "std": [1, 1, 1]}',
        '{"mean": [0, 0, 0], "std": [1, 1]}',
    ],
)
def test_a_damaged_account_tells_nothing(about, tmp_path):
    (tmp_path / "weights.safetensors").touch()
    (tmp_path / "config.toml").write_text('[model]\nname = "resnet18"\n')
    (tmp_path / "data.json").write_text(about)
    assert expected("resnet18", tmp_path) is None


def test_the_hub_tells_it_in_its_config(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert expected("resnet18", "hf-hub:steppe/own") is None
    folder = tmp_path / "models--steppe--own"
    snapshot = folder / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("a" * 40)
    known = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    (snapshot / "config.json").write_text(json.dumps({"architecture": "test_resnet", "pretrained_cfg": known}))
    assert expected("resnet18", "hf-hub:steppe/own") == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


def test_timms_names_all_tell_it():
    names = timm.list_pretrained()[::37]
    assert all(expected(f"timm:{name}", f"timm:{name}") for name in names)
