"""A folder of images: one sub-folder a class, with or without `train`, `val` and `test` above them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from steppe.data.dataset import Source, Split
from steppe.errors import DataError

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
PLAIN_MODES = {"L", "RGB"}


def read_image_folder(
    path: Path, image_size: int | None, odd_images: str, progress: Callable[[str, int, int], None] | None = None
) -> Source:
    """Read every image under `path`, as colour, scaled so that its middle square has `image_size` pixels a side.

    Args:
        path: the folder.
        image_size: the side; None keeps the images' own where all share one square size.
        odd_images: "refuse" or "convert" images that are not 8-bit RGB or grey.
        progress: told how far the reading is.
    """
    splits = _find_splits(path)
    classes = _class_names(splits)
    files: list[tuple[str, int, Path]] = []
    for split, folder in splits.items():
        for label, name in enumerate(classes):
            members = _images_in(folder / name)
            if not members:
                mend = f"add images ({', '.join(sorted(SUFFIXES))}) or remove the folder"
                raise DataError(f"class {name!r} has no images", where=str(folder / name), mend=mend)
            files += [(split, label, file) for file in members]
    size = image_size or _common_size([file for _, _, file in files], path)
    images = _decode_all([file for _, _, file in files], size, odd_images, path, progress)
    labels = torch.tensor([label for _, label, _ in files])
    owner = np.array([split for split, _, _ in files])
    parts = {
        split: Split(images[torch.from_numpy(owner == split)], labels[torch.from_numpy(owner == split)])
        for split in splits
    }
    return Source(classes, parts["train"], parts.get("val"), parts.get("test"))


def _find_splits(path: Path) -> dict[str, Path]:
    named: dict[str, Path] = {}
    for child in _folders_in(path):
        split = SPLITS.get(child.name.lower())
        if split in named:
            raise DataError(f"both {named[split].name!r} and {child.name!r} are there", where=str(path))
        if split:
            named[split] = child
    if not named:
        return {"train": path}
    if "train" not in named:
        raise DataError(f"there is {', '.join(named)} but no train folder", where=str(path))
    return named


def _class_names(splits: dict[str, Path]) -> tuple[str, ...]:
    names = {split: sorted(child.name for child in _folders_in(folder)) for split, folder in splits.items()}
    train = names["train"]
    where = str(splits["train"])
    if len(train) < 2:
        found = f"one class, {train[0]!r}" if train else "no class folders"
        mend = "a classifier needs at least two sub-folders of images, one for each class"
        raise DataError(f"the folder has {found}", where=where, mend=mend)
    for split, found_names in names.items():
        if found_names != train:
            odd = sorted(set(found_names) ^ set(train))
            raise DataError(f"{split} and train differ in classes: {', '.join(odd[:5])}", where=str(splits[split]))
    return tuple(train)


def _folders_in(path: Path) -> list[Path]:
    return [child for child in path.iterdir() if child.is_dir() and not child.name.startswith(".")]


def _images_in(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())


def _common_size(files: list[Path], path: Path) -> int:
    sizes: Counter[tuple[int, int]] = Counter()
    for file in files:
        try:
            with Image.open(file) as image:
                sizes[image.size] += 1
        except (OSError, UnidentifiedImageError, Image.DecompressionBombError):
            continue  # the decoding below tells about every damaged file at once
    if len(sizes) == 1 and len({*next(iter(sizes))}) == 1:
        return next(iter(sizes))[0]
    common = sorted(min(s) for s in sizes.elements())
    middle = common[len(common) // 2] if common else 32
    mend = f"say which side to scale to, for example --image-size {min(224, max(16, middle // 16 * 16))}"
    raise DataError(f"the images come in {len(sizes)} sizes, or are not square", where=str(path), mend=mend)


def _decode_all(
    files: list[Path],
    size: int,
    odd_images: str,
    path: Path,
    progress: Callable[[str, int, int], None] | None,
) -> torch.Tensor:
    out = np.empty((len(files), size, size, 3), np.uint8)
    damaged: list[str] = []
    odd: list[str] = []
    with ThreadPoolExecutor() as pool, warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        for index, (file, result) in enumerate(zip(files, pool.map(lambda f: _decode(f, size), files), strict=True)):
            if progress and index % 100 == 0:
                progress("reading images", index, len(files))
            array, mode, problem = result
            name = str(file.relative_to(path))
            if array is None:
                damaged.append(f"{name} ({problem})")
            else:
                out[index] = array
                if mode not in PLAIN_MODES:
                    odd.append(f"{name} ({mode})")
    if damaged:
        mend = "replace or remove these files"
        raise DataError(f"{len(damaged)} image(s) cannot be read: {_few(damaged)}", where=str(path), mend=mend)
    if odd and odd_images == "refuse":
        mend = "convert them, or let steppe do it: --odd-images convert (16-bit is scaled to 8, alpha is dropped)"
        what = f"{len(odd)} image(s) are not 8-bit RGB or grey: {_few(odd)}"
        raise DataError(what, where=str(path), mend=mend)
    return torch.from_numpy(out.transpose(0, 3, 1, 2).copy())


def _decode(file: Path, size: int) -> tuple[np.ndarray | None, str, str]:
    """Give (pixels or None, PIL's mode, what went wrong)."""
    try:
        with Image.open(file) as opened:
            mode = opened.mode
            opened.load()
            image: Image.Image = opened
            if mode.startswith("I;16") or mode == "I":
                image = Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
            elif mode == "F":
                return None, mode, "floating-point pixels"
            elif mode == "P":
                image = image.convert("RGBA")
            image = image.convert("RGB")
            side = min(image.size)
            left, top = (image.width - side) // 2, (image.height - side) // 2
            box = (left, top, left + side, top + side)
            return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box)), mode, ""
    except (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        return None, "", str(error).split(str(file))[0].strip(" '\"") or type(error).__name__
    except Image.DecompressionBombWarning as error:
        return None, "", str(error)


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
