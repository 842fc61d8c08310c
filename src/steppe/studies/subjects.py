"""What can be measured: the model of a run folder, or any model with weights from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from steppe import data, models
from steppe.config import DataConfig, ModelConfig, RunConfig
from steppe.data import Dataset, Keeping, as_learned, check_unchanged
from steppe.data.sources import Progress
from steppe.errors import ConfigError, RunError, SteppeError
from steppe.measuring import CROSS_ENTROPY, Loss, check_finite, trained_loss
from steppe.models.freezing import head_parameters
from steppe.models.weights import load_pretrained
from steppe.runs import Run, holds_others, read_json, without_weights, write_json
from steppe.train import build_model, pick_device

_CHANGED = "have changed since they were measured here"
_OTHER_FOLDER = "choose another folder with --out, or bring back what was measured"


@dataclass(frozen=True)
class Subject:
    """What is measured, and where the results go."""

    folder: Path
    model: nn.Module
    dataset: Dataset
    loss: Loss
    device: torch.device
    fresh: Callable[[], nn.Module] | None = None
    """Makes the model with the weights it began with; only a run knows them."""


def open_run(
    path: str | Path,
    *,
    data_root: str | Path | None = None,
    device: str | None = None,
    progress: Progress | None = None,
    dataset: Dataset | None = None,
    keeping: Keeping | None = None,
) -> Subject:
    """Open a run folder for measuring: its final weights on the data it learned.

    Args:
        path: the run folder.
        data_root: where named data sets live.
        device: by default the GPU where there is one.
        progress: told how a slow reading of the data goes.
        dataset: the run's data, if they are loaded already.
        keeping: where the images are kept otherwise.

    Raises:
        RunError: there is no such run, or it has no weights.
        DataError: the data are not those it learned.
        MeasureError: its weights are not numbers.
    """
    run = Run(path)
    config = run.config
    if not run.weights.is_file():
        raise without_weights(run)
    place = pick_device(device)
    dataset = load_learned(run, data_root, progress, keeping) if dataset is None else _recognise(run, dataset)
    model = models.place(load_model(run, dataset), place, dataset.image_size)
    check_finite(model, str(run.weights))
    fresh = partial(_fresh, config, dataset, place)
    return Subject(run.path, model, dataset, trained_loss(config), place, fresh)


def open_model(
    name: str,
    weights: str,
    data_name: str,
    folder: str | Path,
    *,
    image_size: int | None = None,
    data_root: str | Path | None = None,
    device: str | None = None,
    progress: Progress | None = None,
    keeping: Keeping | None = None,
) -> Subject:
    """Open any model with weights from elsewhere for measuring; the results go to a folder of their own.

    Images are normalised as the weights were trained where that is known, else by the data's own statistics.

    Args:
        name: a model's name, ours or timm's.
        weights: a file, a run folder, "timm", "timm:NAME" or "hf-hub:NAME".
        data_name: a data set with the classes the weights know.
        folder: where results go.
        image_size: side of the images; by default the data's own.
        data_root: where named data sets live.
        device: by default the GPU where there is one.
        progress: told how a slow reading of the data goes.
        keeping: where the images are kept.
    """
    place = pick_device(device)
    folder = Path(folder)
    about = {"model": name, "weights": weights, "data": data_name, "image_size": image_size}
    if (folder / "config.toml").exists():
        raise RunError("this is a run's folder", where=str(folder), fix="choose another with --out")
    known = _known(folder / "subject.json")
    if holds_others(folder) and {key: known.get(key) for key in about} != about:
        what = "this folder holds something else than results of this model, these weights and data"
        raise RunError(what, where=str(folder), fix="choose another with --out")
    digest, images = models.weights_sha256(weights, name), known.get("images")
    images = images if isinstance(images, dict) else {}
    if known.get("weights_sha256") not in (None, digest):
        raise RunError(f"the weights {weights} {_CHANGED}", where=str(folder), fix=_OTHER_FOLDER)
    dataset = data.load(DataConfig(name=data_name, image_size=image_size), data_root, progress, keeping=keeping)
    check_unchanged(images, dataset, what=f"the data {data_name!r} {_CHANGED}", where=str(folder), fix=_OTHER_FOLDER)
    dataset = as_learned(dataset, images)
    known = {**about, "weights_sha256": digest, "images": images or dataset.describe()}
    config = ModelConfig(name=name, mode="finetune", weights=weights)
    size, classes = dataset.image_size, len(dataset.classes)
    model = models.build(config, image_size=size, channels=dataset.channels, classes=classes, load=False)
    head = head_parameters(model)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key in head:
                parameter.fill_(math.nan)
    load_pretrained(model, weights, name)
    if any(bool(p.isnan().any()) for key, p in model.named_parameters() if key in head):
        what = f"the head of {weights} is not one of {classes} classes, so there is nothing to measure on {data_name!r}"
        raise ConfigError(what, where="--weights", fix="train it on these data first: steppe train --mode finetune")
    check_finite(model, weights)
    statistics = models.expected_statistics(config, dataset.channels)
    if statistics is not None:
        dataset = replace(dataset, mean=statistics[0], std=statistics[1])
    write_json(folder / "subject.json", known)
    return Subject(folder, model.eval().to(place), dataset, CROSS_ENTROPY, place)


def load_learned(
    run: Run,
    data_root: str | Path | None = None,
    progress: Progress | None = None,
    keeping: Keeping | None = None,
) -> Dataset:
    """Load the data a run learned from, normalised as it did.

    Args:
        run: the run.
        data_root: where named data sets live.
        progress: told how a slow reading goes.
        keeping: where the images are kept.

    Raises:
        DataError: they are not there, or are others.
    """
    return _recognise(run, data.load(run.config.data, data_root, progress, keeping=keeping))


def _recognise(run: Run, dataset: Dataset) -> Dataset:
    about = run.read_or_empty("data.json")
    what, fix = "these are not the data the run learned from", "point --data-root at the data it was trained on"
    check_unchanged(about, dataset, what=what, where=str(run.path), fix=fix)
    return as_learned(dataset, about)


def load_model(run: Run, dataset: Dataset) -> nn.Module:
    """Build a run's model and load its final weights."""
    size, channels = dataset.image_size, dataset.channels
    model = models.build(run.config.model, image_size=size, channels=channels, classes=len(dataset.classes), load=False)
    models.load_weights(model, run.weights)
    return model.eval()


def _known(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
    except SteppeError:
        return {}
    return found if isinstance(found, dict) else {}


def _fresh(config: RunConfig, dataset: Dataset, device: torch.device) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        return build_model(config, dataset).to(device).eval()
