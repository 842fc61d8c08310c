"""Fuzzed data: images and arrays."""

from __future__ import annotations

import io
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from steppe import data
from steppe.config import DataConfig
from torture.fuzz import Once
from torture.mutate import mutate_bytes


def images(folder: Path) -> Once:
    """Images with damaged bytes and wrong headers, in a folder of whole ones."""
    pixels = np.random.default_rng(0).integers(0, 256, (12, 12, 3), np.uint8)
    good: list[tuple[str, bytes]] = []
    for kind, suffix in (
        ("PNG", "png"),
        ("JPEG", "jpg"),
        ("GIF", "gif"),
        ("TIFF", "tiff"),
        ("BMP", "bmp"),
        ("WEBP", "webp"),
        ("PPM", "ppm"),
    ):
        for mode in ("RGB", "L", "P", "1", "I;16") if kind in ("PNG", "TIFF") else ("RGB", "L"):
            buffer = io.BytesIO()
            image = (
                Image.fromarray(pixels[..., 0].astype(np.uint16) * 256)
                if mode == "I;16"
                else Image.fromarray(pixels).convert(mode)
            )
            try:
                image.save(buffer, kind)
            except OSError:
                continue
            good.append((suffix, buffer.getvalue()))
    for label in "ab":
        (folder / "set" / label).mkdir(parents=True)
        for number in range(4):
            Image.fromarray(pixels).save(folder / "set" / label / f"{number}.png")

    def once(rng: random.Random) -> None:
        suffix, content = rng.choice(good)
        content = huge_image(rng) if rng.random() < 0.05 else mutate_bytes(content, rng)
        if rng.random() < 0.1:
            suffix = rng.choice(good)[0]
        path = folder / "set" / "a" / f"odd.{suffix}"
        path.write_bytes(content)
        try:
            odd = rng.choice(("refuse", "convert"))
            size = rng.choice((None, 8, 12))
            wanted = {"name": str(folder / "set"), "image_size": size, "odd_images": odd}
            data.load(DataConfig.model_validate(wanted))
        finally:
            path.unlink()

    return once


def huge_image(rng: random.Random, png: bool = False) -> bytes:
    """A PNG or GIF that says it is very large."""
    side = 2**31 - 1 if png else rng.choice((20_000, 65_535, 2**31 - 1))
    if png or rng.random() < 0.5:
        import zlib

        head = b"IHDR" + side.to_bytes(4, "big") * 2 + b"\x08\x02\x00\x00\x00"
        chunk = len(head[4:]).to_bytes(4, "big") + head + zlib.crc32(head).to_bytes(4, "big")
        body = b"IDAT" + zlib.compress(b"\x00" * 1000)
        return (
            b"\x89PNG\r\n\x1a\n" + chunk + len(body[4:]).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
        )
    small = min(side, 65_535).to_bytes(2, "little")
    return (
        b"GIF89a"
        + small * 2
        + b"\x80\x00\x00\x00\x00\x00\xff\xff\xff,"
        + b"\x00" * 4
        + small * 2
        + b"\x00\x02\x02D\x01\x00;"
    )


def arrays(folder: Path) -> Once:
    """`.npz` files with damaged bytes, wrong arrays, pickled objects, and members that unpack to much more."""
    rng_ = np.random.default_rng(0)
    x, y = rng_.integers(0, 256, (40, 6, 6), np.uint8), np.arange(40) % 4
    buffer = io.BytesIO()
    np.savez(buffer, x_train=x, y_train=y, x_test=x[:8], y_test=y[:8])
    good = buffer.getvalue()
    path = folder / "set.npz"

    def wrong(rng: random.Random) -> Any:
        kinds = (object, np.float32, np.complex128, "U5", "S3", np.uint16, bool, np.int8, "datetime64[s]")
        shape = rng.choice(
            ((), (0,), (40,), (40, 6), (40, 6, 6), (40, 6, 6, 3), (40, 6, 5), (1, 0, 0), (40, 1, 1, 1, 1))
        )
        return np.zeros(shape, rng.choice(kinds))

    def once(rng: random.Random) -> None:
        kind = rng.random()
        if kind < 0.5:
            path.write_bytes(mutate_bytes(good, rng))
        elif kind < 0.95:
            parts: dict[str, Any] = {"x_train": x, "y_train": y, "x_test": x[:8], "y_test": y[:8]}
            for name in rng.sample(list(parts), rng.choice((1, 1, 2))):
                parts[name] = rng.choice(
                    (wrong(rng), y - 1, y * 10**7, y.astype(np.uint64) + np.uint64(2**63), x[:0], y[:0], y[:3])
                )
            np.savez(path, **parts)
        else:  # some hundred bytes that unpack to many
            head = (
                b"\x93NUMPY\x01\x00v\x00"
                + b"{'descr': '|u1', 'fortran_order': False, 'shape': (%d, 6, 6), }"
                % rng.choice((10**6, 10**12, 10**18))
            )
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
                file.writestr("x_train.npy", head.ljust(127) + b"\n" + bytes(2**22))
                file.writestr("y_train.npy", head.ljust(127) + b"\n" + bytes(2**10))
        data.load(DataConfig(name=str(path)))

    return once
