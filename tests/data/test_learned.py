"""The same images are known again however they are kept, and others are not."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import steppe
from PIL import Image

from steppe.config import DataConfig
from steppe.data import (
    Dataset,
    Keeping,
    as_learned,
    check_unchanged,
    dataset,
    has_same_images,
    is_learned,
    list_changes,
    load,
)
from steppe.data.folder import Storage
from steppe.errors import DataError
from steppe.runs import Run

WAYS: tuple[Storage, ...] = ("memory", "cache", "stream")


@pytest.fixture
def folder(tmp_path) -> Path:
    rng = np.random.default_rng(0)
    for number in range(24):
        place = tmp_path / "photos" / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(place / f"{number:02}.bmp")
    return tmp_path / "photos"


def read(folder: Path, way: Storage) -> Dataset:
    return load(DataConfig(name=str(folder), image_size=8), keeping=Keeping(way, cache=folder.parent / "cache"))


def change_a_pixel(folder: Path) -> None:
    """The file keeps its name and size."""
    file = sorted(folder.rglob("*.bmp"))[3]
    content = bytearray(file.read_bytes())
    content[-20:] = bytes(255 - value for value in content[-20:])
    file.write_bytes(content)


@pytest.mark.parametrize("here", WAYS)
@pytest.mark.parametrize("there", WAYS)
def test_the_same_images_are_known_again(folder, there, here):
    about = read(folder, there).describe()
    found = read(folder, here)
    assert is_learned(found, about)
    assert as_learned(found, about).fingerprint == about["fingerprint"]
    about.pop("files")  # a run of an earlier version
    assert is_learned(found, about)
    (folder / "a" / "00.bmp").unlink()
    assert not is_learned(read(folder, here), about)


def test_other_pixels_are_noticed_where_both_sides_know_them(folder):
    about, old = read(folder, "memory").describe(), read(folder, "memory").describe()
    old.pop("files")
    change_a_pixel(folder)
    assert not is_learned(read(folder, "memory"), about)
    assert not is_learned(read(folder, "stream"), old)
    assert is_learned(read(folder, "stream"), about)  # by name and size, as between two that stream


def test_statistics_are_those_of_the_run(folder, monkeypatch):
    about = read(folder, "memory").describe()
    monkeypatch.setattr(dataset, "SAMPLE", 4)
    found = read(folder, "stream")
    assert list(found.mean) != about["mean"]
    known = as_learned(found, about)
    assert (list(known.mean), list(known.std)) == (about["mean"], about["std"])
    for odd in ({"mean": [0.5]}, {"std": [1, 1, 0]}, {"mean": "no"}, {"std": [float("nan")] * 3}):
        assert as_learned(found, about | odd).mean == found.mean


def test_a_run_is_measured_and_goes_on_however_its_images_are_kept(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPPE_CACHE", str(tmp_path / "cache"))
    common = ("--data", folder, "--image-size", 8, "--model", "mlp_8_8", "--batch-size", 4, "--epochs", 1)
    scores = []
    for there in ("memory", "cache"):
        assert steppe("train", *common, "--keep", there, "-o", f"run-{there}") == 0
        for here in WAYS:
            command = ("evaluate", f"run-{there}", "--only", "scores", "--again", "--keep", here)
            assert steppe(*command) == 0, capsys.readouterr().err
            scores.append(Run(f"run-{there}").read("robustness.json")["scores"]["nll"])
        assert steppe("train", *common, "--keep", "stream", "-o", f"run-{there}") == 0
    assert scores == [scores[0]] * 6


def test_what_has_changed_is_named(folder):
    about = read(folder, "memory").describe()
    check_unchanged(about, read(folder, "memory"))
    check_unchanged({}, read(folder, "memory"))
    change_a_pixel(folder)
    (folder / "a" / "00.bmp").unlink()
    with pytest.raises(DataError) as caught:
        check_unchanged(about, read(folder, "memory"), where="here")
    assert "not those this run was made with: 18 training images then, 17 now" in caught.value.what
    assert caught.value.where == "here"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"classes": ["a", "c"]}, "the class 'c' then is 'b' now"),
        ({"classes": ["a", "b", "c"]}, "3 classes then, 2 now"),
        ({"stored_size": 16}, "16 pixels a side then, 8 now"),
        ({"channels": 1}, "1 channels then, 3 now"),
        ({"examples": {"val": 7}}, "7 validation images then, 2 now"),
        ({"fingerprint": "other", "splits": {"test": {"pixels": "other"}}}, "the test images are others"),
    ],
)
def test_each_change_has_its_words(folder, change, expected):
    now = read(folder, "memory").describe()
    assert expected in list_changes({**now, **change}, now)


@pytest.mark.parametrize("here", WAYS)
@pytest.mark.parametrize("there", WAYS)
def test_a_test_folder_is_the_same_whatever_else_there_is(tmp_path, folder, there, here):
    (tmp_path / "set").mkdir()
    folder.rename(tmp_path / "set" / "train")
    shutil.copytree(tmp_path / "set" / "train", tmp_path / "set" / "test")
    before = read(tmp_path / "set", there).describe()
    (tmp_path / "set" / "train" / "a" / "00.bmp").unlink()
    after = read(tmp_path / "set", here).describe()
    assert [has_same_images(before, after, split) for split in ("train", "test")] == [False, True]
    (tmp_path / "set" / "test" / "a" / "00.bmp").rename(tmp_path / "set" / "test" / "a" / "99.bmp")
    assert has_same_images(before, read(tmp_path / "set", here).describe(), "test") is False


def test_images_without_a_record_may_be_any(folder):
    about = read(folder, "memory").describe()
    assert has_same_images(about, {"examples": about["examples"]}, "test") is None
