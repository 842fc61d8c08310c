"""Which mean and deviation pretrained weights were trained with, where that is known."""

from __future__ import annotations

from pathlib import Path

import timm
from timm.models import load_model_config_from_hf

from steppe.config import PRETRAINED, ModelConfig, describe_file
from steppe.config.pretrained import Statistics, checked_statistics
from steppe.models.foreign import statistics_of
from steppe.models.side_by_side import split_name
from steppe.models.weights import (
    HUB_PREFIXES,
    cache_only,
    hub_answers,
    ingredients,
    read_weights,
    timm_name,
    weights_file,
    weights_in,
)


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
    if len(sources := split_name(source)) > 1:  # images are normalised for the first of several networks
        first = config.model_copy(update={"name": split_name(config.name)[0], "weights": sources[0]})
        return expected_statistics(first, channels)
    source = (ingredients(source) or [source])[0]
    path = weights_file(source)
    if path is not None:
        found = _of_file(path, source)
    elif source.startswith(HUB_PREFIXES):
        found = _of_hub(source)
    else:
        known = timm.get_pretrained_cfg(timm_name(source, config.name), allow_unregistered=False)
        found = checked_statistics(known.mean, known.std) if known else None
    return found if found and len(found[0]) == channels else None


def _of_file(path: Path, source: str) -> Statistics | None:
    about = PRETRAINED.get(source) or describe_file(path)
    if about is None and path.suffix != ".safetensors":
        return statistics_of(weights_in(read_weights(source, ""), source))
    return about.statistics if about else None


def _of_hub(source: str) -> Statistics | None:
    try:
        with cache_only(not hub_answers()):
            known = load_model_config_from_hf(source.partition(":")[2])[0]
    except Exception:  # whatever the hub's client raises; who fetches the weights says it better
        return None
    return checked_statistics(known.get("mean"), known.get("std"))
