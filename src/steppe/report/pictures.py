"""Pictures of a run folder, made small enough to stand inside the page.

A picture is decoded and encoded again, so that nothing but an image reaches the page.
"""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

from PIL import Image

from steppe.plain_files import open_plain
from steppe.report.record import Record, dig

_LARGEST_FILE = 20_000_000
_MOST_PIXELS = 20_000_000
_WIDEST = 800
_SMALL = 30_000


class PictureBudget:
    """How many bytes of pictures the page still has room for."""

    def __init__(self, left: int = 3_000_000) -> None:
        self.left = left

    def take(self, size: int) -> bool:
        """Use some of it; False where there is not enough left."""
        if size > self.left:
            return False
        self.left -= size
        return True


def read_attention(record: Record, budget: PictureBudget) -> dict[str, Any] | None:
    """Read a run's attention maps as one picture: a sheet of square cells, else the figure for papers.

    Returns:
        `src`, a data URI; `columns` and `lines` of cells, both 0 for a whole figure; the `images`' numbers.
    """
    images = dig(record.geometry, "attention", "images")
    listed = [n for n in images if isinstance(n, int)] if isinstance(images, list) else []
    for name, cells in (("attention_sheet.png", True), ("attention.png", False)):
        found = shrink(record.path / "figures" / name)
        if found is None:
            continue
        data, (width, height) = found
        columns = len(listed)
        if cells and (not columns or width % columns or height % (width // columns)):
            continue
        if not budget.take(len(data)):
            return None
        lines = height // (width // columns) if cells else 0
        source = "data:image/webp;base64," + base64.b64encode(data).decode()
        return {"src": source, "columns": columns if cells else 0, "lines": lines, "images": listed}
    return None


def cut_row(path: Path, count: int, budget: PictureBudget) -> list[str]:
    """Cut a JPEG file with one row of square pictures into data URIs; empty where it cannot be read.

    Args:
        path: the file.
        count: how many pictures it holds.
        budget: what the page has room for.
    """
    row = _decode(path, "JPEG")
    if row is None or row.width != row.height * count:
        return []
    cells = []
    for place in range(count):
        out = io.BytesIO()
        row.crop((place * row.height, 0, (place + 1) * row.height, row.height)).save(out, "JPEG", quality=80)
        cells.append(out.getvalue())
    if not budget.take(sum(map(len, cells))):
        return []
    return ["data:image/jpeg;base64," + base64.b64encode(cell).decode() for cell in cells]


def shrink(path: Path) -> tuple[bytes, tuple[int, int]] | None:
    """Read a PNG as a small WebP, with its size before; None where it cannot be read."""
    shown = _decode(path, "PNG")
    if shown is None:
        return None
    size = shown.size
    if shown.width > _WIDEST:
        shown = shown.resize((_WIDEST, max(1, round(shown.height * _WIDEST / shown.width))), Image.Resampling.LANCZOS)
    sharp = _encode(shown, lossless=True)  # enlarged pixels and flat colours take little as they are
    return (sharp if len(sharp) <= _SMALL else _encode(shown, quality=82)), size


def _decode(path: Path, kind: str) -> Image.Image | None:
    """Read a picture of one kind; None where there is none, or one that is too large."""
    try:
        if path.stat().st_size > _LARGEST_FILE:
            return None
        with open_plain(path) as file, Image.open(file, formats=[kind]) as picture:
            if picture.width * picture.height > _MOST_PIXELS:
                return None
            return picture.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def _encode(picture: Image.Image, **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, "WEBP", method=4, **options)
    return out.getvalue()
