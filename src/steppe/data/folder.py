"""A folder of images: one sub-folder a class, with or without `train`, `val` and `test` above them."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image

from steppe.config import cache_folder
from steppe.data.dataset import Source, Split
from steppe.data.storage import Files, Progress, Store, decoding, map_files
from steppe.errors import DataError
from steppe.plain_files import open_plain

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
PROBED = 1000

Storage = Literal["auto", "memory", "cache", "stream"]


@dataclass(frozen=True)
class Keeping:
    """How images are kept and read: a question of the machine, not of the run.

    Args:
        storage: "memory"; "cache", decoded once into a memory-mapped file; "stream", decoded for each batch;
            "auto": in memory up to `memory_limit`, else in the cache.
        memory_limit: in bytes; by default a third of the machine's memory.
        cache: folder of the caches; see `cache_folder`.
        workers: processes that read images which are not in memory; 0 reads in a thread.
        resident: keep a training set that is in memory on the device; by default where it fits.
    """

    storage: Storage = "auto"
    memory_limit: int | None = None
    cache: Path | None = None
    workers: int = 0
    resident: bool | None = None

    def keep(self, files: Files, progress: Progress | None) -> torch.Tensor | Store:
        """Bring the images where they are to be kept."""
        storage = self.storage
        if storage == "auto":
            limit = self.memory_limit or _machine_memory() // 3
            storage = "memory" if np.prod(files.shape) <= limit else "cache"
        if storage == "stream":
            return files
        if storage == "cache":
            return map_files(files, cache_folder(self.cache), progress)
        out = np.empty(files.shape, np.uint8)
        files.decode_all(out, progress)
        return torch.from_numpy(out)


def _machine_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not every system tells
        return 24 * 2**30


@dataclass(frozen=True)
class Listed:
    """An image of a folder, before it is read."""

    split: str
    label: int
    path: Path


def read_image_folder(
    path: Path,
    image_size: int | None,
    odd_images: str,
    progress: Progress | None = None,
    *,
    stored_size: int | None = None,
    keeping: Keeping | None = None,
) -> Source:
    """Read every image under `path`, as colour: its middle square, never scaled up.

    Args:
        path: the folder.
        image_size: the side a model is to see; None takes the images' own where all share one square size.
        odd_images: "refuse" or "convert" images that are not 8-bit RGB or grey.
        progress: told how far the reading is.
        stored_size: the side that is kept; by default `image_size`.
        keeping: where the images are kept.
    """
    splits = _find_splits(path)
    classes = _class_names(splits)
    listed: list[Listed] = []
    for split, folder in splits.items():
        for label, name in enumerate(classes):
            members = images_in(folder / name)
            if not os.access(folder / name, os.R_OK | os.X_OK):
                raise DataError(
                    "this folder may not be read", where=str(folder / name), fix="give yourself the right to"
                )
            if not members:
                fix = f"add images ({', '.join(sorted(SUFFIXES))}) or remove the folder"
                raise DataError(f"class {name!r} has no images", where=str(folder / name), fix=fix)
            listed += [Listed(split, label, file) for file in members]
    return read_listed(path, classes, listed, stored_size or image_size, odd_images, progress, keeping or Keeping())


def read_listed(
    path: Path,
    classes: tuple[str, ...],
    listed: list[Listed],
    size: int | None,
    odd_images: str,
    progress: Progress | None,
    keeping: Keeping,
) -> Source:
    """Read images of which split and label are known; those of one split stand together."""
    paths = tuple(one.path for one in listed)
    files = Files(path, paths, _stored_side(paths, size, path), odd_images)
    store = keeping.keep(files, progress)
    labels = torch.tensor([one.label for one in listed])
    parts: dict[str, Split] = {}
    start = 0
    for split, count in Counter(one.split for one in listed).items():
        mine = slice(start, start + count)
        own = store[mine] if isinstance(store, torch.Tensor) else store
        parts[split] = Split(own, labels[mine], torch.arange(mine.start, mine.stop), files.fingerprint, files.digests)
        start += count
    return Source(classes, parts["train"], parts.get("val"), parts.get("test"))


def images_in(folder: Path) -> list[Path]:
    """Every image file in a folder and below that is not hidden, in the order of their names."""
    files = (p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    return sorted(p for p in files if not any(map(_is_litter, p.relative_to(folder).parts)))


def folders_in(path: Path) -> list[Path]:
    """The folders in a folder that are not hidden, in the order of their names."""
    return sorted(child for child in path.iterdir() if child.is_dir() and not _is_litter(child.name))


def _is_litter(name: str) -> bool:
    """Whether a file or folder is hidden, or beside what it should be: macOS packs `._x.png` and `__MACOSX/` too."""
    return name.startswith(".") or name == "__MACOSX"


def _find_splits(path: Path) -> dict[str, Path]:
    named: dict[str, Path] = {}
    for child in folders_in(path):
        split = SPLITS.get(child.name.lower())
        if split in named:
            raise DataError(f"both {named[split].name!r} and {child.name!r} are there", where=str(path))
        if split:
            named[split] = child
    if not named:
        return {"train": path}
    if "train" not in named:
        fix = "folders named train, val and test are taken for splits: add train, or rename them if they are classes"
        raise DataError(f"there is {', '.join(named)} but no train folder", where=str(path), fix=fix)
    return {split: named[split] for split in ("train", "val", "test") if split in named}


def _class_names(splits: dict[str, Path]) -> tuple[str, ...]:
    names = {split: [child.name for child in folders_in(folder)] for split, folder in splits.items()}
    train = names["train"]
    where = str(splits["train"])
    if len(train) < 2:
        found = f"one class, {train[0]!r}" if train else "no class folders"
        fix = "a classifier needs at least two sub-folders of images, one for each class"
        if splits["train"].name.lower() == "train":
            fix += "; a folder named train is taken for a split, so a class of that name needs another"
        raise DataError(f"the folder has {found}", where=where, fix=fix)
    for split, found_names in names.items():
        if found_names != train:
            odd = sorted(set(found_names) ^ set(train))
            what = f"{split} and train differ in classes: {', '.join(odd[:5])}"
            fix = f"give {split} the same sub-folders as train, an empty one removed from both"
            raise DataError(what, where=str(splits[split]), fix=fix)
    return tuple(train)


def _stored_side(files: tuple[Path, ...], size: int | None, path: Path) -> int:
    """The side to keep: `size`, but no more than the images have; without it their own, where all share one."""
    probed = files if size is None else files[:: max(1, len(files) // PROBED)]
    sizes: Counter[tuple[int, int]] = Counter()
    for file in probed:
        try:
            with decoding(), open_plain(file) as raw, Image.open(raw) as image:
                sizes[image.size] += 1
        except Exception:  # whatever a damaged file's bytes happen to mean
            continue  # the decoding later tells about every damaged file at once
    sides = sorted(min(s) for s in sizes.elements())
    if size is not None:
        return min([size, *sides[-1:]])
    if not sides or (len(sizes) == 1 and len({*next(iter(sizes))}) == 1):
        return sides[0] if sides else 1
    middle = sides[len(sides) // 2]
    fix = f"say which side to scale to, for example --image-size {min(224, max(16, middle // 16 * 16))}"
    what = f"the images come in {len(sizes)} sizes" if len(sizes) > 1 else "the images are not square"
    raise DataError(what, where=str(path), fix=fix)
