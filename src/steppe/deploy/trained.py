"""A trained network, opened without the data it learned: from a run folder, or from a folder `steppe export` made.

What a network needs to know of its data (classes, sizes, statistics) is a `Dataset` without images, so that new images
go through the very code that training and evaluation use.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from steppe import models
from steppe.config import ModelConfig
from steppe.data import TOYS, Dataset, Split
from steppe.errors import RunError
from steppe.measuring import check_finite
from steppe.runs import Run, find_trained, read_export
from steppe.train import pick_device

WEIGHTS = "model.safetensors"
"""The weights of an exported folder; beside them lies config.json."""

_NATIVE_SIZES = {"digits": 8, "mnist": 28, "fashion_mnist": 28, "cifar10": 32, "cifar100": 32}
"""For runs from before data.json told the side at which images are kept."""


@dataclass(frozen=True)
class Trained:
    """A network with its final weights, and what it needs to know of its data."""

    folder: Path
    name: str
    """Of the run."""
    network: ModelConfig
    model: nn.Module
    images: Dataset
    """The data set, without images: classes, sizes, statistics."""
    odd_images: str
    """Whether images that are not 8-bit RGB or grey are "refuse"d or "convert"ed."""
    weights: Path
    device: torch.device
    run: Run | None = None
    """None for an exported folder."""
    exported: Mapping[str, Any] | None = None
    """What config.json of an exported folder says."""

    @property
    def takes_pictures(self) -> bool:
        """Whether it classifies pictures, and not points in the plane."""
        return not self.images.train.store.dtype.is_floating_point  # type: ignore[union-attr]

    def model_on_cpu(self) -> nn.Module:
        """The network itself, or a copy on the CPU: others are compared there, where float32 is float32."""
        return self.model if self.device.type == "cpu" else copy.deepcopy(self.model).cpu()

    @property
    def resized_twice(self) -> str:
        """What other programs' pre-processing may leave out: images enlarged from a smaller side; else empty."""
        stored, size = self.images.train.shape[-1], self.images.image_size
        if stored == size or not self.takes_pictures:
            return ""
        return f"it learned images kept at {stored}×{stored} and brought to {size}×{size}: resize to {stored} first"


def open_trained(path: str | Path, *, device: str | None = None) -> Trained:
    """Open a run folder, an exported folder, or the best run of a search, for use; the data need not be here.

    Args:
        path: the folder.
        device: by default the GPU where there is one.

    Raises:
        RunError: there is no such folder, it has no weights, or it does not say what its images are.
        MeasureError: its weights are not numbers.
    """
    path = find_trained(path)
    exported = read_export(path)
    if exported is not None:
        return _open_exported(path, exported, device)
    run = Run(path)
    config = run.config
    about = run.read("data.json")
    native = _NATIVE_SIZES.get(config.data.name, about.get("image_size"))
    stored = about.get("stored_size") or config.data.stored_size or native
    images = describe_images({**about, "stored_size": stored}, str(run.path / "data.json"))
    network = config.model.model_copy(update={"mode": None, "weights": None, "last_blocks": None})
    return _open(path, run.id, network, images, config.data.odd_images, run.weights, device, run=run)


def describe_images(about: Mapping[str, Any], where: str) -> Dataset:
    """Make a data set without images from what `data.json` says of one.

    Args:
        about: as `Dataset.describe` gives it.
        where: the file, for the error.

    Raises:
        RunError: it does not say enough.
    """
    try:
        classes = tuple(str(name) for name in list(about["classes"]))
        size, stored, channels = (int(about[key]) for key in ("image_size", "stored_size", "channels"))
        mean, std = (tuple(float(value) for value in about[key]) for key in ("mean", "std"))
        if len(classes) < 2 or min(size, stored, channels) < 1 or max(size, stored) > 4096 or channels > 4:
            raise ValueError("impossible sizes")
        if not len(mean) == len(std) == channels or not all(map(math.isfinite, mean + std)) or min(std) <= 0:
            raise ValueError("impossible statistics")
    except (KeyError, TypeError, ValueError):
        fix = "bring the file back as training wrote it"
        raise RunError("this does not say what the network's images are", where=where, fix=fix) from None
    name = str(about.get("name", ""))
    kind = torch.float32 if name in TOYS else torch.uint8
    none = Split(torch.empty(0, channels, stored, stored, dtype=kind), torch.empty(0, dtype=torch.int64))
    fingerprint = str(about.get("fingerprint", ""))
    return Dataset(name, classes, none, none, none, mean, std, fingerprint, None if size == stored else size)


def _open_exported(path: Path, about: dict[str, Any], device: str | None) -> Trained:
    where = str(path / "config.json")
    if not (path / WEIGHTS).is_file():
        fix = "export it with --format safetensors, or name the run folder"
        what = f"this folder has no {WEIGHTS}" + (": it is for onnxruntime" if (path / "model.onnx").exists() else "")
        raise RunError(what, where=str(path), fix=fix)
    data = about.get("data")
    images = describe_images(data if isinstance(data, dict) else {}, where)
    name = str(about.get("model") or "")
    if not name:
        raise RunError("this does not say which network it is", where=where, fix="export the run again")
    network, odd = ModelConfig(name=name), "convert" if about.get("odd_images") == "convert" else "refuse"
    return _open(path, str(about.get("run", "")), network, images, odd, path / WEIGHTS, device, exported=about)


def _open(
    folder: Path,
    name: str,
    network: ModelConfig,
    images: Dataset,
    odd_images: str,
    weights: Path,
    device: str | None,
    run: Run | None = None,
    exported: Mapping[str, Any] | None = None,
) -> Trained:
    place = pick_device(device)
    size, channels, classes = images.image_size, images.channels, len(images.classes)
    model = models.build(network, image_size=size, channels=channels, classes=classes, load=False)
    models.load_weights(model, weights)
    check_finite(model, str(weights))
    model = models.place(model.eval().requires_grad_(False), place, size)
    return Trained(folder, name, network, model, images, odd_images, weights, place, run, exported)
