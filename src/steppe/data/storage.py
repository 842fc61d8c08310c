"""Images that are not kept in memory: decoded once into a memory-mapped file, or from their files batch by batch.

The memory-mapped cache is one `.npy` of uint8, (N, 3, S, S). Its name is a fingerprint of the files it was made from
(names, sizes, times of change) and of how they were decoded; it is written beside its place and renamed, so a cache
that is there is whole, and one of other files is never taken for it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image, ImageOps

from steppe.errors import DataError
from steppe.plain_files import check_plain, open_plain

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much is done, and how much there is."""

PLAIN_MODES = {"L", "RGB"}
CHUNK = 1024


class Store(Protocol):
    """Images on the disk."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """How many there are, and channels, height and width of each."""

    @property
    def fingerprint(self) -> str:
        """Changes with what the images are."""

    def fetch(self, rows: np.ndarray) -> torch.Tensor:
        """The images with these numbers, in that order, as uint8."""


@dataclass(frozen=True)
class Files:
    """Image files, decoded whenever they are asked for.

    Args:
        root: the folder that error messages and the fingerprint name files under.
        paths: the files.
        size: the middle square of each is scaled to this side.
        odd_images: "refuse" or "convert" images that are not 8-bit RGB or grey.
    """

    root: Path
    paths: tuple[Path, ...]
    size: int
    odd_images: str = "refuse"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Colour images, square."""
        return len(self.paths), 3, self.size, self.size

    @cached_property
    def fingerprint(self) -> str:
        """From the files' names and sizes: the same on another machine."""
        return self._named[0]

    @property
    def digests(self) -> np.ndarray:
        """A number for each file, from its name and size alone."""
        return self._named[1]

    @cached_property
    def _named(self) -> tuple[str, np.ndarray]:
        digest = hashlib.sha256(str(self.shape).encode())
        own = bytearray()
        for path in self.paths:
            line = self._line(path, f"{path.stat().st_size}")
            digest.update(line)
            own += hashlib.blake2b(line, digest_size=8).digest()
        return digest.hexdigest()[:20], np.frombuffer(bytes(own), np.uint64)

    @cached_property
    def cache_key(self) -> str:
        """From names, sizes and times of change, and how images are decoded."""
        digest = hashlib.sha256(str(self.shape).encode())
        for path in self.paths:
            stat = path.stat()
            digest.update(self._line(path, f"{stat.st_size} {stat.st_mtime_ns} {self.odd_images}"))
        return digest.hexdigest()[:20]

    def fetch(self, rows: np.ndarray) -> torch.Tensor:
        """Decode the images with these numbers."""
        out = np.empty((len(rows), *self.shape[1:]), np.uint8)
        self.decode_into(out, [self.paths[row] for row in rows], threads=1)
        return torch.from_numpy(out)

    def decode_all(self, out: np.ndarray, progress: Progress | None = None) -> None:
        """Decode every image into `out`, (N, 3, S, S)."""
        self.decode_into(out, self.paths, progress=progress)

    def decode_into(
        self, out: np.ndarray, paths: Iterable[Path], *, threads: int | None = None, progress: Progress | None = None
    ) -> None:
        """Decode files into `out`, and tell about all that are damaged or odd at once."""
        files = list(paths)
        damaged: list[str] = []
        odd: list[str] = []
        with ThreadPoolExecutor(threads) as pool, decoding():
            run = map if threads == 1 else pool.map
            for start in range(0, len(files), CHUNK):
                if progress:
                    progress("reading images", start, len(files))
                part = files[start : start + CHUNK]
                for number, (file, result) in enumerate(zip(part, run(self._decode, part), strict=True), start):
                    array, mode, problem = result
                    name = str(file.relative_to(self.root))
                    if array is None:
                        damaged.append(f"{name} ({problem})")
                        continue
                    out[number] = array.transpose(2, 0, 1)
                    if mode not in PLAIN_MODES:
                        odd.append(f"{name} ({mode})")
            if progress and files:
                progress("reading images", len(files), len(files))
        if damaged:
            what = f"{len(damaged)} image(s) cannot be read: {_few(damaged)}"
            raise DataError(what, where=str(self.root), fix="replace or remove these files")
        if odd and self.odd_images == "refuse":
            fix = "convert them, or let steppe do it: --odd-images convert (16-bit is scaled to 8, alpha is dropped)"
            what = f"{len(odd)} image(s) are not 8-bit RGB or grey: {_few(odd)}"
            raise DataError(what, where=str(self.root), fix=fix)

    def _decode(self, file: Path) -> tuple[np.ndarray | None, str, str]:
        return decode(file, self.size)

    def _line(self, path: Path, about: str) -> bytes:
        return f"{path.relative_to(self.root)} {about}\n".encode(errors="surrogateescape")  # a name need not be UTF-8


class Mapped:
    """Images in a memory-mapped `.npy` file. It travels between processes as a path."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        """Keep where the file is; it is opened when the first image is asked for."""
        self.path, self.fingerprint = path, fingerprint
        self._array: np.ndarray | None = None

    @property
    def array(self) -> np.ndarray:
        """The images, (N, C, H, W), read as they are touched."""
        if self._array is None:
            check_plain(self.path)
            self._array = np.load(self.path, mmap_mode="r", allow_pickle=False)
        return self._array

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """How many there are, and channels, height and width of each."""
        count, channels, height, width = self.array.shape
        return count, channels, height, width

    def fetch(self, rows: np.ndarray) -> torch.Tensor:
        """The images with these numbers."""
        return torch.from_numpy(self.array[rows])

    def __getstate__(self) -> dict[str, Any]:
        """Leave the mapping behind: another process opens its own."""
        return {"path": self.path, "fingerprint": self.fingerprint, "_array": None}


def map_files(files: Files, folder: Path, progress: Progress | None = None) -> Mapped:
    """Decode files once into a memory-mapped cache in `folder`; a later call finds it there."""
    path = folder / f"{files.cache_key}.npy"
    try:
        mapped = Mapped(path, files.fingerprint)
        if mapped.shape == files.shape and mapped.array.dtype == np.uint8:
            return mapped
    except (OSError, ValueError, EOFError):
        pass  # not there, or not whole: it is made now
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".making-", suffix=".npy", dir=folder)
    except OSError as error:
        fix = "name another folder with --cache or STEPPE_CACHE, or keep the images otherwise: --keep memory or stream"
        what = f"no cache of the images can be made: {error.strerror or error}"
        raise DataError(what, where=str(folder), fix=fix) from None
    os.close(handle)
    try:
        _check_room(files, folder)
        out = np.lib.format.open_memmap(name, mode="w+", dtype=np.uint8, shape=files.shape)
        files.decode_all(out, progress)
        out.flush()
        del out
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
    return Mapped(path, files.fingerprint)


def _check_room(files: Files, folder: Path) -> None:
    needed, free = int(np.prod(files.shape)), shutil.disk_usage(folder).free
    if needed > free:
        what = f"the decoded images need {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free"
        fix = "name another folder with STEPPE_CACHE, choose a smaller stored_size, or stream (storage='stream')"
        raise DataError(what, where=str(folder), fix=fix)


@contextmanager
def decoding() -> Iterator[None]:
    """Inside, decompression bombs are refused already where PIL only warns; what it warns of metadata is left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def decode(file: Path, size: int) -> tuple[np.ndarray | None, str, str]:
    """Give (pixels (S, S, 3) or None, PIL's mode, what went wrong): the middle square, scaled to `size`."""
    try:
        with open_plain(file) as raw, Image.open(raw) as opened:
            mode = opened.mode
            if opened.format == "JPEG" and min(opened.size) >= 2 * size:
                opened.draft(None, (2 * size, 2 * size))  # lets the decoder skip what scaling would throw away
            opened.load()
            if mode == "F":
                return None, mode, "floating-point pixels"
            return middle_square(to_rgb(opened), size), mode, ""
    except Exception as error:  # a damaged file raises whatever its bytes happen to mean
        return None, "", str(error).split(" <_io.")[0].split(str(file))[0].strip(" '\"") or type(error).__name__


def to_rgb(image: Image.Image) -> Image.Image:
    """Bring an image to 8-bit RGB, and turn it as it says: a phone held sideways says so, and only there."""
    if image.mode.startswith("I;16") or image.mode == "I":
        image = Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
    elif image.mode == "P":
        image = image.convert("RGBA")
    return ImageOps.exif_transpose(image.convert("RGB"))


def middle_square(image: Image.Image, size: int) -> np.ndarray:
    """The pixels of an image's middle square, scaled to `size`."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    box = (left, top, left + side, top + side)
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box))


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
