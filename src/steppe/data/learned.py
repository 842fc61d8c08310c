"""Whether these are the data that a run learned from, however their images are kept here and were kept there.

In memory a data set knows the fingerprint of its pixels, on the disk only that of its files (names and sizes). Where
both sides know their pixels, these decide. Where one has its images on the disk, the files do; and a run from before
both were written down is recognised by reading the images once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from steppe.data.dataset import Dataset, fingerprint_pixels
from steppe.errors import DataError

SPLITS = {"train": "training", "val": "validation", "test": "test"}
"""The splits as `data.json` names them, and in words."""


def is_learned(dataset: Dataset, about: Mapping[str, Any]) -> bool:
    """Whether a data set is the one that `data.json` of a run describes.

    Args:
        dataset: what is here.
        about: as `Dataset.describe` gave it; without a fingerprint anything will do.
    """
    learned = about.get("fingerprint")
    if not learned or learned in (dataset.fingerprint, dataset.files):
        return True
    if dataset.train.in_memory or about.get("examples") != dataset.examples:
        return False
    if about.get("files") == dataset.files:
        return True
    return fingerprint_pixels(dataset.train, dataset.val, dataset.test) == learned


def check_unchanged(
    recorded: Mapping[str, Any],
    dataset: Dataset,
    *,
    what: str = "the data are not those this run was made with",
    where: str | None = None,
    fix: str = "bring the old data back, or choose another folder with --out",
) -> None:
    """Refuse a data set that is not the one that was recorded.

    Args:
        recorded: the content of `data.json`, from `Dataset.describe`; where it is empty any data set will do.
        dataset: what is here.
        what: the error's first words; what has changed follows.
        where: the folder that `recorded` belongs to.
        fix: what to do about it.

    Raises:
        DataError: it is another; the error names what has changed.
    """
    if not is_learned(dataset, recorded):
        changes = list_changes(recorded, dataset.describe()) or ["the images have changed"]
        raise DataError(f"{what}: {'; '.join(changes)}", where=where, fix=fix)


def list_changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Say in words in what two recorded data sets differ, such as "172 training images then, 171 now".

    Args:
        then: the content of a `data.json`.
        now: another, or what `Dataset.describe` gives.
    """
    changes = []
    before, after = ([str(name) for name in _list(about, "classes")] for about in (then, now))
    if len(before) != len(after):
        changes.append(f"{len(before)} classes then, {len(after)} now")
    elif before != after:
        old, new = next((a, b) for a, b in zip(before, after, strict=True) if a != b)
        changes.append(f"the class {old!r} then is {new!r} now")
    for key, unit in (("stored_size", "pixels a side"), ("channels", "channels")):
        if key in then and then[key] != now.get(key):
            changes.append(f"{then[key]} {unit} then, {now.get(key)} now")
    for split, words in SPLITS.items():
        old_count, new_count = (_table(about, "examples").get(split) for about in (then, now))
        if old_count is not None and old_count != new_count:
            changes.append(f"{old_count} {words} images then, {new_count} now")
        elif has_same_images(then, now, split) is False:
            changes.append(f"the {words} images are others")
    return changes


def has_same_images(a: Mapping[str, Any], b: Mapping[str, Any], split: str) -> bool | None:
    """Whether a split of two recorded data sets holds the same images in the same order; None where nobody knows.

    Pixels decide where both were recorded at one size, else the names and sizes of the files.

    Args:
        a: the content of a `data.json`.
        b: another.
        split: "train", "val" or "test".
    """
    counts = {_table(about, "examples").get(split) for about in (a, b)} - {None}
    if len(counts) > 1:
        return False
    if a.get("fingerprint") and a["fingerprint"] == b.get("fingerprint"):
        return True
    own = [_table(_table(about, "splits"), split) for about in (a, b)]
    if a.get("stored_size") == b.get("stored_size") and all("pixels" in one for one in own):
        return bool(own[0]["pixels"] == own[1]["pixels"])
    if all("files" in one for one in own):
        return bool(own[0]["files"] == own[1]["files"])
    return None


def _table(about: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = about.get(key)
    return found if isinstance(found, Mapping) else {}


def _list(about: Mapping[str, Any], key: str) -> list[Any]:
    found = about.get(key)
    return found if isinstance(found, list) else []


def as_learned(dataset: Dataset, about: Mapping[str, Any]) -> Dataset:
    """The same images with the statistics and the fingerprint of the run that learned from them.

    Statistics of many images on the disk are those of a sample, so they depend a little on how images are kept.

    Args:
        dataset: what `is_learned` has recognised.
        about: the run's `data.json`.
    """
    fingerprint = str(about.get("fingerprint") or dataset.fingerprint)
    try:
        mean, std = (tuple(float(value) for value in about[key]) for key in ("mean", "std"))
        right = len(mean) == len(std) == dataset.channels and all(map(math.isfinite, mean + std)) and min(std) > 0
    except (KeyError, TypeError, ValueError):
        right = False
    if not right:
        return replace(dataset, fingerprint=fingerprint)
    return replace(dataset, fingerprint=fingerprint, mean=mean, std=std)
