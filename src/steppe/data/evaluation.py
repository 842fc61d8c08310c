"""Sets that are only tested on: corrupted copies of a test set, and ImageNet's V2, R and ReaL labels.

Published folders are used where the user has them, under the data root; nothing here is downloaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from steppe.data.augment import Normalise
from steppe.data.corruptions import CORRUPTIONS, corrupt
from steppe.data.dataset import Dataset, Split
from steppe.data.folder import Keeping, folders_in, images_in
from steppe.data.loader import in_order, stream
from steppe.data.storage import Files, Progress
from steppe.errors import DataError, unknown_name
from steppe.plain_files import check_plain, open_plain, read_plain_text

PUBLISHED = {"cifar10": ("CIFAR-10-C",), "cifar100": ("CIFAR-100-C",), "imagenet": ("ImageNet-C", "imagenet-c")}
"""Where the published corruptions of a set lie under the data root."""

VARIANTS = {
    "imagenet_v2": "imagenetv2-matched-frequency-format-val/0 … 999/*.jpeg",
    "imagenet_r": "imagenet-r/n01443537/*.jpg and so on, 200 classes",
    "imagenet_real": "imagenet/real.json, the list of right answers for each of the 50,000 validation images",
}
"""Other tests of a network trained on ImageNet, and what has to be under the data root for them."""


@dataclass(frozen=True)
class Variant:
    """A test set of its own.

    Args:
        split: images, with labels among the trained classes.
        allowed: the classes that occur, if not all do: others are left out before the best one is taken.
        answers: (N, classes) of bool, every right answer; None where the label is the only one. An image
            without any right answer is not counted.
    """

    split: Split
    allowed: tuple[int, ...] | None = None
    answers: torch.Tensor | None = None


def find_corrupted(dataset: Dataset, root: Path) -> Path | None:
    """The folder with the published corruptions of a data set, if there is one."""
    return next((root / name for name in PUBLISHED.get(dataset.name, ()) if (root / name).is_dir()), None)


def read_corrupted(
    dataset: Dataset, root: Path, name: str, severity: int, *, size: int | None = None, keeping: Keeping | None = None
) -> Split | None:
    """Read a published corruption: CIFAR's NAME.npy, or ImageNet's NAME/SEVERITY/CLASS/; None where it is not there.

    Args:
        dataset: what was trained on; its classes give the labels.
        root: the data root.
        name: one of `CORRUPTIONS`.
        severity: 1 to 5.
        size: ImageNet: the side to keep; by default that of the data set.
        keeping: ImageNet: where images are kept; by default they are streamed.
    """
    if name not in CORRUPTIONS:
        raise unknown_name("corruption", name, CORRUPTIONS)
    folder = find_corrupted(dataset, root)
    if folder is None:
        return None
    if (folder / f"{name}.npy").is_file():
        return _read_npy(folder, name, severity)
    places = [*folder.glob(f"{name}/{severity}"), *folder.glob(f"*/{name}/{severity}")]
    if not places:
        return None
    return _read_classes(places[0], dataset, {c: c for c in dataset.classes}, size, keeping, None)


def corrupted_in_order(
    split: Split,
    dataset: Dataset,
    name: str,
    severity: int,
    *,
    batch_size: int,
    device: torch.device,
    root: Path | None = None,
    workers: int = 0,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield normalised batches of a corrupted split: as published where the data root has it, else made here.

    The published corruptions are of the test set: give `root` with `dataset.test` only.
    """
    published = read_corrupted(dataset, root, name, severity) if root is not None else None
    if published is not None:
        yield from in_order(published, dataset, batch_size=batch_size, device=device, workers=workers)
        return
    normalise = Normalise(dataset, device)
    parts = torch.arange(len(split)).split(batch_size)
    for part, images in zip(parts, stream(split, parts, device, workers), strict=True):
        yield normalise(corrupt(images, name, severity, indices=part)), split.labels[part].to(device)


def load_variant(
    name: str,
    dataset: Dataset,
    root: Path,
    *,
    keeping: Keeping | None = None,
    progress: Progress | None = None,
) -> Variant:
    """Read one of `VARIANTS` for a network trained on `dataset`, which is ImageNet.

    Raises:
        DataError: it is not there; the message says what to put where.
    """
    if name not in VARIANTS:
        raise unknown_name("test set", name, VARIANTS)
    fix = f"put into that folder: {VARIANTS[name]}"
    if name == "imagenet_real":
        return _read_real(dataset, root / "imagenet", fix)
    found = sorted(root.glob("imagenetv2-*")) if name == "imagenet_v2" else [root / "imagenet-r"]
    if not found or not found[0].is_dir():
        raise DataError(f"{name} is not there", where=str(root), fix=fix)
    by_folder = {c: c for c in dataset.classes}
    if name == "imagenet_v2":
        by_folder = {str(number): c for number, c in enumerate(dataset.classes)}
    split = _read_classes(found[0], dataset, by_folder, None, keeping, progress)
    present = tuple(sorted(set(split.labels.tolist())))
    return Variant(split, allowed=present if len(present) < len(dataset.classes) else None)


def _read_npy(folder: Path, name: str, severity: int) -> Split:
    where = str(folder / f"{name}.npy")
    try:
        check_plain(folder / f"{name}.npy")
        images = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        with open_plain(folder / "labels.npy") as file:
            labels = np.load(file, allow_pickle=False).astype(np.int64)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"the published corruption cannot be read: {error}", where=where) from None
    if images.ndim != 4 or images.dtype != np.uint8 or len(images) % 5 or len(labels) != len(images):
        what = f"{images.dtype} of shape {images.shape} with {len(labels)} labels is not five severities of images"
        raise DataError(what, where=where)
    count = len(images) // 5
    mine = slice((severity - 1) * count, severity * count)
    pixels = np.ascontiguousarray(np.asarray(images[mine]).transpose(0, 3, 1, 2))
    return Split(torch.from_numpy(pixels), torch.from_numpy(labels[mine]))


def _read_classes(
    path: Path,
    dataset: Dataset,
    class_of: dict[str, str],
    size: int | None,
    keeping: Keeping | None,
    progress: Progress | None,
) -> Split:
    """Read class folders, some of the data set's classes perhaps missing; folders of other classes are an error."""
    number = {name: label for label, name in enumerate(dataset.classes)}
    files: list[Path] = []
    labels: list[int] = []
    for folder in folders_in(path):
        if folder.name not in class_of:
            raise DataError(f"{folder.name!r} is not a class of {dataset.name}", where=str(path))
        members = images_in(folder)
        files += members
        labels += [number[class_of[folder.name]]] * len(members)
    if not files:
        raise DataError("there are no images", where=str(path))
    store = (keeping or Keeping("stream")).keep(
        Files(path, tuple(files), size or dataset.train.shape[-1], "convert"), progress
    )
    rows = None if isinstance(store, torch.Tensor) else torch.arange(len(files))
    return Split(store, torch.tensor(labels), rows)


def _read_real(dataset: Dataset, folder: Path, fix: str) -> Variant:
    """Pair the answers, which stand in the order of ILSVRC2012_val_00000001 and on, with our order, by class."""
    try:
        answers = json.loads(read_plain_text(folder / "real.json"))
    except (OSError, ValueError) as error:
        raise DataError(f"the ReaL labels cannot be read: {error}", where=str(folder), fix=fix) from None
    files = [file for name in dataset.classes for file in images_in(folder / "val" / name)]
    right = torch.zeros(len(files), len(dataset.classes), dtype=torch.bool)
    for row, file in enumerate(files):
        digits = re.search(r"_val_(\d+)", file.name)
        if digits is None or not 1 <= int(digits[1]) <= len(answers):
            what = f"{file.name} has no number of a validation image"
            raise DataError(what, where=str(file.parent), fix="keep the names ILSVRC2012_val_00000001.JPEG and so on")
        right[row, answers[int(digits[1]) - 1]] = True
    if len(files) != len(dataset.test):
        raise DataError(f"{len(files)} images for {len(dataset.test)} of the test set", where=str(folder / "val"))
    return Variant(dataset.test, answers=right)
