"""Where data comes from: embedded digits, torchvision's sets, `.npz` arrays, and folders of images."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from steppe.config import DataConfig
from steppe.data.dataset import Dataset, Source, Split, divide
from steppe.data.folder import read_image_folder
from steppe.errors import ConfigError, DataError, unknown_name

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much is done, and how much there is."""


@dataclass(frozen=True)
class Named:
    """A data set with a name: what it is, and torchvision's class for it where there is one."""

    about: str
    torchvision: str | None = None


DATASETS: dict[str, Named] = {
    "digits": Named("1,797 handwritten digits, 8×8 grey, 10 classes; comes with scikit-learn"),
    "cifar10": Named("60,000 photographs, 32×32 colour, 10 classes", "CIFAR10"),
    "cifar100": Named("60,000 photographs, 32×32 colour, 100 classes", "CIFAR100"),
    "mnist": Named("70,000 handwritten digits, 28×28 grey, 10 classes", "MNIST"),
    "fashion_mnist": Named("70,000 articles of clothing, 28×28 grey, 10 classes", "FashionMNIST"),
}


def data_root(root: str | Path | None = None) -> Path:
    """The folder data sets live in: the argument, else $STEPPE_DATA, else `data` here."""
    return Path(root or os.environ.get("STEPPE_DATA") or "data")


def find_named(name: str, root: Path) -> str | None:
    """Say where a named data set lies, or None if it is not under `root`."""
    if name == "digits":
        return "embedded"
    if (root / f"{name}.npz").is_file():
        return str(root / f"{name}.npz")
    import torchvision.datasets

    try:
        getattr(torchvision.datasets, DATASETS[name].torchvision or "")(root)
    except (RuntimeError, OSError):
        return None
    return str(root)


def load(config: DataConfig, root: str | Path | None = None, progress: Progress | None = None) -> Dataset:
    """Read a data set and divide it into train, val and test.

    Args:
        config: which one, and how it is divided.
        root: where named sets live; see `data_root`.
        progress: told how far a slow reading is.

    Raises:
        ConfigError: the name is neither a known set nor a folder nor a file.
        DataError: the set is missing or damaged.
    """
    path = Path(config.name).expanduser()
    if config.name in DATASETS:
        source = _read_named(config.name, data_root(root))
    elif path.suffix == ".npz":
        source = read_npz(path)
    elif path.is_dir():
        source = read_image_folder(path, config.image_size, config.odd_images, progress)
    elif len(path.parts) > 1:
        raise DataError("there is no such folder or .npz file", where=str(path), mend="check the path")
    else:
        raise unknown_name("data set", config.name, DATASETS, where="data.name", see="steppe data")
    if config.image_size and config.image_size != source.train.images.shape[-1]:
        source = _resize(source, config.image_size)
    return divide(source, config)


def read_npz(path: Path) -> Source:
    """Read arrays `x_train, y_train` and, where there are any, `x_val, y_val, x_test, y_test`.

    Images are uint8, (N, H, W) or (N, H, W, 1 or 3); labels are whole numbers from 0. Pickled objects are refused.
    """
    where = str(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except FileNotFoundError:
        raise DataError("there is no such file", where=where, mend="check the path") from None
    except Exception as error:  # zip, zlib, header and pickle troubles all have types of their own
        raise DataError(f"this is not a readable .npz file: {error}", where=where) from None
    splits = {name: _split_of(arrays, name, where) for name in ("train", "val", "test")}
    train = splits["train"]
    if train is None:
        mend = f"it holds {', '.join(arrays) or 'nothing'}; see `steppe data`"
        raise DataError("the file lacks x_train and y_train", where=where, mend=mend)
    shapes = {tuple(s.images.shape[1:]) for s in splits.values() if s is not None}
    if len(shapes) > 1:
        raise DataError(f"the splits have images of different shapes: {sorted(shapes)}", where=where)
    count = 1 + max(int(s.labels.max()) for s in splits.values() if s is not None)
    missing = sorted(set(range(count)) - set(train.labels.tolist()))
    if missing or count < 2:
        what = f"no training image has label {missing[0]}" if missing else "there is only one class"
        raise DataError(what, where=where, mend="number the classes 0, 1, 2 … without gaps, at least two")
    return Source(tuple(map(str, range(count))), train, splits["val"], splits["test"])


def _split_of(arrays: dict[str, np.ndarray], name: str, where: str) -> Split | None:
    x, y = arrays.get(f"x_{name}"), arrays.get(f"y_{name}")
    if x is None or y is None:
        return None
    if x.ndim == 3:
        x = x[..., None]
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[-1] not in (1, 3) or x.shape[1] != x.shape[2] or not len(x):
        what = f"x_{name} is {x.dtype} of shape {x.shape}"
        raise DataError(what, where=where, mend="images must be uint8, square, (N, H, W) or (N, H, W, 1 or 3)")
    y = y.reshape(-1)
    if y.dtype.kind not in "iu" or len(y) != len(x) or y.min() < 0:
        what = f"y_{name} is {y.dtype} of length {len(y)}, with {len(x)} images"
        raise DataError(what, where=where, mend="labels must be whole numbers from 0, one for each image")
    images = torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))
    return Split(images, torch.from_numpy(y.astype(np.int64)))


def _read_named(name: str, root: Path) -> Source:
    if name == "digits":
        return _read_digits()
    if (root / f"{name}.npz").is_file():
        return read_npz(root / f"{name}.npz")
    return _read_torchvision(name, root)


def _read_digits() -> Source:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
    split = Split(torch.from_numpy(images), torch.from_numpy(bunch.target.astype(np.int64)))
    return Source(tuple(map(str, bunch.target_names)), split)


def _read_torchvision(name: str, root: Path) -> Source:
    """Read one of torchvision's sets, which checks its files before it unpickles any; download it if need be."""
    import torchvision.datasets

    kind: Any = getattr(torchvision.datasets, DATASETS[name].torchvision or "")
    try:
        sets = [kind(root, train=train) for train in (True, False)]
    except RuntimeError:
        try:
            sets = [kind(root, train=train, download=True) for train in (True, False)]
        except Exception as error:
            raise DataError(
                f"{name} is not there, and downloading it failed: {str(error) or type(error).__name__}",
                where=str(root),
                mend=f"put torchvision's files, or {name}.npz with x_train, y_train, x_test, y_test, into that folder; "
                "or name another with --data-root or STEPPE_DATA",
            ) from None
    train, test = (_split_of({"x_t": np.asarray(s.data), "y_t": np.asarray(s.targets)}, "t", name) for s in sets)
    assert train is not None
    assert test is not None
    return Source(tuple(map(str, sets[0].classes)), train, None, test)


def _resize(source: Source, size: int) -> Source:
    def resized(split: Split | None) -> Split | None:
        if split is None:
            return None
        chunks = [
            torch.nn.functional.interpolate(
                part.float(), size=(size, size), mode="bilinear", antialias=True, align_corners=False
            )
            .round_()
            .clamp_(0, 255)
            .to(torch.uint8)
            for part in split.images.split(1024)
        ]
        return Split(torch.cat(chunks), split.labels)

    train = resized(source.train)
    if train is None:
        raise ConfigError("a source without training images cannot be resized")
    return Source(source.classes, train, resized(source.val), resized(source.test))
