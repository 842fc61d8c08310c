"""Groups of rows that were tested on the same images: only their accuracies compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from steppe.report.rows import Row, show_value


class ImageSet(NamedTuple):
    """What settles the test images of a configuration."""

    name: str
    variance: float | None
    test_fraction: float
    split_seed: int


def images_of(row: Row) -> ImageSet:
    """Return what determines a row's test images."""
    data = row.config.data
    return ImageSet(data.name, data.variance, data.test_fraction, data.split_seed)


def deciding_accuracy(rows: Sequence[Row]) -> str:
    """Choose the accuracy by which rows compare: test; validation for the trials of a search, which are not tested.

    Args:
        rows: of the same test images.

    Returns:
        "test_accuracy" or "val_accuracy".
    """
    tried = [row for row in rows if row.test_accuracy.mean is None and row.val_accuracy.mean is not None]
    return "val_accuracy" if tried else "test_accuracy"


def short_name(data: str) -> str:
    """Shorten the name of a data set that is a folder to the folder's own name."""
    return data.rstrip("/").rsplit("/", 1)[-1] or data


def name_test_sets(rows: Sequence[Row]) -> list[str]:
    """Name the test images of every row: the data set, and where one name has several, how they differ."""
    sets = [images_of(row) for row in rows]
    short = {s.name: short_name(s.name) for s in sets}
    if len(set(short.values())) < len(short):  # folders of one name in different places
        short = {name: name for name in short}
    out = []
    for own in sets:
        namesakes = [s for s in sets if s.name == own.name]
        differing = [i for i in range(1, len(own)) if len({s[i] for s in namesakes}) > 1]
        words = [f"{ImageSet._fields[i].replace('_', ' ')} {show_value(own[i])}" for i in differing]
        out.append(" · ".join([short[own.name], *words]))
    return out


def split_by_test_set(rows: Sequence[Row]) -> dict[str, list[int]]:
    """Group the positions of the rows by the name of their test set."""
    groups: dict[str, list[int]] = {}
    for index, name in enumerate(name_test_sets(rows)):
        groups.setdefault(name, []).append(index)
    return groups
