"""What a user names on the command line, as pictures: files, folders, glob patterns, `.npy` and `.npz` arrays."""

from __future__ import annotations

import glob
import os
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from steppe.data.folder import SUFFIXES, images_in
from steppe.data.storage import PLAIN_MODES, decode, middle_square, to_rgb
from steppe.errors import ConfigError
from steppe.plain_files import open_plain

ARRAYS = {".npy", ".npz"}
LARGEST = 8 * 2**30
"""Archives that unpack to more bytes are not opened."""


@dataclass(frozen=True)
class Picture:
    """An image that was named: a file, or the pixels (H, W) or (H, W, 1 or 3) of one in an array."""

    name: str
    source: Path | np.ndarray


@dataclass(frozen=True)
class Skipped:
    """Something that was named and cannot be classified."""

    name: str
    reason: str


def find_pictures(words: Iterable[str | Path]) -> tuple[list[Picture], list[Skipped]]:
    """Find the pictures that words name, each once, in the order of the words and, in folders, of their names.

    Args:
        words: files, folders (and all below them), glob patterns (`**` goes down), or arrays of images.
    """
    pictures: dict[str, Picture] = {}
    skipped: list[Skipped] = []
    for word in words:
        for found in _of_word(str(word)):
            if isinstance(found, Skipped):
                skipped.append(found)
            else:
                pictures.setdefault(found.name, found)
    return list(pictures.values()), skipped


@dataclass(frozen=True)
class Named:
    """The pictures that one argument of a program means."""

    pictures: list[Picture]
    skipped: list[Skipped]
    is_one: bool
    """Whether it means one picture by itself, and not a list that may have one."""


def pictures_of(given: object, name: str, odd_images: str) -> Named:
    """Find the pictures that a value means.

    Args:
        given: a word, as `find_pictures` takes it; a PIL image; or an array of uint8, (H, W) or (H, W, 1 or 3) for one
            picture, with N before it for several.
        name: what to call a picture that has no name of its own.
        odd_images: "refuse" or "convert" PIL images that are not 8-bit RGB or grey.

    Raises:
        ConfigError: it is none of these.
    """
    if isinstance(given, str | Path):
        pictures, skipped = find_pictures([given])
        is_one = not (_is_array(Path(given)) or Path(given).is_dir() or _is_pattern(str(given)))
        return Named(pictures, skipped, is_one)
    if isinstance(given, Image.Image):
        name = getattr(given, "filename", "") or name
        if given.mode == "F" or (given.mode not in PLAIN_MODES and odd_images == "refuse"):
            reason = f"not 8-bit RGB or grey but {given.mode}; odd_images='convert' takes most others"
            return Named([], [Skipped(name, reason)], True)
        return Named([Picture(name, np.asarray(to_rgb(given)))], [], True)
    if not isinstance(given, np.ndarray):
        what = f"this is no image but {type(given).__name__}"
        raise ConfigError(what, where=name, fix="give a path, a PIL image or an array of uint8")
    has_channels = given.ndim > 2 and given.shape[-1] in (1, 3)
    dimensions = given.ndim - has_channels
    if given.dtype != np.uint8 or not given.size or dimensions not in (2, 3):
        reason = f"{given.dtype} of shape {given.shape} is not uint8, (H, W) or (H, W, 1 or 3), or several of them"
        return Named([], [Skipped(name, reason)], True)
    if dimensions == 2:
        return Named([Picture(name, given)], [], True)
    return Named([Picture(f"{name}[{place}]", image) for place, image in enumerate(given)], [], False)


def read_picture(picture: Picture, *, size: int, channels: int, odd_images: str) -> np.ndarray | Skipped:
    """The pixels of a picture as training keeps them, (channels, size, size) of uint8: the middle square, scaled.

    Args:
        picture: the file or array.
        size: side at which the run kept its images.
        channels: 1 for grey, 3 for colour.
        odd_images: "refuse" or "convert" files that are not 8-bit RGB or grey.
    """
    if isinstance(picture.source, np.ndarray):
        plain = picture.source[..., 0] if picture.source.shape[2:] == (1,) else picture.source
        pixels = middle_square(Image.fromarray(np.ascontiguousarray(plain)).convert("RGB"), size)
    else:
        try:
            found, mode, problem = decode(picture.source, size)
        except Exception as error:  # decoders fail in ways of their own on hostile bytes
            return Skipped(picture.name, f"{type(error).__name__}: {error}".split("\n")[0][:200])
        if found is None:
            return Skipped(picture.name, problem)
        if mode not in PLAIN_MODES and odd_images == "refuse":
            how = "--odd-images convert takes it"
            return Skipped(picture.name, f"not 8-bit RGB or grey but {mode}, which the run's data refuse; {how}")
        pixels = found
    if channels == 1:
        return np.asarray(Image.fromarray(pixels).convert("L"))[None]
    return pixels.transpose(2, 0, 1)


def _of_word(word: str) -> Iterator[Picture | Skipped]:
    path = Path(word)
    try:
        if path.is_dir():
            yield from _of_folder(path)
        elif path.is_file():
            yield from _of_file(path)
        elif path.exists():
            yield Skipped(word, "this is neither a file nor a folder")
        elif glob.has_magic(word):
            yield from _of_pattern(word)
        else:
            yield Skipped(word, "there is no such file or folder")
    except (OSError, ValueError) as error:  # a name too long, a null character, no right to look
        yield Skipped(word[:200], getattr(error, "strerror", None) or str(error))


def _of_folder(path: Path) -> Iterator[Picture | Skipped]:
    if not os.access(path, os.R_OK | os.X_OK):
        yield Skipped(str(path), "this folder may not be read")
        return
    files = images_in(path)
    if not files:
        yield Skipped(str(path), f"there are no images in this folder ({', '.join(sorted(SUFFIXES))})")
    yield from (Picture(str(file), file) for file in files)


def _of_pattern(word: str) -> Iterator[Picture | Skipped]:
    names = sorted(glob.glob(os.path.expanduser(word), recursive=True))
    files = [Path(name) for name in names if os.path.isfile(name)]
    known = [file for file in files if file.suffix.lower() in SUFFIXES | ARRAYS]
    if not known:
        what = "this pattern matches no images" if names else "this pattern matches nothing"
        yield Skipped(word, what)
    for file in known:
        yield from _of_file(file)


def _of_file(path: Path) -> Iterator[Picture | Skipped]:
    if _is_array(path):
        yield from _of_arrays(path)
    else:
        yield Picture(str(path), path)


def _is_pattern(word: str) -> bool:
    return glob.has_magic(word) and not os.path.lexists(word)


def _is_array(path: Path) -> bool:
    return path.suffix.lower() in ARRAYS


def _of_arrays(path: Path) -> Iterator[Picture | Skipped]:
    """Each image of each array of images: `FILE.npz:KEY[NUMBER]`; arrays of anything else (labels) are passed by."""
    try:
        with open_plain(path) as file:
            if zipfile.is_zipfile(file):
                with zipfile.ZipFile(file) as archive:
                    unpacked = sum(member.file_size for member in archive.infolist())
                if unpacked > LARGEST:
                    yield Skipped(str(path), f"unpacked it would take {unpacked / 2**30:.1f} GiB")
                    return
            file.seek(0)
            loaded = np.load(file, allow_pickle=False)
            named = {"": loaded} if isinstance(loaded, np.ndarray) else {f":{key}": loaded[key] for key in loaded.files}
    except Exception as error:  # zip, zlib, header and pickle troubles all have types of their own
        yield Skipped(str(path), f"not a readable array of numbers ({type(error).__name__})")
        return
    good = {key: array for key, array in named.items() if _holds_images(array)}
    if not good:
        held = ", ".join(f"{key[1:] or 'array'}: {a.dtype} of shape {a.shape}" for key, a in list(named.items())[:4])
        yield Skipped(str(path), f"no images: they are uint8, (N, H, W) or (N, H, W, 1 or 3); it holds {held}")
    for key, array in good.items():
        yield from (Picture(f"{path}{key}[{number}]", image) for number, image in enumerate(array))


def _holds_images(array: np.ndarray) -> bool:
    fits = array.ndim == 3 or (array.ndim == 4 and array.shape[-1] in (1, 3))
    return bool(array.dtype == np.uint8 and fits and array.size)
