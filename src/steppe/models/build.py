"""One way to make a model: `build(config, ...)`, by a short name of ours or any name timm knows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MethodType
from typing import Any

import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from steppe.config import ModelConfig
from steppe.config.lookup import check_model_name
from steppe.errors import ConfigError, RunError
from steppe.models.freezing import apply_mode, zero_head
from steppe.models.initialisation import initialise
from steppe.models.names import SMALL_MODELS, short_name
from steppe.models.normalisation import expected_statistics
from steppe.models.side_by_side import SideBySide, split_name
from steppe.models.weights import load_pretrained
from steppe.plain_files import check_plain

PHOTO_SIDE = 64
"""From this side on convolutions on a CPU are computed channels-last."""
_RATES = {"block_dropout": "proj_drop_rate", "attention_dropout": "attn_drop_rate"}


def build(config: ModelConfig, *, image_size: int, channels: int, classes: int, load: bool = True) -> nn.Module:
    """Make the model for images of the given size: fresh or pretrained weights, and what does not train frozen.

    Fresh weights come from torch's current random state, but a fresh head on pretrained weights is zero. A name of ours
    comes before timm's own; `timm:NAME` is timm's in any case.

    Args:
        config: the network, where its weights come from and how much of it trains.
        image_size: side of the images in pixels.
        channels: channels of the images.
        classes: size of the answer.
        load: read `config.weights`; False where all weights are overwritten anyway, as when a run is loaded.

    Raises:
        ConfigError: the name is not known, the model does not fit images of this size, or the weights do not fit it.
    """
    model = _make_parts(config, image_size, channels, classes, load)
    apply_mode(model, config)
    return model


def _make_parts(config: ModelConfig, image_size: int, channels: int, classes: int, load: bool) -> nn.Module:
    """Make one network, or several side by side, with the weights that the configuration names."""
    names = split_name(config.name)
    if len(names) == 1:
        model = _make(config, image_size, channels, classes)
        if (
            load
            and config.weights is not None
            and not load_pretrained(model, config.weights, config.name, quiet=config.mode == "probe")
        ):
            zero_head(model)
        return model
    weights = split_name(config.weights or "")
    if load and len(weights) != len(names):
        what = f"{len(names)} networks side by side need {len(names)} weights, joined by +"
        raise ConfigError(what, where="model.weights", fix=f"weights = {'+'.join(['WEIGHTS'] * len(names))!r}")
    parts, statistics = [], []
    for name, source in zip(names, weights if load else [None] * len(names), strict=True):
        one = config.model_copy(update={"name": name, "weights": source})
        part = _make(one, image_size, channels, classes)
        if source is not None:
            load_pretrained(part, source, name, quiet=True)
            statistics.append(expected_statistics(one, channels))
        if not hasattr(part, "reset_classifier") or not hasattr(part, "head_hidden_size"):
            raise ConfigError(f"{name!r} cannot stand beside other networks", where="model.name")
        part.reset_classifier(0)  # type: ignore[operator]
        parts.append(part)
    joined = SideBySide(parts, channels, classes)
    if statistics:
        joined.set_statistics(statistics)
        zero_head(joined)
    return joined


def place(model: nn.Module, device: torch.device, image_size: int) -> nn.Module:
    """Move a model to a device, in the memory format that is fast there.

    Convolutions over photographs are up to three times faster channels-last, on a CPU too. Small images on a CPU keep
    the plain format, in which nothing is to be gained.

    Args:
        model: is changed in place, and returned.
        device: where it goes.
        image_size: side of the images in pixels.
    """
    if device.type == "cuda" or image_size >= PHOTO_SIDE:
        return model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model.to(device)


def model_names() -> list[str]:
    """Every name `build` knows: ours first, then timm's. The grammar of ours reads more than are listed."""
    return list(dict.fromkeys([*SMALL_MODELS, *timm.list_models()]))


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load weights that a run wrote. Safetensors hold numbers only: nothing in the file is executed.

    Raises:
        RunError: the file is damaged, is another model's, or holds numbers of another type than training wrote.
    """
    try:
        check_plain(path)
        state = load_file(path)
        _check_types(model, state, path)
        model.load_state_dict(state)
    except (OSError, SafetensorError) as error:
        raise RunError(f"the weights cannot be read: {error}", where=str(path), fix="train the run again") from None
    except RuntimeError as error:
        reason = str(error).strip().split("\n")[-1].strip()
        raise RunError(f"the weights belong to another model: {reason}", where=str(path)) from None


def _check_types(model: nn.Module, state: Mapping[str, torch.Tensor], path: str | Path) -> None:
    """Refuse numbers of another type: torch would convert them silently, and the network would be another."""
    for key, value in model.state_dict().items():
        if key in state and state[key].dtype != value.dtype:
            kinds = f"{str(state[key].dtype).removeprefix('torch.')}, not {str(value.dtype).removeprefix('torch.')}"
            what = f"the weights were changed after training: {key!r} is {kinds}"
            raise RunError(
                what, where=str(path), fix="bring the file back as training wrote it, or train the run again"
            )


def _make(config: ModelConfig, image_size: int, channels: int, classes: int) -> nn.Module:
    options: dict[str, Any] = {
        "img_size": image_size,
        "in_chans": channels,
        "num_classes": classes,
        "drop_rate": config.dropout,
        "drop_path_rate": config.drop_path,
    }
    options |= {option: getattr(config, key) for key, option in _RATES.items() if getattr(config, key)}
    known = short_name(config.name)
    timm_name = config.name.removeprefix("timm:")
    if known is None:
        check_model_name(config.name)
    try:
        model = known.build(**options) if known else _from_timm(timm_name, options)
        initialise(model, config)
        _forget_biases(model)
        _check_fit(model, image_size, channels, classes)
    except ConfigError:
        raise
    except Exception as error:  # timm's builders fail in ways of their own
        for key, option in _RATES.items():
            if isinstance(error, TypeError) and f"{option!r}" in str(error):
                raise ConfigError(f"{key} means nothing to {config.name!r}", where=f"model.{key}") from None
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ConfigError(
            f"model {config.name!r} does not fit {image_size}×{image_size} images: {reason}",
            where="model.name",
            fix="choose a smaller patch or another model (`steppe models`), or set data.image_size",
        ) from None
    if config.block_dropout and isinstance(getattr(model, "pos_drop", None), nn.Dropout):
        model.pos_drop.p = config.block_dropout  # type: ignore[union-attr]
    return model


def _from_timm(name: str, options: dict[str, Any]) -> nn.Module:
    """Make timm's model; families that cannot be told the image size, or have no such rate, are not told a zero."""
    try:
        return timm.create_model(name, **options)
    except TypeError as error:
        for option in ("img_size", "drop_path_rate", "drop_rate"):
            if f"'{option}'" in str(error) and (option == "img_size" or options.get(option) == 0):
                return _from_timm(name, {key: value for key, value in options.items() if key != option})
        raise


def _forget_biases(model: nn.Module) -> None:
    """Let attention look its biases up each time, in evaluation too.

    timm's TinyViT and relatives keep them from the first answer on. So noise on the weights would leave them as they
    were, and a second gradient would ask for a graph that is gone.
    """
    for module in model.modules():
        if hasattr(module, "attention_bias_cache"):
            module.get_attention_biases = MethodType(_look_up_biases, module)  # type: ignore[assignment]


def _look_up_biases(attention: Any, device: torch.device) -> torch.Tensor:
    return attention.attention_biases[:, attention.attention_bias_idxs]


@torch.no_grad()
def _check_fit(model: nn.Module, image_size: int, channels: int, classes: int) -> None:
    training = model.training
    out = model.eval()(torch.zeros(1, channels, image_size, image_size))
    model.train(training)
    if out.shape != (1, classes):
        raise ValueError(f"it answers with shape {tuple(out.shape)} instead of (1, {classes})")
