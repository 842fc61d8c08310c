"""One way to make a model: `build(config, ...)`, by a short name of ours or any name timm knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from steppe.config import ModelConfig
from steppe.errors import ConfigError, RunError, unknown_name
from steppe.models.small import SMALL_MODELS


def build(config: ModelConfig, *, image_size: int, channels: int, classes: int) -> nn.Module:
    """Make the model for images of the given size, with fresh weights from torch's current random state.

    Raises:
        ConfigError: the name is not known, or the model does not fit images of this size.
    """
    options: dict[str, Any] = {
        "img_size": image_size,
        "in_chans": channels,
        "num_classes": classes,
        "drop_rate": config.dropout,
        "drop_path_rate": config.drop_path,
    }
    if config.name not in SMALL_MODELS and not timm.is_model(config.name):
        raise unknown_name("model", config.name, model_names(), where="model.name", see="steppe models")
    try:
        if config.name in SMALL_MODELS:
            model = SMALL_MODELS[config.name][0](**options)
        else:
            model = _from_timm(config.name, options)
        _check_fit(model, image_size, channels, classes)
    except (AssertionError, RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ConfigError(
            f"model {config.name!r} does not fit {image_size}×{image_size} images: {reason}",
            where="model.name",
            mend="choose a smaller patch or another model (`steppe models`), or set data.image_size",
        ) from None
    return model


def model_names() -> list[str]:
    """Every name `build` knows: ours first, then timm's."""
    return [*SMALL_MODELS, *timm.list_models()]


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load weights that a run wrote. Safetensors hold numbers only: nothing in the file is executed."""
    try:
        state = load_file(path)
        model.load_state_dict(state)
    except (OSError, SafetensorError) as error:
        raise RunError(f"the weights cannot be read: {error}", where=str(path), mend="train the run again") from None
    except RuntimeError as error:
        reason = str(error).strip().split("\n")[-1].strip()
        raise RunError(f"the weights belong to another model: {reason}", where=str(path)) from None


def _from_timm(name: str, options: dict[str, Any]) -> nn.Module:
    try:
        return timm.create_model(name, **options)
    except TypeError as error:  # convolutional families take any size and refuse to be told one
        if "img_size" not in str(error):
            raise
        return timm.create_model(name, **{k: v for k, v in options.items() if k != "img_size"})


@torch.no_grad()
def _check_fit(model: nn.Module, image_size: int, channels: int, classes: int) -> None:
    training = model.training
    out = model.eval()(torch.zeros(1, channels, image_size, image_size))
    model.train(training)
    if out.shape != (1, classes):
        raise ValueError(f"it answers with shape {tuple(out.shape)} instead of (1, {classes})")
