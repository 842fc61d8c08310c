"""Which model weights belong to, and what is settled about them before a run is hashed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from steppe.config import PRETRAINED, ModelConfig, RunConfig
from steppe.config.pretrained import weights_cache
from steppe.errors import ConfigError
from steppe.models import build, match_architecture, settle


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for name in ("STEPPE_WEIGHTS", "STEPPE_DATA"):
        monkeypatch.delenv(name, raising=False)


def settled(root: Path | None = None, **model: object) -> ModelConfig:
    return settle(RunConfig.model_validate({"model": model}), root).model


def put(name: str, folder: Path | None = None, **about: object) -> Path:
    """Weights of few numbers under a name, described where that is asked for."""
    folder = folder or weights_cache()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.safetensors"
    save_file({"conv1.weight": torch.zeros(1)}, path)
    if about:
        path.with_suffix(".json").write_text(json.dumps(about))
    return path


def saved(name: str, path: Path, size: int = 32, classes: int = 3) -> Path:
    model = build(ModelConfig(name=name), image_size=size, channels=3, classes=classes)
    save_file({key: value.contiguous() for key, value in model.state_dict().items()}, path)
    return path


def test_configuration_that_leaves_nothing_open_is_returned_as_it_is():
    for model in ({}, {"name": "resnet18"}, {"name": "resnet18", "weights": "some.safetensors"}):
        config = RunConfig.model_validate({"model": model})
        assert settle(config) is config


def test_name_of_the_table_tells_the_model():
    found = settled(weights="resnet50_keras")
    assert (found.name, found.weights, found.mode) == ("resnet50_v1", "resnet50_keras", "finetune")


def test_name_of_timms_tells_the_model():
    assert settled(weights="timm:convnext_tiny.in12k_ft_in1k").name == "convnext_tiny"
    assert settled(weights="timm:resnet18.a1_in1k").name == "timm:resnet18", "ours has another stem on small images"


def test_sidecar_tells_the_model(tmp_path):
    path = put("mine", tmp_path, architecture="vit_s_p16")
    assert settled(weights=str(path), mode="frozen").name == "vit_s_p16"


def test_run_tells_the_model(tmp_path):
    path = saved("vit_tiny_p2", tmp_path / "weights.safetensors", size=8)
    (tmp_path / "config.toml").write_text('[model]\nname = "vit_tiny_p2"\n')
    (tmp_path / "data.json").write_text("{}")
    assert settled(weights=str(path)).name == settled(weights=str(tmp_path)).name == "vit_tiny_p2"


def test_entries_tell_the_model(tmp_path):
    assert match_architecture(saved("resnet18", tmp_path / "w.safetensors")) == "resnet18"


def test_name_of_a_file_and_its_entries_tell_timms_model(tmp_path):
    path = tmp_path / "convnext_atto.d2_in1k.safetensors"
    save_file(timm.create_model("convnext_atto", num_classes=3).state_dict(), path)
    assert settled(weights=str(path)).name == "convnext_atto"


def test_model_that_cannot_be_told_is_asked_for(tmp_path):
    path = put("odd", tmp_path)
    with pytest.raises(ConfigError, match="cannot be told") as caught:
        settled(weights=str(path))
    assert "--model" in str(caught.value)
    with pytest.raises(ConfigError, match="the model is missing") as caught:
        settled(weights="hf-hub:someone/something")


def test_missing_file_is_told_before_the_model():
    with pytest.raises(ConfigError, match=r"there are no weights at gone\.safetensors"):
        settled(weights="gone.safetensors")


def test_auto_takes_the_best_at_hand():
    put("tiny_vit_5m")
    assert settled(weights="auto").weights == "tiny_vit_5m"
    put("efficientnet_lite0")
    found = settled(weights="auto", mode="frozen")
    assert (found.name, found.weights, found.mode) == ("tf_efficientnet_lite0", "efficientnet_lite0", "frozen")


def test_auto_takes_those_of_the_model_that_is_named():
    put("efficientnet_lite0")
    put("mine", architecture="vit_small_patch16_224")
    found = settled(name="vit_s_p16", weights="auto")
    assert (found.name, found.weights) == ("vit_s_p16", str(weights_cache() / "mine.safetensors"))


def test_auto_without_weights_at_hand_is_training_from_scratch():
    assert settled(name="resnet18", weights="auto") == ModelConfig(name="resnet18")
    assert settled(weights="auto") == ModelConfig()
    with pytest.raises(ConfigError, match="mode 'frozen' begins from trained weights, and none are at hand"):
        settled(weights="auto", mode="frozen")


def test_auto_looks_beside_the_data(tmp_path):
    put("efficientnet_lite0", tmp_path / "sets" / "weights")
    assert settled(tmp_path / "sets", weights="auto").weights == "efficientnet_lite0"


def test_run_says_what_auto_was():
    put("efficientnet_lite0")
    config = settle(RunConfig.model_validate({"model": {"weights": "auto"}}))
    named = RunConfig.model_validate({"model": {"name": "tf_efficientnet_lite0", "weights": "efficientnet_lite0"}})
    assert config.run_id == named.run_id


def test_auto_that_was_not_settled_is_refused():
    with pytest.raises(ConfigError, match="'auto' names no weights"):
        build(ModelConfig(weights="auto"), image_size=8, channels=3, classes=3)


@pytest.mark.parametrize(("model", "wanted"), [("resnet50", "resnet50_v1"), ("timm:resnet50", "resnet50_v1")])
def test_kerass_weights_in_timms_network_are_refused(tmp_path, model, wanted):
    strides = dict(PRETRAINED["resnet50_keras"].patches.strides)
    path = put("keras", tmp_path, architecture="resnet50", strides=strides, batch_norm_eps=1e-3)
    with pytest.raises(ConfigError, match=r"the stride \(2, 2\) in layer2.0.conv1, which has \(1, 1\)") as caught:
        build(ModelConfig(name=model, weights=str(path)), image_size=32, channels=3, classes=3)
    assert f"set model.name to {wanted!r}" in str(caught.value)


def test_other_eps_than_a_sidecar_says_is_refused(tmp_path):
    path = put("mine", tmp_path, architecture="resnet_tiny", batch_norm_eps=0.25)
    with pytest.raises(ConfigError, match=r"eps 0\.25 in their norms") as caught:
        build(ModelConfig(name="resnet_tiny", weights=str(path)), image_size=8, channels=3, classes=3)
    assert "no model" in str(caught.value)


def test_missing_weights_of_the_table_say_how_to_get_them():
    with pytest.raises(ConfigError, match="'efficientnet_lite0' are not on this machine") as caught:
        build(
            ModelConfig(name="tf_efficientnet_lite0", weights="efficientnet_lite0"),
            image_size=32,
            channels=3,
            classes=3,
        )
    assert "steppe weights get efficientnet_lite0" in str(caught.value)


def test_entry_of_the_hub_is_found_in_its_cache_and_fills_the_model(tmp_path, monkeypatch):
    name, state = "test_vit.r160_in1k", timm.create_model("test_vit").state_dict()
    monkeypatch.setitem(PRETRAINED, name, replace(PRETRAINED["resnet50.a1_in1k"], name=name, model="test_vit"))
    folder = tmp_path / "hub" / f"models--timm--{name}"
    for made in ("refs", f"snapshots/{'a' * 40}"):
        (folder / made).mkdir(parents=True)
    (folder / "refs" / "main").write_text("a" * 40)
    save_file(state, folder / "snapshots" / ("a" * 40) / "model.safetensors")
    config = settled(weights="auto")
    assert (config.name, config.weights) == ("test_vit", name)
    model = build(config, image_size=160, channels=3, classes=1000)
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in state.items())
