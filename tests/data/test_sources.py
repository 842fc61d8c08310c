from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from steppe.config import AugmentConfig, DataConfig
from steppe.data import DATASETS, TOYS, Loader, Source, Split, divide, find_named, in_order, load, make_toy, sources
from steppe.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def digits():
    return load(DataConfig())


def test_digits_are_divided_once_and_for_all(digits):
    assert digits.describe()["examples"] == {"train": 1295, "val": 143, "test": 359}
    assert digits.fingerprint == load(DataConfig()).fingerprint
    assert digits.fingerprint != load(DataConfig(split_seed=1)).fingerprint
    splits = (digits.train, digits.val, digits.test)
    seen = torch.cat([torch.cat([s.images.flatten(1), s.labels[:, None].byte()], dim=1) for s in splits])
    from sklearn.datasets import load_digits

    bunch = load_digits()
    original = np.column_stack([np.rint(bunch.data * 255 / 16), bunch.target]).astype(np.uint8)
    assert sorted(map(bytes, seen.numpy())) == sorted(map(bytes, original))
    assert digits.classes == tuple(map(str, bunch.target_names))


def test_digits_are_the_same_where_scikit_learn_keeps_them_elsewhere(digits, monkeypatch):
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: None)
    assert load(DataConfig()).fingerprint == digits.fingerprint


def test_splits_are_stratified(digits):
    shares = [np.bincount(s.labels.numpy(), minlength=10) / len(s) for s in (digits.train, digits.val, digits.test)]
    assert np.abs(shares[0] - shares[1]).max() < 0.01
    assert np.abs(shares[0] - shares[2]).max() < 0.01


def test_statistics_are_those_of_the_training_images(digits):
    pixels = digits.train.images.double() / 255
    assert digits.mean[0] == pytest.approx(pixels.mean().item(), abs=1e-12)
    assert digits.std[0] == pytest.approx(pixels.std(correction=0).item(), abs=1e-12)


def test_statistics_may_be_those_that_weights_expect(tmp_path):
    pixels = np.arange(20 * 4 * 4 * 3, dtype=np.uint32).reshape(20, 4, 4, 3).astype(np.uint8)
    np.savez(tmp_path / "colour.npz", x_train=pixels, y_train=np.arange(20) % 2)
    dataset = load(DataConfig(name="colour", statistics="efficientnet_lite"), tmp_path)
    for images, _ in in_order(dataset.test, dataset, batch_size=20, device=torch.device("cpu")):
        assert torch.allclose(images, (dataset.test.images.float() - 127) / 128, atol=1e-6)
    assert dataset.describe()["mean"] == [127 / 255] * 3
    own = load(DataConfig(name="colour", statistics="own"), tmp_path)
    assert own.mean == load(DataConfig(name="colour"), tmp_path).mean
    assert own.fingerprint == dataset.fingerprint
    assert own.mean != dataset.mean
    with pytest.raises(ConfigError, match="colour images, and 'digits' has 1 channel"):
        load(DataConfig(statistics="imagenet"))


def make_loader(dataset, **changes) -> Loader:
    options = {"batch_size": 100, "augment": AugmentConfig(), "seed": 0, "device": torch.device("cpu")}
    return Loader(dataset, **{**options, **changes})


def test_an_epoch_shows_every_image_at_most_once_in_an_order_of_its_own(digits):
    loader = make_loader(digits)
    assert len(loader) == 12
    epochs = [torch.cat([loader.batch(e, i)[0].flatten(1) for i in range(12)]) for e in range(2)]
    assert len(torch.unique(epochs[0], dim=0)) == 1200
    assert not torch.equal(epochs[0], epochs[1])
    assert epochs[0].mean().abs() < 0.02
    assert (epochs[0].std() - 1).abs() < 0.02


def test_a_batch_depends_on_seed_epoch_and_index_alone(digits):
    crop = AugmentConfig(crop_padding=2, flip=True)
    one, two = make_loader(digits, augment=crop), make_loader(digits, augment=crop)
    for epoch, index in ((3, 5), (0, 0), (3, 5)):
        assert torch.equal(one.batch(epoch, index)[0], two.batch(epoch, index)[0])
    assert not torch.equal(one.batch(0, 0)[0], make_loader(digits, augment=crop, seed=1).batch(0, 0)[0])


def test_a_batch_larger_than_the_set(digits):
    assert len(make_loader(digits, batch_size=5000)) == 1
    assert make_loader(digits, batch_size=5000).batch(0, 0)[0].shape[0] == 1295


def test_in_order_covers_a_split(digits):
    batches = list(in_order(digits.test, digits, batch_size=100, device=torch.device("cpu")))
    assert [len(y) for _, y in batches] == [100, 100, 100, 59]
    assert torch.equal(torch.cat([y for _, y in batches]), digits.test.labels)


def write_npz(path, **changes):
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (40, 8, 8, 3), np.uint8),
        "y_train": np.arange(40) % 4,
        "x_test": rng.integers(0, 256, (12, 8, 8, 3), np.uint8),
        "y_test": np.arange(12) % 4,
    }
    arrays.update(changes)
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})
    return path


def test_npz_by_path_and_by_name(tmp_path):
    dataset = load(DataConfig(name=str(write_npz(tmp_path / "mine.npz"))))
    assert dataset.describe()["examples"] == {"train": 36, "val": 4, "test": 12}
    assert dataset.channels == 3
    write_npz(tmp_path / "cifar10.npz")
    assert load(DataConfig(name="cifar10"), tmp_path).classes == ("0", "1", "2", "3")
    assert find_named("cifar10", tmp_path) == str(tmp_path / "cifar10.npz")
    assert find_named("cifar100", tmp_path) is None
    resized = load(DataConfig(name="cifar10", image_size=16), tmp_path)
    assert resized.train.images.shape[1:] == (3, 8, 8)
    assert resized.image_size == 16
    loader = make_loader(resized, batch_size=4)
    assert loader.batch(0, 0)[0].shape == (4, 3, 16, 16)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"x_train": None, "y_train": None}, "lacks x_train and y_train"),
        ({"y_train": None}, "only one is there"),
        ({"x_train": np.zeros((40, 8, 8, 3), np.float32)}, "x_train is float32"),
        ({"x_train": np.zeros((40, 8, 9, 3), np.uint8)}, "square"),
        ({"y_train": np.zeros(40, int)}, "label 1"),
        ({"y_train": np.zeros(39, int)}, "length 39"),
        ({"y_train": np.full(40, -1)}, "from 0"),
        ({"y_test": np.arange(12) - 3}, "y_test holds the label -3"),
        ({"y_test": np.arange(12) % 6}, "y_test holds classes that y_train does not: labels 4 to 5"),
        ({"y_test": np.arange(12) % 6}, "fix:   leave those images out of test"),
        ({"y_train": np.full(40, 10**10)}, "below a million"),
        ({"y_train": np.full(40, 2**63, np.uint64)}, "below a million"),
        ({"y_test": None}, "only one is there"),
        ({"x_train": np.zeros((40, 0, 0, 3), np.uint8)}, "square"),
        ({"y_train": np.array([object()] * 40)}, "not a readable"),
        ({"x_test": np.zeros((12, 4, 4, 3), np.uint8)}, "different shapes"),
        ({"y_train": np.r_[np.zeros(38, int), 1, 1], "x_test": None, "y_test": None}, "has 2 image(s): too few"),
        ({"y_train": np.r_[np.zeros(38, int), 1, 1], "x_test": None, "y_test": None}, "it takes 3 at least"),
    ],
)
def test_a_bad_npz_is_explained(tmp_path, changes, expected):
    path = write_npz(tmp_path / "mine.npz", **changes)
    with pytest.raises(DataError) as caught:
        load(DataConfig(name=str(path)))
    assert expected in str(caught.value)


def test_a_pickle_bomb_is_not_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "exploded"),)

    (tmp_path / "bomb.npz").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DataError):
        load(DataConfig(name=str(tmp_path / "bomb.npz")))
    np.savez(tmp_path / "inner.npz", x_train=np.array([Bomb()]), y_train=np.zeros(1, int))
    with pytest.raises(DataError):
        load(DataConfig(name=str(tmp_path / "inner.npz")))
    assert not (tmp_path / "exploded").exists()


def test_unknown_and_missing_sets_are_explained(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'digits'"):
        load(DataConfig(name="digit"))
    with pytest.raises(DataError, match="no such folder"):
        load(DataConfig(name="some/where"))
    with pytest.raises(DataError, match="no such file"):
        load(DataConfig(name="none.npz"))


def test_a_set_that_cannot_be_downloaded_says_what_to_put_where(tmp_path, monkeypatch):
    import torchvision.datasets

    def offline(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(torchvision.datasets.MNIST, "download", offline)
    with pytest.raises(DataError) as caught:
        load(DataConfig(name="mnist"), tmp_path)
    assert "mnist.npz" in str(caught.value)
    assert "STEPPE_DATA" in str(caught.value)


def test_torchvisions_own_layout_is_read(tmp_path):
    """MNIST's files in their own format, written by hand."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, count in (("train", 20), ("t10k", 10)):
        images = np.arange(count * 784, dtype=np.int64).astype(np.uint8)
        header = b"".join(n.to_bytes(4, "big") for n in (2051, count, 28, 28))
        (raw / f"{part}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        labels = (np.arange(count) % 10).astype(np.uint8)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(
            (2049).to_bytes(4, "big") + count.to_bytes(4, "big") + labels.tobytes()
        )
    dataset = load(DataConfig(name="mnist"), tmp_path)
    assert dataset.describe()["examples"] == {"train": 10, "val": 10, "test": 10}
    assert dataset.test.images[1, 0, 0, :3].tolist() == [16, 17, 18]


def test_torchvisions_pets_and_flowers_are_read(tmp_path, monkeypatch):
    from scipy.io import savemat
    from torchvision.datasets import Flowers102

    pets, flowers = tmp_path / "oxford-iiit-pet", tmp_path / "flowers-102"
    for path in (pets / "images", pets / "annotations", flowers / "jpg"):
        path.mkdir(parents=True)
    lines: dict[str, list[str]] = {"trainval": [], "test": []}
    for split, count in (("trainval", 6), ("test", 2)):
        for number in range(count):
            for label, name in enumerate(("Abyssinian", "american_bulldog"), 1):
                Image.fromarray(np.full((40, 60, 3), 9 * number, np.uint8)).save(
                    pets / "images" / f"{name}_{split}{number}.jpg"
                )
                lines[split].append(f"{name}_{split}{number} {label} 1 1")
        (pets / "annotations" / f"{split}.txt").write_text("\n".join(lines[split]))
    dataset = load(DataConfig(name="pets", val_fraction=0.2), tmp_path)
    assert dataset.classes == ("Abyssinian", "American Bulldog")
    assert dataset.describe()["examples"] == {"train": 10, "val": 2, "test": 4}
    assert (dataset.train.shape, dataset.image_size) == ((3, 40, 40), 224)
    for number in range(1, 307):
        Image.fromarray(np.full((20, 30, 3), number % 256, np.uint8)).save(flowers / "jpg" / f"image_{number:05d}.jpg")
    savemat(flowers / "imagelabels.mat", {"labels": np.arange(306) % 102 + 1})
    thirds = np.arange(1, 307).reshape(3, 102)
    savemat(flowers / "setid.mat", {"trnid": thirds[2], "valid": thirds[0], "tstid": thirds[1]})
    monkeypatch.setattr(Flowers102, "_check_integrity", lambda _: True)
    dataset = load(DataConfig(name="flowers102", image_size=16), tmp_path)
    assert dataset.describe()["examples"] == {"train": 102, "val": 102, "test": 102}
    assert dataset.classes[0] == "pink primrose"
    assert dataset.test.labels.tolist() == list(range(102))
    assert dataset.test.images[5, 0, 8, 8].item() == pytest.approx(108, abs=2)


def test_a_class_that_cannot_be_divided():
    source = Source(("a", "b"), Split(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 0, 0, 1])))
    with pytest.raises(DataError, match="'b' has 1 image"):
        divide(source, DataConfig())


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "mnist"])
def test_real_sets_where_they_are(name):
    root = os.environ.get("STEPPE_DATA")
    if not root or not find_named(name, Path(root)):
        pytest.skip(f"{name} is not under $STEPPE_DATA")
    dataset = load(DataConfig(name=name), root)
    assert len(dataset.test) == 10_000
    assert len(dataset.classes) == {"cifar10": 10, "cifar100": 100, "mnist": 10}[name]
    assert name in DATASETS


@pytest.mark.parametrize("name", ["pets", "flowers102"])
def test_real_photographs_where_they_are(name):
    root = os.environ.get("STEPPE_DATA")
    if not root or not find_named(name, Path(root)):
        pytest.skip(f"{name} is not under $STEPPE_DATA")
    dataset = load(DataConfig(name=name), root)
    assert (len(dataset.test), len(dataset.classes)) == {"pets": (3669, 37), "flowers102": (6149, 102)}[name]
    assert dataset.image_size == 224
    assert not dataset.classes[0].isdigit()


def test_fractions_are_nested_and_of_every_class(digits):
    kept = {}
    for share in (0.1, 0.25, 0.5, 1.0):
        part = load(DataConfig(fraction=share))
        kept[share] = {bytes(i.numpy()) for i in part.train.images}
        assert torch.equal(part.val.images, digits.val.images)
        counts = np.bincount(part.train.labels.numpy())
        expected = share * np.bincount(digits.train.labels.numpy())
        assert np.abs(counts - expected).max() <= 0.5
    assert kept[0.1] < kept[0.25] < kept[0.5] < kept[1.0]
    assert kept[1.0] == {bytes(i.numpy()) for i in digits.train.images}
    assert kept[0.1] == {bytes(i.numpy()) for i in load(DataConfig(fraction=0.1)).train.images}
    other = {bytes(i.numpy()) for i in load(DataConfig(fraction=0.1, split_seed=1)).train.images}
    assert kept[0.1] != other
    tiny = load(DataConfig(fraction=1e-6))
    assert np.bincount(tiny.train.labels.numpy()).tolist() == [1] * 10


def test_real_class_names_and_extra_arrays(tmp_path):
    labels = np.arange(200) % 100
    images = np.zeros((200, 8, 8, 3), np.uint8)
    coarse = {"c_train": labels, "anything": np.zeros(3)}
    write_npz(tmp_path / "cifar100.npz", x_train=images, y_train=labels, x_test=images, y_test=labels, **coarse)
    dataset = load(DataConfig(name="cifar100"), tmp_path)
    assert dataset.classes[:3] == ("apple", "aquarium_fish", "baby")
    assert (len(set(dataset.classes)), dataset.classes[99]) == (100, "worm")


def test_own_sets_are_found_under_the_root_by_name(tmp_path):
    write_npz(tmp_path / "mine.npz")
    assert len(load(DataConfig(name="mine"), tmp_path).test) == 12
    for number in range(8):
        path = tmp_path / "zoo" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(path)
    assert load(DataConfig(name="zoo"), tmp_path).classes == ("a", "b")


@pytest.mark.parametrize("name", list(TOYS))
def test_toys_are_two_classes_in_the_plane(name):
    dataset = load(DataConfig(name=name, variance=0.0))
    assert dataset.describe()["examples"] == {"train": 1800, "val": 200, "test": 2000}
    assert (dataset.train.shape, dataset.image_size, dataset.channels) == ((2, 1, 1), 1, 2)
    clean, noisy = (make_toy(name, variance=v, count=4000, seed=3) for v in (0.0, 15.0))
    assert clean.images.abs().max() <= 15.01
    noise = noisy.images - clean.images
    assert noise.var(0).flatten().tolist() == pytest.approx([15, 15], rel=0.08)
    assert torch.equal(clean.labels, noisy.labels)
    assert clean.labels.float().mean() == 0.5
    distance = torch.cdist(clean.images[clean.labels == 0].flatten(1), clean.images[clean.labels == 1].flatten(1))
    assert distance.min() > 1
    batch, _ = make_loader(load(DataConfig(name=name, variance=5)), batch_size=800).batch(0, 0)
    assert batch.mean((0, 2, 3)).abs().max() < 0.1
    assert batch.std((0, 2, 3)).tolist() == pytest.approx([1, 1], abs=0.1)
    assert not torch.equal(
        load(DataConfig(name=name, split_seed=1)).train.images, load(DataConfig(name=name)).train.images
    )


def test_variance_is_for_toys_alone():
    with pytest.raises(ConfigError, match="2-D toys"):
        load(DataConfig(variance=3.0))


@pytest.mark.parametrize("name", ["fashion_mnist", "pets", "flowers102", "imagenet", "cifar100"])
def test_every_set_says_what_to_put_where(tmp_path, monkeypatch, name):
    import urllib.request

    def offline(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", offline)
    assert find_named(name, tmp_path) is None
    with pytest.raises(DataError) as caught:
        load(DataConfig(name=name), tmp_path)
    text = str(caught.value)
    assert str(tmp_path) in text
    assert DATASETS[name].bring.split(" ")[0] in text


def test_damaged_pickles_of_torchvisions_layout_are_not_opened(tmp_path, monkeypatch):
    """CIFAR's files are pickles: without the right checksum none is read."""
    import urllib.request

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "exploded"),)

    def offline(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", offline)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in ("batches.meta", "test_batch", *(f"data_batch_{i}" for i in range(1, 6))):
        (folder / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DataError, match="cifar-10-batches-py"):
        load(DataConfig(name="cifar10"), tmp_path)
    assert not (tmp_path / "exploded").exists()


def test_members_that_are_no_arrays_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "set.npz", "w") as file:
        file.writestr("x_train.npy", b"not an array")
        file.writestr("y_train.npy", b"neither")
    with pytest.raises(DataError, match="not a readable"):
        load(DataConfig(name=str(tmp_path / "set.npz")))
