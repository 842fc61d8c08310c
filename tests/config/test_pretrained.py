"""Pretrained weights by name: the table, where files are looked for, and what lies beside them."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import timm
from huggingface_hub import constants

from steppe.config import PRETRAINED, Pretrained, available, cache_folder, describe_file, locate, use_data_root
from steppe.config.pretrained import weights_cache
from steppe.models.names import short_name

HUB = [name for name, known in PRETRAINED.items() if known.hub]
PACKAGED = [name for name, known in PRETRAINED.items() if known.package]


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """No weights but those that a test lays down."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STEPPE_WEIGHTS", raising=False)
    monkeypatch.delenv("STEPPE_DATA", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def put(path: Path, about: dict | None = None) -> Path:
    """A safetensors file without entries, and what lies beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", 2) + b"{}")
    if about is not None:
        path.with_suffix(".json").write_text(json.dumps(about))
    return path


@pytest.mark.parametrize("name", HUB)
def test_hub_entry_says_what_timm_says(name):
    known, told = PRETRAINED[name], timm.get_pretrained_cfg(name, allow_unregistered=False)
    assert told.hf_hub_id == f"timm/{name}"
    assert told.license == known.licence.lower()
    assert told.input_size[-1] == known.image_size
    assert bool(told.num_classes) == known.has_head
    assert known.model == name.partition(".")[0] or known.model == f"timm:{name.partition('.')[0]}"


@pytest.mark.parametrize("name", PACKAGED)
def test_packaged_entry_names_a_known_model_and_its_statistics(name):
    known = PRETRAINED[name]
    assert short_name(known.model) or timm.is_model(known.model)
    assert known.statistics
    assert known.package
    assert len(known.package.sha256) == len(known.package.converted_sha256) == 64


def test_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path(os.environ["STEPPE_CACHE"])
    monkeypatch.delenv("STEPPE_CACHE")
    assert cache_folder() == Path("/somewhere/steppe")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "steppe"


def test_locate_prefers_the_named_folder_then_the_cache_then_the_data(tmp_path, monkeypatch):
    assert locate("efficientnet_lite0") is None
    beside = put(tmp_path / "data" / "weights" / "efficientnet_lite0.safetensors")
    assert locate("efficientnet_lite0").absolute() == beside
    cached = put(weights_cache() / "efficientnet_lite0.safetensors")
    assert locate("efficientnet_lite0") == cached
    named = put(tmp_path / "named" / "efficientnet_lite0.safetensors")
    monkeypatch.setenv("STEPPE_WEIGHTS", str(named.parent))
    assert locate("efficientnet_lite0") == named


def test_locate_looks_beside_the_data_that_a_caller_names(tmp_path):
    path = put(tmp_path / "elsewhere" / "weights" / "resnet50_keras.safetensors")
    assert locate("resnet50_keras", tmp_path / "elsewhere") == path
    with use_data_root(tmp_path / "elsewhere"):
        assert locate("resnet50_keras") == path
    assert locate("resnet50_keras") is None


def test_locate_finds_what_the_hub_has_cached(tmp_path):
    name = HUB[0]
    assert locate(name) is None
    folder = tmp_path / "hub" / f"models--timm--{name}"
    path = put(folder / "snapshots" / "abc" / "model.safetensors")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    assert locate(name) == path
    assert [its.name for its in available()] == [name]


def test_locate_refuses_names_that_lead_elsewhere(tmp_path):
    put(tmp_path / "cache" / "secret.safetensors")
    assert locate("../secret") is None


def test_available_has_the_best_first_and_weak_features_last():
    for name in ("tiny_vit_5m", "efficientnet_lite0", "resnet50_keras", "efficientnet_lite2"):
        put(weights_cache() / f"{name}.safetensors")
    found = available()
    assert [its.name for its in found] == ["efficientnet_lite2", "efficientnet_lite0", "resnet50_keras", "tiny_vit_5m"]
    assert found[0] == replace(
        PRETRAINED["efficientnet_lite2"], path=weights_cache() / "efficientnet_lite2.safetensors"
    )
    assert found[0].source == "efficientnet_lite2"


def test_available_takes_files_that_describe_themselves():
    about = {"architecture": "vit_s_p16", "mean": [0.5] * 3, "std": [0.25] * 3, "licence": "MIT"}
    path = put(weights_cache() / "mine.safetensors", about)
    put(weights_cache() / "bare.safetensors")
    (found,) = available()
    assert (found.name, found.model, found.licence, found.source) == ("mine", "vit_s_p16", "MIT", str(path))
    assert found.statistics == ((0.5,) * 3, (0.25,) * 3)


def test_available_asks_about_files_that_nothing_describes():
    put(weights_cache() / "bare.safetensors")
    (found,) = available(match=lambda path: "resnet18" if path.stem == "bare" else None)
    assert (found.model, found.statistics) == ("resnet18", None)


def test_sidecar_with_kerass_strides_means_resnet50_v1(tmp_path):
    strides = {f"layer{n}.0.{conv}": s for n in (2, 3, 4) for conv, s in (("conv1", [2, 2]), ("conv2", [1, 1]))}
    about = {"architecture": "resnet50", "strides": strides, "batch_norm_eps": 1e-3, "classes": None}
    found = describe_file(put(tmp_path / "w.safetensors", about))
    assert found
    assert (found.model, found.has_head) == ("resnet50_v1", False)
    assert found.patches == PRETRAINED["resnet50_keras"].patches


def test_folder_of_the_hub_describes_its_file(tmp_path):
    about = {"architecture": "convnext_tiny", "num_classes": 0, "pretrained_cfg": {"input_size": [3, 288, 288]}}
    about["pretrained_cfg"] |= {"mean": [0.1, 0.2, 0.3], "std": [1, 1, 1]}
    path = put(tmp_path / "convnext" / "model.safetensors")
    path.with_name("config.json").write_text(json.dumps(about))
    found = describe_file(path)
    assert found
    assert (found.name, found.model, found.image_size, found.has_head) == ("convnext", "convnext_tiny", 288, False)
    assert found.mean == (0.1, 0.2, 0.3)


def test_run_folder_describes_its_weights(tmp_path):
    path = put(tmp_path / "run" / "weights.safetensors")
    path.with_name("config.toml").write_text('[model]\nname = "vit_tiny_p2"\n')
    path.with_name("data.json").write_text('{"mean": [0.5], "std": [0.5], "image_size": 8}')
    found = describe_file(path)
    assert found
    assert (found.model, found.statistics, found.image_size) == ("vit_tiny_p2", ((0.5,), (0.5,)), 8)


def test_digest_tells_what_the_table_knows(tmp_path, monkeypatch):
    path = put(tmp_path / "renamed.safetensors")
    assert describe_file(path) is None
    known = PRETRAINED["efficientnet_lite0"]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(PRETRAINED, known.name, replace(known, package=replace(known.package, converted_sha256=digest)))
    found = describe_file(path)
    assert found
    assert found.name == "efficientnet_lite0"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"architecture": 3}', "\xff"])
def test_damaged_sidecar_is_none(tmp_path, text):
    path = put(tmp_path / "w.safetensors")
    path.with_suffix(".json").write_bytes(text.encode("latin-1"))
    assert describe_file(path) is None


def test_sidecar_with_odd_values_loses_them_alone(tmp_path):
    about = {"architecture": "resnet18", "mean": "grey", "std": [0, 0], "strides": 7, "image_size": "large"}
    found = describe_file(put(tmp_path / "w.safetensors", about))
    assert isinstance(found, Pretrained)
    assert (found.model, found.statistics, found.image_size) == ("resnet18", None, 224)
