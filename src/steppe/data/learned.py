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


def is_learned(dataset: Dataset, about: Mapping[str, Any]) -> bool:
    """Whether a data set is the one that `data.json` of a run describes.

    Args:
        dataset: what is here.
        about: as `Dataset.describe` gave it; without a fingerprint anything will do.
    """
    learned = about.get("fingerprint")
    if not learned or learned in (dataset.fingerprint, dataset.files):
        return True
    if dataset.train.in_memory or about.get("examples") != dataset.describe()["examples"]:
        return False
    if about.get("files") == dataset.files:
        return True
    return fingerprint_pixels(dataset.train, dataset.val, dataset.test) == learned


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
