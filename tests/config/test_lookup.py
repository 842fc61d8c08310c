"""Whether what a configuration names is there."""

from __future__ import annotations

import pytest

from steppe.config.lookup import check_data_name, check_device_name, check_model_name, check_weights, find_data
from steppe.errors import ConfigError, DataError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STEPPE_WEIGHTS", raising=False)
    return tmp_path


def test_known_data_set_has_no_path():
    assert find_data("digits") is None


def test_data_are_found_in_the_folder_of_data_sets(folder):
    (folder / "root" / "mine").mkdir(parents=True)
    (folder / "root" / "yours.npz").touch()
    assert find_data("mine", "root") == (folder / "root" / "mine").relative_to(folder)
    assert find_data("yours", "root") == (folder / "root" / "yours.npz").relative_to(folder)


def test_unknown_data_set_is_answered_with_the_nearest_folder(folder):
    (folder / "my_photos").mkdir()
    with pytest.raises(ConfigError, match="unknown data set 'my_photo', and no folder") as caught:
        check_data_name("my_photo")
    assert "'my_photos'" in caught.value.fix


@pytest.mark.parametrize("name", ["nosuch/photos", "./nosuch", "nosuch.npz", "x" * 300 + "/x", "a\0b/c"])
def test_missing_path_is_refused(name):
    with pytest.raises(DataError):
        check_data_name(name)


def test_misspelt_path_is_answered_with_the_nearest(folder):
    (folder / "sets" / "flowers").mkdir(parents=True)
    with pytest.raises(DataError, match="no such folder") as caught:
        check_data_name("sets/flower/")
    assert caught.value.fix == "did you mean 'sets/flowers'?"


def test_file_of_another_kind_is_no_data(folder):
    (folder / "photos.zip").touch()
    with pytest.raises(DataError, match=r"neither a folder nor an \.npz file"):
        check_data_name("photos.zip")


def test_canonical_data_name_is_returned():
    assert check_data_name("Digits") == "digits"


@pytest.mark.parametrize(
    "name", ["resnet18", "wrn_10_1", "convnext_atto", "timm:resnet18.a1_in1k", "resnet18+resnet34"]
)
def test_known_model_passes(name):
    check_model_name(name)


@pytest.mark.parametrize("name", ["resnet19x", "timm:nosuch", "resnet18+nosuch"])
def test_unknown_model_is_refused(name):
    with pytest.raises(ConfigError, match="unknown model"):
        check_model_name(name)


def test_weights_that_are_not_there_are_refused(folder):
    (folder / "own.safetensors").touch()
    for source in ("own.safetensors", "timm", "timm:resnet18", "hf-hub:some/where", "auto", "run:x"):
        check_weights(source)
    for source in ("nosuch.safetensors", "resnet50_keras", "own.safetensors+nosuch"):
        with pytest.raises(ConfigError, match="weights"):
            check_weights(source)


@pytest.mark.parametrize("name", ["tpu", "cuda:x", "meta", ""])
def test_unknown_device_is_refused(name):
    with pytest.raises(ConfigError, match="steppe computes on cpu, cuda, mps"):
        check_device_name(name)


def test_known_device_passes():
    assert [check_device_name(name) for name in ("cpu", "cuda:1", "mps")] == ["cpu", "cuda:1", "mps"]
