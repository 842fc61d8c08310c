"""Sets that are only tested on, laid out small and by hand as their publishers do."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from steppe.config import DataConfig
from steppe.data import (
    corrupt,
    corrupted_in_order,
    find_corrupted,
    find_named,
    in_order,
    load,
    load_variant,
    read_corrupted,
)
from steppe.errors import ConfigError, DataError

CPU = torch.device("cpu")
CLASSES = ("n01440764", "n01443537", "n01484850")


def picture(path, value: int, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.full((24, 32, 3), value, np.uint8))
    image.convert(mode).save(path)


@pytest.fixture
def imagenet(tmp_path):
    """Six training and two validation images of each of three classes; the values tell them apart."""
    number = 0
    for label, name in enumerate(CLASSES):
        for k in range(6):
            picture(tmp_path / "imagenet" / "train" / name / f"{name}_{k}.JPEG", 10 * label + k)
        for _ in range(2):
            number += 1
            mode = "CMYK" if number == 1 else "RGB"
            picture(tmp_path / "imagenet" / "val" / name / f"ILSVRC2012_val_{7 - number:08d}.JPEG", 100 + number, mode)
    return tmp_path


def test_imagenets_val_is_the_test_set(imagenet):
    assert find_named("imagenet", imagenet) == str(imagenet / "imagenet")
    dataset = load(DataConfig(name="imagenet", val_fraction=0.2), imagenet)
    assert dataset.classes == CLASSES
    assert dataset.describe()["examples"] == {"train": 15, "val": 3, "test": 6}
    assert (dataset.train.shape, dataset.image_size) == ((3, 24, 24), 224)
    (imagenet / "imagenet" / "val").rename(imagenet / "imagenet" / "elsewhere")
    with pytest.raises(DataError, match="class folders"):
        load(DataConfig(name="imagenet"), imagenet)


def test_v2_and_r_are_labelled_with_the_trained_classes(imagenet):
    dataset = load(DataConfig(name="imagenet", val_fraction=0.2), imagenet)
    for name in ("imagenet_v2", "imagenet_r", "imagenet_real"):
        with pytest.raises(DataError, match="put into that folder"):
            load_variant(name, dataset, imagenet)
    with pytest.raises(ConfigError, match="did you mean 'imagenet_r'"):
        load_variant("imagenet_s", dataset, imagenet)
    for label in ("0", "2", "1"):
        picture(imagenet / "imagenetv2-matched-frequency-format-val" / label / "x.jpeg", 50 * int(label))
    v2 = load_variant("imagenet_v2", dataset, imagenet)
    assert v2.allowed is None
    assert [round(v / 50) for v in v2.split.images[:, 0, 0, 0].tolist()] == v2.split.labels.tolist()
    picture(imagenet / "imagenet-r" / CLASSES[1] / "art_0.jpg", 7)
    r = load_variant("imagenet_r", dataset, imagenet)
    assert (r.allowed, r.split.labels.tolist()) == ((1,), [1])
    picture(imagenet / "imagenet-r" / "n99999999" / "art_0.jpg", 7)
    with pytest.raises(DataError, match="'n99999999' is not a class"):
        load_variant("imagenet_r", dataset, imagenet)


def test_real_labels_follow_the_numbers_of_the_files(imagenet):
    """Image number n of the list stands wherever its file does: here in the opposite order."""
    (imagenet / "imagenet" / "real.json").write_text(json.dumps([[2], [0, 2], [], [1], [0], [0, 1]]))
    dataset = load(DataConfig(name="imagenet", val_fraction=0.2), imagenet)
    variant = load_variant("imagenet_real", dataset, imagenet)
    assert variant.split is dataset.test
    assert variant.answers is not None
    assert [row.nonzero()[:, 0].tolist() for row in variant.answers] == [[0], [0, 1], [], [1], [2], [0, 2]]
    (imagenet / "imagenet" / "real.json").write_text("[[0]]")
    with pytest.raises(DataError, match="no number of a validation image"):
        load_variant("imagenet_real", dataset, imagenet)


def test_the_published_cifar_corruptions_are_preferred(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (20, 32, 32, 3), np.uint8), np.arange(20) % 2
    np.savez(tmp_path / "cifar10.npz", x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
    dataset = load(DataConfig(name="cifar10", val_fraction=0.2), tmp_path)
    assert find_corrupted(dataset, tmp_path) is None
    assert read_corrupted(dataset, tmp_path, "fog", 3) is None
    images = torch.cat([b for b, _ in _corrupted(dataset, tmp_path)])
    made = corrupt(dataset.test.images, "fog", 3, indices=torch.arange(10))
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (dataset.mean, dataset.std))
    assert torch.allclose(images, (made / 255 - mean) / std, atol=1e-5)
    (tmp_path / "CIFAR-10-C").mkdir()
    published = np.stack([np.full((32, 32, 3), 20 * s + k, np.uint8) for s in range(5) for k in range(10)])
    np.save(tmp_path / "CIFAR-10-C" / "fog.npy", published)
    np.save(tmp_path / "CIFAR-10-C" / "labels.npy", np.tile(y[:10], 5).astype(np.uint8))
    split = read_corrupted(dataset, tmp_path, "fog", 3)
    assert split is not None
    assert split.images[:, 0, 0, 0].tolist() == [40 + k for k in range(10)]
    assert split.labels.tolist() == y[:10].tolist()
    images = torch.cat([b for b, _ in _corrupted(dataset, tmp_path)])
    expected = torch.cat([b for b, _ in in_order(split, dataset, batch_size=10, device=CPU)])
    assert torch.equal(images, expected)
    assert read_corrupted(dataset, tmp_path, "snow", 3) is None
    np.save(tmp_path / "CIFAR-10-C" / "snow.npy", published[:7])
    with pytest.raises(DataError, match="five severities"):
        read_corrupted(dataset, tmp_path, "snow", 3)


def _corrupted(dataset, root):
    return corrupted_in_order(dataset.test, dataset, "fog", 3, batch_size=4, device=CPU, root=root)


@pytest.mark.parametrize("category", ["", "weather/"])
def test_the_published_imagenet_corruptions_are_read(imagenet, category):
    dataset = load(DataConfig(name="imagenet", val_fraction=0.2), imagenet)
    for label, name in enumerate(CLASSES):
        picture(imagenet / "ImageNet-C" / f"{category}fog" / "3" / name / "x.JPEG", 60 * label)
    split = read_corrupted(dataset, imagenet, "fog", 3)
    assert split is not None
    assert split.labels.tolist() == [0, 1, 2]
    assert split.images.float().mean((1, 2, 3)).tolist() == pytest.approx([0, 60, 120], abs=2)
    assert read_corrupted(dataset, imagenet, "fog", 4) is None
