"""Where data comes from: embedded digits, 2-D toys, torchvision's sets, `.npz` arrays, and folders of images."""

from __future__ import annotations

import gzip
import importlib.util
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from steppe.config import DataConfig, data_root
from steppe.config.lookup import find_data
from steppe.data.dataset import Dataset, Source, Split, divide
from steppe.data.folder import Keeping, Listed, folders_in, images_in, read_image_folder, read_listed
from steppe.data.names import CLASS_NAMES
from steppe.data.storage import Progress as Progress
from steppe.data.toys import TOYS, read_toy
from steppe.errors import ConfigError, DataError
from steppe.plain_files import open_plain

PHOTO_SIZE = 224
"""Sets of photographs in many sizes are seen at this side unless `image_size` says another."""


@dataclass(frozen=True)
class Named:
    """A data set with a name: what it is, torchvision's class for it, and what to put where without a network."""

    about: str
    torchvision: str | None = None
    bring: str = ""
    photographs: bool = False


DATASETS: dict[str, Named] = {
    "digits": Named("1,797 handwritten digits, 8×8 grey, 10 classes; comes with scikit-learn"),
    "cifar10": Named(
        "60,000 photographs, 32×32 colour, 10 classes",
        "CIFAR10",
        "cifar-10-batches-py/ (unpacked from https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz)",
    ),
    "cifar100": Named(
        "60,000 photographs, 32×32 colour, 100 classes",
        "CIFAR100",
        "cifar-100-python/ (unpacked from https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz)",
    ),
    "mnist": Named(
        "70,000 handwritten digits, 28×28 grey, 10 classes",
        "MNIST",
        "MNIST/raw/ with {train,t10k}-{images-idx3,labels-idx1}-ubyte",
    ),
    "fashion_mnist": Named(
        "70,000 articles of clothing, 28×28 grey, 10 classes",
        "FashionMNIST",
        "FashionMNIST/raw/ with {train,t10k}-{images-idx3,labels-idx1}-ubyte",
    ),
    "flowers102": Named(
        "8,189 photographs of flowers, 102 classes",
        "Flowers102",
        "flowers-102/ with jpg/, imagelabels.mat and setid.mat (https://www.robots.ox.ac.uk/~vgg/data/flowers/102/), "
        "or flowers102/{train,val,test}/CLASS/*.jpg",
        photographs=True,
    ),
    "pets": Named(
        "7,349 photographs of cats and dogs, 37 breeds",
        "OxfordIIITPet",
        "oxford-iiit-pet/ with images/ and annotations/ (https://www.robots.ox.ac.uk/~vgg/data/pets/), "
        "or pets/{train,test}/CLASS/*.jpg",
        photographs=True,
    ),
    "imagenet": Named(
        "1,281,167 photographs, 1,000 classes; never downloaded",
        None,
        "imagenet/{train,val}/n01440764/*.JPEG and so on, one folder a class (https://image-net.org/download); "
        "val is the test set, steppe carves its validation set from train",
        photographs=True,
    ),
    **{name: Named(about) for name, about in TOYS.items()},
}


def find_named(name: str, root: Path) -> str | None:
    """Say where a named data set lies, or None if it is not under `root`."""
    if name == "digits":
        return "embedded"
    if name in TOYS:
        return "generated"
    if (root / f"{name}.npz").is_file():
        return str(root / f"{name}.npz")
    if DATASETS[name].photographs and (root / name / "train").is_dir():
        return str(root / name)
    kind = _torchvision_class(name)
    if kind is None:
        return None
    try:
        kind(root)
    except Exception:  # missing, or not what torchvision expects there
        return None
    return str(root)


def load(
    config: DataConfig,
    root: str | Path | None = None,
    progress: Progress | None = None,
    *,
    keeping: Keeping | None = None,
) -> Dataset:
    """Read a data set and divide it into train, val and test.

    Args:
        config: which one, and how it is divided.
        root: where named sets live; see `data_root`. NAME.npz and folders NAME there are found by their name, too.
        progress: told how far a slow reading is.
        keeping: whether the images of a folder are kept in memory, in a memory-mapped cache, or streamed.

    Raises:
        ConfigError: the name is neither a known set nor a folder nor a file.
        DataError: the set is missing or damaged.
    """
    if config.variance is not None and config.name not in TOYS:
        raise ConfigError("variance belongs to the 2-D toys", where="data.variance", fix=f"name one: {', '.join(TOYS)}")
    path = find_data(config.name, root)
    if path is None:
        source = _read_named(config, data_root(root), progress, keeping or Keeping())
        if DATASETS[config.name].photographs and config.image_size is None and source.train.shape[-1] != PHOTO_SIZE:
            return divide(source, config.model_copy(update={"image_size": PHOTO_SIZE}))
        return divide(source, config)
    source = _read_folder(path, config, progress, keeping or Keeping()) if path.is_dir() else read_npz(path)
    return divide(source, config)


def read_npz(path: Path, names: tuple[str, ...] | None = None) -> Source:
    """Read arrays `x_train, y_train` and, where there are any, `x_val, y_val, x_test, y_test`; others are ignored.

    Images are uint8, (N, H, W) or (N, H, W, 1 or 3); labels are whole numbers from 0. Pickled objects are refused.

    Args:
        path: the file.
        names: what the classes are called, where their number is right.
    """
    where = str(path)
    wanted = [f"{kind}_{split}" for split in ("train", "val", "test") for kind in "xy"]
    try:
        with open_plain(path) as opened, np.load(opened, allow_pickle=False) as file:
            found = list(file.files)
            arrays = {key: file[key] for key in wanted if key in found}
            if not all(
                isinstance(array, np.ndarray) for array in arrays.values()
            ):  # numpy gives other members as bytes
                raise ValueError
    except FileNotFoundError:
        raise DataError("there is no such file", where=where, fix="check the path") from None
    except OSError as error:
        raise DataError(f"the file cannot be read: {error}", where=where, fix="bring a plain .npz file") from None
    except Exception as error:  # zip, zlib, header and pickle troubles all have types of their own
        fix = "write it by numpy.savez, with plain arrays"
        raise DataError(f"this is not a readable .npz file ({type(error).__name__})", where=where, fix=fix) from None
    splits = {name: _split_of(arrays, name, where) for name in ("train", "val", "test")}
    train = splits["train"]
    if train is None:
        fix = f"it holds {', '.join(found) or 'nothing'}; see `steppe data`"
        raise DataError("the file lacks x_train and y_train", where=where, fix=fix)
    shapes = {s.shape for s in splits.values() if s is not None}
    if len(shapes) > 1:
        fix = "bring all of them to one size and number of channels"
        raise DataError(f"the splits have images of different shapes: {sorted(shapes)}", where=where, fix=fix)
    count = 1 + max(int(s.labels.max()) for s in splits.values() if s is not None)
    present = np.unique(train.labels.numpy())
    if len(present) < count or count < 2:
        first = int(np.flatnonzero(np.append(present, -1) != np.arange(len(present) + 1))[0])
        what = f"no training image has label {first}" if count > 1 else "there is only one class"
        fix = "number the classes 0, 1, 2 … without gaps, at least two"
        beyond = [
            k for k, s in splits.items() if s is not None and s is not train and int(s.labels.max()) > present[-1]
        ]
        if beyond and 1 < len(present) == present[-1] + 1:
            what = f"y_{beyond[0]} holds classes that y_train does not: labels {len(present)} to {count - 1}"
            fix = f"leave those images out of {beyond[0]}, or bring training images of these classes"
        raise DataError(what, where=where, fix=fix)
    if names is None or len(names) != count:
        names = tuple(map(str, range(count)))
    return Source(names, train, splits["val"], splits["test"])


def _split_of(arrays: dict[str, np.ndarray], name: str, where: str) -> Split | None:
    x, y = arrays.get(f"x_{name}"), arrays.get(f"y_{name}")
    if x is None and y is None:
        return None
    if x is None or y is None:
        raise DataError(f"of x_{name} and y_{name} only one is there", where=where, fix="bring both, or neither")
    if x.ndim == 3:
        x = x[..., None]
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[-1] not in (1, 3) or x.shape[1] != x.shape[2] or not x.size:
        what = f"x_{name} is {x.dtype} of shape {x.shape}"
        raise DataError(what, where=where, fix="images must be uint8, square, (N, H, W) or (N, H, W, 1 or 3)")
    y = y.reshape(-1)
    if y.dtype.kind not in "iu" or len(y) != len(x) or y.min() < 0 or y.max() >= 10**6:
        what = f"y_{name} is {y.dtype} of length {len(y)}, with {len(x)} images"
        if y.dtype.kind in "iu" and len(y) == len(x):
            what = f"y_{name} holds the label {int(y.min() if y.min() < 0 else y.max())}"
        raise DataError(
            what, where=where, fix="labels must be whole numbers from 0, below a million, one for each image"
        )
    images = torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))
    return Split(images, torch.from_numpy(y.astype(np.int64)))


def _read_named(config: DataConfig, root: Path, progress: Progress | None, keeping: Keeping) -> Source:
    name = config.name
    if name == "digits":
        return _read_digits()
    if name in TOYS:
        return read_toy(name, config.variance, config.split_seed)
    if (root / f"{name}.npz").is_file():
        return read_npz(root / f"{name}.npz", CLASS_NAMES.get(name))
    if DATASETS[name].photographs:
        config = config.model_copy(update={"image_size": config.image_size or PHOTO_SIZE})
        if name == "imagenet" and (root / name / "train").is_dir():
            return _read_imagenet(root / name, config, progress, keeping)
        if (root / name / "train").is_dir():
            source = _read_folder(root / name, config, progress, keeping)
            if source.classes == tuple(f"{number:03d}" for number in range(1, 103)):
                source = replace(source, classes=tuple(_torchvision_class("flowers102").classes))
            return source
    return _read_torchvision(config, root, progress, keeping)


def _read_folder(path: Path, config: DataConfig, progress: Progress | None, keeping: Keeping) -> Source:
    return read_image_folder(
        path, config.image_size, config.odd_images, progress, stored_size=config.stored_size, keeping=keeping
    )


def _read_imagenet(path: Path, config: DataConfig, progress: Progress | None, keeping: Keeping) -> Source:
    """Read ImageNet's two folders; what the world calls its validation set is the test set here.

    Some of its files are CMYK, or PNG in disguise: they are converted, as everybody does.
    """
    folders = folders_in(path / "train")
    classes = tuple(folder.name for folder in folders)
    listed = [Listed("train", k, file) for k, folder in enumerate(folders) for file in images_in(folder)]
    listed += [Listed("test", k, file) for k, name in enumerate(classes) for file in images_in(path / "val" / name)]
    if not any(one.split == "test" for one in listed):
        fix = f"sort its images into class folders: put {DATASETS['imagenet'].bring}"
        raise DataError("val holds no images of train's classes", where=str(path / "val"), fix=fix)
    return read_listed(path, classes, listed, config.stored_size or config.image_size, "convert", progress, keeping)


def _read_digits() -> Source:
    """Read scikit-learn's file without importing scikit-learn, which takes longer than a short training does."""
    found = importlib.util.find_spec("sklearn")
    file = Path(found.origin if found and found.origin else "").parent / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():
        with gzip.open(file, "rt") as lines:
            table = np.loadtxt(lines, delimiter=",")
    else:  # a later one may keep it elsewhere
        from sklearn.datasets import load_digits

        bunch = load_digits()
        table = np.column_stack([bunch.data, bunch.target])
    images = np.rint(table[:, :-1].reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    split = Split(torch.from_numpy(images), torch.from_numpy(table[:, -1].astype(np.int64)))
    return Source(tuple(map(str, range(10))), split)


def _torchvision_class(name: str) -> Any:
    import torchvision.datasets

    return getattr(torchvision.datasets, DATASETS[name].torchvision or "", None)


def _read_torchvision(config: DataConfig, root: Path, progress: Progress | None, keeping: Keeping) -> Source:
    """Read one of torchvision's sets, which checks its files before it unpickles any; download it if need be."""
    name = config.name
    kind = _torchvision_class(name)
    arguments: list[dict[str, Any]] = [{"train": True}, {"train": False}]
    if DATASETS[name].photographs:
        arguments = [{"split": s} for s in (("train", "val", "test") if name == "flowers102" else ("trainval", "test"))]
    try:
        if kind is None:
            raise RuntimeError
        sets = [kind(root, **some) for some in arguments]
    except RuntimeError:
        try:
            if kind is None:
                raise OSError("it is not for download") from None
            with _impatient():
                sets = [kind(root, **some, download=True) for some in arguments]
        except Exception as error:
            raise DataError(
                f"{name} is not there, and downloading it failed: {str(error) or type(error).__name__}",
                where=str(root),
                fix=f"put into that folder: {DATASETS[name].bring}; or {name}.npz with uint8 x_train, x_test "
                "(N, H, W, C) and labels y_train, y_test; or name another folder with --data-root or STEPPE_DATA",
            ) from None
    if DATASETS[name].photographs:
        splits = ("train", "val", "test") if len(sets) == 3 else ("train", "test")
        listed = [
            Listed(split, int(label), Path(file))
            for split, one in zip(splits, sets, strict=True)
            for file, label in zip(one._image_files if name == "flowers102" else one._images, one._labels, strict=True)
        ]
        size = config.stored_size or config.image_size
        classes = tuple(map(str, sets[0].classes))
        return read_listed(root, classes, listed, size, config.odd_images, progress, keeping)
    train, test = (_split_of({"x_t": np.asarray(s.data), "y_t": np.asarray(s.targets)}, "t", name) for s in sets)
    assert train is not None
    assert test is not None
    return Source(tuple(map(str, sets[0].classes)), train, None, test)


@contextmanager
def _impatient(seconds: float = 30.0) -> Iterator[None]:
    """Give up on a server that does not answer."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
