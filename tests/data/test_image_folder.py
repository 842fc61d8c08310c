from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from steppe.config import DataConfig
from steppe.data import load
from steppe.errors import DataError


def picture(path, mode: str = "RGB", size: tuple[int, int] = (16, 16), value: int = 100) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(value)
    if mode == "I;16":
        Image.fromarray(np.full(size[::-1], value * 256, np.uint16)).save(path)
    else:
        image = Image.fromarray(rng.integers(0, 256, (*size[::-1], 3), np.uint8))
        image.convert(mode).save(path)


@pytest.fixture
def folder(tmp_path):
    for name in ("cat", "dog"):
        for number in range(10):
            picture(tmp_path / "pets" / name / f"{number}.png", value=number)
    return tmp_path / "pets"


def read(folder, **options):
    return load(DataConfig(name=str(folder), **options))


def complaint(folder, **options) -> str:
    with pytest.raises(DataError) as caught:
        read(folder, **options)
    return str(caught.value)


def test_a_plain_folder_is_divided(folder):
    dataset = read(folder)
    assert dataset.classes == ("cat", "dog")
    assert dataset.describe()["examples"] == {"train": 14, "val": 2, "test": 4}
    assert dataset.train.images.shape[1:] == (3, 16, 16)
    expected = np.asarray(Image.open(folder / "cat" / "0.png"))
    everything = np.concatenate([s.images.numpy() for s in (dataset.train, dataset.val, dataset.test)])
    assert any(np.array_equal(e.transpose(1, 2, 0), expected) for e in everything)


@pytest.mark.parametrize("val", ["val", "valid", "validation", "Val"])
def test_given_splits_are_kept(tmp_path, val):
    for split, count in (("train", 5), (val, 2), ("test", 3)):
        for name in ("a", "b"):
            for number in range(count):
                picture(tmp_path / "d" / split / name / f"{number}.png", value=number)
    assert read(tmp_path / "d").describe()["examples"] == {"train": 10, "val": 4, "test": 6}


def test_images_of_many_sizes_need_a_size(folder):
    picture(folder / "cat" / "wide.png", size=(40, 20))
    text = complaint(folder)
    assert "--image-size 16" in text
    assert "come in 2 sizes" in text
    dataset = read(folder, image_size=8)
    assert dataset.image_size == 8


def test_images_of_one_size_that_are_not_square_are_called_so(tmp_path):
    for name in ("cat", "dog"):
        for number in range(4):
            picture(tmp_path / "d" / name / f"{number}.png", size=(40, 20))
    text = complaint(tmp_path / "d")
    assert "the images are not square" in text
    assert "sizes" not in text


def test_one_class(tmp_path):
    picture(tmp_path / "d" / "only" / "1.png")
    assert "one class, 'only'" in complaint(tmp_path / "d")
    (tmp_path / "e").mkdir()
    assert "no class folders" in complaint(tmp_path / "e")


def test_an_empty_class(folder):
    (folder / "empty").mkdir()
    (folder / "empty" / "notes.txt").write_text("not an image")
    text = complaint(folder)
    assert "class 'empty' has no images" in text
    assert str(folder / "empty") in text


def test_a_truncated_jpeg(folder):
    picture(folder / "cat" / "whole.jpg")
    data = (folder / "cat" / "whole.jpg").read_bytes()
    (folder / "cat" / "cut.jpg").write_bytes(data[: len(data) // 2])
    (folder / "cat" / "junk.png").write_bytes(b"junk")
    text = complaint(folder)
    assert "2 image(s) cannot be read" in text
    assert "cat/cut.jpg" in text
    assert "cat/junk.png" in text


@pytest.mark.parametrize(("mode", "suffix"), [("I;16", "png"), ("CMYK", "jpg"), ("P", "png"), ("RGBA", "png")])
def test_odd_images_are_refused_or_converted(folder, mode, suffix):
    picture(folder / "cat" / f"odd.{suffix}", mode=mode, value=100)
    text = complaint(folder)
    assert f"cat/odd.{suffix} ({mode})" in text
    assert "--odd-images convert" in text
    dataset = read(folder, odd_images="convert")
    assert sum(dataset.describe()["examples"].values()) == 21
    if mode == "I;16":
        everything = np.concatenate([s.images.numpy() for s in (dataset.train, dataset.val, dataset.test)])
        assert any((e == 100).all() for e in everything)


def test_a_photograph_taken_sideways_is_turned(folder):
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[:8] = 255  # bright above
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to see it upright
    Image.fromarray(pixels).save(folder / "cat" / "phone.png", exif=exif)
    dataset = read(folder)
    everything = np.concatenate([s.images.numpy() for s in (dataset.train, dataset.val, dataset.test)])
    turned = np.zeros((3, 16, 16), np.uint8)
    turned[:, :, 8:] = 255  # then it is bright on the right
    assert any(np.array_equal(e, turned) for e in everything)


def test_grey_images_are_fine(folder):
    picture(folder / "cat" / "grey.png", mode="L")
    assert read(folder).channels == 3


def test_splits_must_have_the_same_classes(tmp_path):
    for split, names in (("train", "abc"), ("test", "ab")):
        for name in names:
            picture(tmp_path / "d" / split / name / "1.png")
            picture(tmp_path / "d" / split / name / "2.png")
    assert "test and train differ in classes: c" in complaint(tmp_path / "d")
    assert "no train folder" in complaint_without_train(tmp_path)


def complaint_without_train(tmp_path) -> str:
    picture(tmp_path / "f" / "test" / "a" / "1.png")
    return complaint(tmp_path / "f")


def test_a_decompression_bomb_is_refused(folder, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    picture(folder / "cat" / "huge.png", size=(40, 40))
    assert "cat/huge.png" in complaint(folder, image_size=8)


def test_images_none_of_which_can_be_read_are_not_called_oblong(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_text("junk")
    assert "2 image(s) cannot be read" in complaint(tmp_path)


def test_litter_of_macos_is_passed_over(folder):
    plain = read(folder)
    (folder / ".DS_Store").write_bytes(b"Bud1")
    for litter in (
        folder / "cat" / "._0.png",
        folder / "__MACOSX" / "cat" / "._0.png",
        folder / "cat" / ".x" / "0.png",
    ):
        litter.parent.mkdir(parents=True, exist_ok=True)
        litter.write_bytes(b"\x00\x05\x16\x07")
    found = read(folder)
    assert found.classes == ("cat", "dog")
    assert found.fingerprint == plain.fingerprint


def test_broken_exif_is_not_warned_of(folder, recwarn):
    cut = b"Exif\0\0II*\0\x08\0\0\0\x05\0\x12\x01\x03\0\x01\0\0\0\x06"
    Image.new("RGB", (16, 16), "red").save(folder / "cat" / "cut.jpg", exif=cut)
    assert len(read(folder).classes) == 2
    assert not recwarn.list
