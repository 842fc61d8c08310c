"""Which mean and deviation pretrained weights were trained with, where that is known."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import timm
from timm.models import load_model_config_from_hf

from steppe.config import ModelConfig
from steppe.models.foreign import statistics_of
from steppe.models.weights import (
    HUB_PREFIXES,
    cache_only,
    hub_answers,
    read_weights,
    timm_name,
    weights_file,
    weights_in,
)
from steppe.plain_files import read_plain_text

Statistics = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation of each channel, of pixels from 0 to 1."""


def expected_statistics(config: ModelConfig, channels: int) -> Statistics | None:
    """Mean and deviation of the images that a model's pretrained weights were trained with.

    timm and a hub tell it of theirs, a run of its own; other projects' files are known by their entries.

    Args:
        config: the model, and where its weights come from.
        channels: of the images; what was of colour images tells nothing of grey ones.

    Returns:
        None where it is not known, where channels differ, and without weights.

    Raises:
        ConfigError: there are no such weights, or they cannot be read.
    """
    source = config.weights
    if source is None:
        return None
    path = weights_file(source)
    if path is not None:
        found = _of_file(path, source)
    elif source.startswith(HUB_PREFIXES):
        found = _of_hub(source)
    else:
        known = timm.get_pretrained_cfg(timm_name(source, config.name), allow_unregistered=False)
        found = _checked(known.mean, known.std) if known else None
    return found if found and len(found[0]) == channels else None


def _of_file(path: Path, source: str) -> Statistics | None:
    if path.suffix != ".safetensors":
        return statistics_of(weights_in(read_weights(source, ""), source))
    try:
        about = json.loads(read_plain_text(path.with_name("data.json")))
        return _checked(about["mean"], about["std"])
    except (OSError, ValueError, KeyError, TypeError):  # not of a run
        return None


def _of_hub(source: str) -> Statistics | None:
    try:
        with cache_only(not hub_answers()):
            known = load_model_config_from_hf(source.partition(":")[2])[0]
    except Exception:  # whatever the hub's client raises; who fetches the weights says it better
        return None
    return _checked(known.get("mean"), known.get("std"))


def _checked(mean: Any, std: Any) -> Statistics | None:
    """The two as tuples; None where they are no such numbers."""
    try:
        found = tuple(map(float, mean)), tuple(map(float, std))
    except (TypeError, ValueError):
        return None
    fine = len(found[0]) == len(found[1]) and all(map(math.isfinite, sum(found, ()))) and min(found[1], default=0) > 0
    return found if fine else None
