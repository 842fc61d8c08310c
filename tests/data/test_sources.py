from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import torch

from steppe.config import AugmentConfig, DataConfig
from steppe.data import DATASETS, Loader, Source, Split, augment, divide, find_named, in_order, load
from steppe.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def digits():
    return load(DataConfig())


def test_digits_are_divided_once_and_for_all(digits):
    assert digits.describe()["examples"] == {"train": 1295, "val": 143, "test": 359}
    assert digits.fingerprint == load(DataConfig()).fingerprint
    assert digits.fingerprint != load(DataConfig(split_seed=1)).fingerprint
    seen = torch.cat([s.images.flatten(1) for s in (digits.train, digits.val, digits.test)])
    from sklearn.datasets import load_digits

    original = np.rint(load_digits().images * 255 / 16).astype(np.uint8).reshape(1797, 64)
    assert sorted(map(bytes, seen.numpy())) == sorted(map(bytes, original))


def test_splits_are_stratified(digits):
    shares = [np.bincount(s.labels.numpy(), minlength=10) / len(s) for s in (digits.train, digits.val, digits.test)]
    assert np.abs(shares[0] - shares[1]).max() < 0.01
    assert np.abs(shares[0] - shares[2]).max() < 0.01


def test_statistics_are_those_of_the_training_images(digits):
    pixels = digits.train.images.double() / 255
    assert digits.mean[0] == pytest.approx(pixels.mean().item(), abs=1e-12)
    assert digits.std[0] == pytest.approx(pixels.std(correction=0).item(), abs=1e-12)


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


def test_augment_shifts_and_mirrors():
    images = torch.arange(1, 17, dtype=torch.uint8).view(1, 1, 4, 4).expand(400, 1, 4, 4)
    out = augment(images, AugmentConfig(crop_padding=1), torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(images[0, 0], (1, 1, 1, 1))
    allowed = {bytes(padded[i : i + 4, j : j + 4].contiguous().numpy()) for i in range(3) for j in range(3)}
    assert {bytes(o.contiguous().numpy()) for o in out} == allowed
    out = augment(images, AugmentConfig(flip=True), torch.Generator().manual_seed(0))
    mirrored = sum(torch.equal(o, images[0].flip(-1)) for o in out)
    assert 150 < mirrored < 250
    assert all(torch.equal(o, images[0]) or torch.equal(o, images[0].flip(-1)) for o in out)


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
    assert resized.train.images.shape[1:] == (3, 16, 16)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"y_train": None}, "lacks x_train and y_train"),
        ({"x_train": np.zeros((40, 8, 8, 3), np.float32)}, "x_train is float32"),
        ({"x_train": np.zeros((40, 8, 9, 3), np.uint8)}, "square"),
        ({"y_train": np.zeros(40, int)}, "label 1"),
        ({"y_train": np.zeros(39, int)}, "length 39"),
        ({"y_train": np.full(40, -1)}, "from 0"),
        ({"y_train": np.array([object()] * 40)}, "not a readable"),
        ({"x_test": np.zeros((12, 4, 4, 3), np.uint8)}, "different shapes"),
        ({"y_train": np.r_[np.zeros(39, int), 1], "x_test": None}, "too few to divide"),
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


def test_a_class_that_cannot_be_divided():
    source = Source(("a", "b"), Split(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 0, 1])))
    with pytest.raises(DataError, match="'b' has 1 image"):
        divide(source, DataConfig())


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "mnist"])
def test_real_sets_where_they_are(name):
    root = os.environ.get("STEPPE_DATA")
    if not root or not find_named(name, __import__("pathlib").Path(root)):
        pytest.skip(f"{name} is not under $STEPPE_DATA")
    dataset = load(DataConfig(name=name), root)
    assert len(dataset.test) == 10_000
    assert len(dataset.classes) == {"cifar10": 10, "cifar100": 100, "mnist": 10}[name]
    assert name in DATASETS
