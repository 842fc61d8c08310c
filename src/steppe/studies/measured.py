"""Measures added to what is there: a run folder, or a folder made for a model with weights from elsewhere.

Every result is written as soon as it is found, with its settings beside it; one that is there with the same settings
is not computed again. What a long measure has found so far lies in `<file>.partial.json` until it is done.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import timm
import torch
from torch import nn

from steppe import data, models
from steppe.config import DataConfig, ModelConfig, RunConfig
from steppe.data import Dataset
from steppe.data.sources import Progress
from steppe.errors import ConfigError, DataError, MeasureError, RunError, SteppeError
from steppe.geometry import trained_loss
from steppe.measuring import Loss, Measure, Settings, check_finite, cross_entropy
from steppe.models.freezing import head_parameters
from steppe.models.names import short_name
from steppe.models.weights import load_pretrained
from steppe.runs import Run, locked, read_json, write_json
from steppe.train import build_model, pick_device

Event = Literal["start", "part", "done", "kept", "left_out", "remark"]
Notify = Callable[[Event, str, dict[str, Any]], None]

_EVERY_S = 1.0
"""So often, at the most, is a partial result written."""


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


def load_model(run: Run, dataset: Dataset) -> nn.Module:
    """Build a run's model and load its final weights."""
    size, channels = dataset.image_size, dataset.channels
    model = models.build(run.config.model, image_size=size, channels=channels, classes=len(dataset.classes), load=False)
    models.load_weights(model, run.weights)
    return model.eval()


def open_run(
    path: str | Path,
    *,
    data_root: str | Path | None = None,
    device: str | None = None,
    progress: Progress | None = None,
    dataset: Dataset | None = None,
) -> Subject:
    """Open a run folder for measuring: its final weights on the data it learned.

    Args:
        path: the run folder.
        data_root: where named data sets live.
        device: by default the GPU where there is one.
        progress: told how a slow reading of the data goes.
        dataset: the run's data, if they are loaded already.

    Raises:
        RunError: there is no such run, or it has no weights.
        DataError: the data are not those it learned.
        MeasureError: its weights are not numbers.
    """
    run = Run(path)
    config = run.config
    if not run.weights.is_file():
        mend = f"train it to its end: steppe train {run.path / 'config.toml'} -o {run.path}"
        raise RunError("this run has no weights: it is not finished", where=str(run.path), mend=mend)
    place = pick_device(device)
    dataset = dataset or data.load(config.data, data_root, progress)
    learned = run.read_or_empty("data.json").get("fingerprint")
    if learned and learned != dataset.fingerprint:
        mend = "point --data-root at the data it was trained on"
        raise DataError("these are not the data the run learned from", where=str(run.path), mend=mend)
    model = load_model(run, dataset).to(place)
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
) -> Subject:
    """Open any model with weights from elsewhere for measuring; the results go to a folder of their own.

    Images are normalised as the weights were trained where timm says how, else by the data's own statistics.

    Args:
        name: a model's name, ours or timm's.
        weights: a file, a run folder, "timm", "timm:NAME" or "hf-hub:NAME".
        data_name: a data set with the classes the weights know.
        folder: where results go.
        image_size: side of the images; by default the data's own.
        data_root: where named data sets live.
        device: by default the GPU where there is one.
        progress: told how a slow reading of the data goes.
    """
    place = pick_device(device)
    folder = Path(folder)
    about = {"model": name, "weights": weights, "data": data_name, "image_size": image_size}
    if (folder / "config.toml").exists():
        raise RunError("this is a run's folder", where=str(folder), mend="choose another with --out")
    if folder.is_dir() and any(folder.iterdir()) and _read(folder / "subject.json") != about:
        what = "this folder holds something else than results of this model, these weights and data"
        raise RunError(what, where=str(folder), mend="choose another with --out")
    dataset = data.load(DataConfig(name=data_name, image_size=image_size), data_root, progress)
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
        raise ConfigError(what, where="--weights", mend="train it on these data first: steppe train --mode finetune")
    check_finite(model, weights)
    statistics = _statistics_of(name, weights, dataset.channels)
    if statistics is not None:
        dataset = replace(dataset, mean=statistics[0], std=statistics[1])
    write_json(folder / "subject.json", about)
    return Subject(folder, model.eval().to(place), dataset, cross_entropy, place)


def add_results(
    subject: Subject,
    file: str,
    chosen: Mapping[str, Measure],
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    strict: bool = False,
    quick: bool = False,
    again: bool = False,
    batch_size: int = 512,
    data_root: Path | None = None,
    other: tuple[str, nn.Module] | None = None,
    notify: Notify = lambda event, name, details: None,
) -> dict[str, Any]:
    """Measure what is not there yet and add it to a JSON file of the folder, one result at a time.

    Args:
        subject: what to measure.
        file: such as "geometry.json"; keys of others stay.
        chosen: the measures.
        changes: measure -> settings that differ from its defaults.
        strict: a measure that means nothing for this model is an error, and not passed over.
        quick: take each measure's quick settings.
        again: measure even what is there.
        batch_size: images at a time, to begin with.
        data_root: where published corruptions lie.
        other: a second model and its name, for measures between two.
        notify: told what goes on.

    Returns:
        Everything the file now holds.
    """
    path = subject.folder / file
    unfinished = path.with_suffix(".partial.json")
    with locked(subject.folder, "run"):
        results, parts = _read(path), _read(unfinished)
        for name, measure in chosen.items():
            key = measure.key or name
            values = settings_of(measure, (changes or {}).get(name, {}), quick=quick)
            if other is not None and name in ("between", "attacks"):
                values["with"] = other[0]
            if not again and isinstance(results.get(key), dict) and results[key].get("settings") == values:
                notify("kept", name, results[key])
                continue
            old = results[key].get("settings") if isinstance(results.get(key), dict) else None
            if old is not None and old != values:
                changed = [k for k in {**old, **values} if old.get(k) != values.get(k)]
                text = f"this replaces the figure with {', '.join(f'{k}={old.get(k)}' for k in changed)}"
                notify("remark", name, {"text": text})
            notify("start", name, {"about": measure.about})
            before = parts.get(key, {})
            keeper = _Keeper(unfinished, parts, key, values)
            settings = Settings(
                values,
                device=subject.device,
                batch_size=batch_size,
                loss=subject.loss,
                root=data_root,
                other=other[1] if other else None,
                fresh=subject.fresh,
                known=before.get("found") if not again and before.get("settings") == values else None,
                keep=keeper,
                tell=partial(_tell, notify, name),
                say=partial(_say, notify, name),
            )
            began = time.monotonic()
            try:
                found = measure.function(subject.model, subject.dataset, settings)
            except MeasureError as error:
                if strict:
                    raise
                notify("left_out", name, {"reason": error.what})
                continue
            made_on = {"device": str(subject.device), "torch": torch.__version__, "precision": "float32"}
            results = {**_read(path), key: {**_jsonable(found), "settings": values, "made_on": made_on}}
            write_json(path, results)
            keeper.forget()
            notify("done", name, {**results[key], "time_s": time.monotonic() - began})
    return results


class _Keeper:
    """Writes what a measure has found so far, now and then."""

    def __init__(self, path: Path, parts: dict[str, Any], key: str, values: dict[str, Any]) -> None:
        self.path, self.parts, self.key, self.values = path, parts, key, values
        self.written = -math.inf

    def __call__(self, found: Any) -> None:
        if time.monotonic() - self.written < _EVERY_S:
            return
        self.parts[self.key] = {"settings": self.values, "found": _jsonable(found)}
        write_json(self.path, self.parts)
        self.written = time.monotonic()

    def forget(self) -> None:
        self.parts.pop(self.key, None)
        if self.parts:
            write_json(self.path, self.parts)
        else:
            self.path.unlink(missing_ok=True)


def _tell(notify: Notify, name: str, done: int, total: int) -> None:
    notify("part", name, {"done": done, "total": total})


def _say(notify: Notify, name: str, text: str) -> None:
    notify("remark", name, {"text": text})


def settings_of(measure: Measure, changes: Mapping[str, Any], *, quick: bool = False) -> dict[str, Any]:
    """All settings of a measure, as they are stored beside what it finds."""
    return json.loads(json.dumps({**measure.defaults, **(measure.quick if quick else {}), **changes}))


def _read(path: Path) -> dict[str, Any]:
    """Read what can be computed again; empty where it is missing or damaged."""
    try:
        value = read_json(path) if path.exists() else {}
    except SteppeError:
        return {}
    return value if isinstance(value, dict) else {}


def _jsonable(value: Any) -> Any:
    """The same with None for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {str(key): _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _fresh(config: RunConfig, dataset: Dataset, device: torch.device) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        return build_model(config, dataset).to(device).eval()


def _statistics_of(name: str, weights: str, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """The mean and standard deviation that timm's weights were trained with, if these are timm's."""
    known_name = short_name(name)
    source = weights.partition(":")[2] or (known_name.twin if known_name else name.removeprefix("timm:"))
    if weights.partition(":")[0] != "timm" or not source or not timm.is_model(source):
        return None
    known = timm.get_pretrained_cfg(source, allow_unregistered=False)
    if known is None or len(known.mean) != channels:
        return None
    return tuple(known.mean), tuple(known.std)
