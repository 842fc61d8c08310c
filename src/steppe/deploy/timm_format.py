"""timm's own layout: model.safetensors and a config.json that `timm.create_model("local-dir:FOLDER")` reads."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import timm
import torch

from steppe.deploy.checking import compare, sample_images
from steppe.deploy.trained import WEIGHTS, Trained
from steppe.deploy.twins import Twin, find_twin
from steppe.errors import ConfigError
from steppe.runs import write_json
from steppe.train.checkpoint import save_weights

OTHERWISE = "use --format onnx, or --format safetensors, which steppe itself reads"


def write_timm(trained: Trained, folder: Path, about: dict[str, Any]) -> float:
    """Write a folder that timm loads, load it by timm, and compare.

    Args:
        trained: the network.
        folder: where to write; it exists.
        about: what config.json says of steppe's own.

    Returns:
        The largest difference between the logits of timm's network and of ours.

    Raises:
        ConfigError: timm cannot build this network.
    """
    size, channels = trained.images.image_size, trained.images.channels
    twin = find_twin(trained.network.name, trained.model, size)
    if isinstance(twin, str):
        raise _refusal(trained, twin)
    save_weights(folder / WEIGHTS, trained.model.state_dict())
    first = {"in_chans": channels, "num_classes": len(trained.images.classes)}
    reason = ""
    for arguments in _variants(twin, first):
        write_json(folder / "config.json", describe(trained, twin.architecture, arguments, about))
        try:
            with _quiet():
                loaded = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
            images = sample_images(trained)
            with torch.no_grad():
                return compare(loaded(images), trained, images, "timm")
        except ConfigError:
            raise
        except Exception as error:  # timm's builders fail in ways of their own
            reason = str(error).strip().split("\n")[0] or type(error).__name__
    raise _refusal(trained, reason)


def describe(trained: Trained, architecture: str, arguments: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    """The content of config.json, with what timm reads and what steppe adds.

    Args:
        trained: the network.
        architecture: timm's name for it.
        arguments: what changes that into our network.
        about: what steppe says of it.
    """
    images = trained.images
    known = timm.get_pretrained_cfg(architecture, allow_unregistered=True)
    return {
        "architecture": architecture,
        "num_classes": len(images.classes),
        "num_features": int(getattr(trained.model, "num_features", 0)),
        "label_names": list(images.classes),
        "model_args": arguments,
        "pretrained_cfg": {
            "tag": "steppe",
            "custom_load": False,
            "input_size": [images.channels, images.image_size, images.image_size],
            "fixed_input_size": bool(known and known.fixed_input_size),
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "crop_mode": "center",
            "mean": list(images.mean),
            "std": list(images.std),
            "num_classes": len(images.classes),
            "first_conv": known.first_conv if known and images.channels == 3 else None,
            "classifier": known.classifier if known else None,
        },
        "steppe": about,
    }


def _variants(twin: Twin, first: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """With the image size, and without it for families that cannot be told one."""
    yield first | twin.arguments
    if "img_size" in twin.arguments:
        yield first | {key: value for key, value in twin.arguments.items() if key != "img_size"}


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what timm logs of every file it finds; errors are told by exceptions."""
    log = logging.getLogger("timm")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _refusal(trained: Trained, reason: str) -> ConfigError:
    size = trained.images.image_size
    what = f"timm cannot build {trained.network.name!r} for {size}×{size} images: {reason}"
    return ConfigError(what, where=str(trained.folder), fix=OTHERWISE)
