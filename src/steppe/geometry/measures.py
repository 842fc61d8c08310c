"""The table of `steppe geometry`: name -> measure. A new measure is one entry here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from steppe.config import MeasureConfig
from steppe.data import Dataset, in_order
from steppe.errors import ConfigError, MeasureError
from steppe.geometry.attention import attention_maps
from steppe.geometry.landscape import measure_between, measure_line, measure_square, random_directions
from steppe.geometry.noise import measure_noise_loss
from steppe.measuring import Batches, Measure, Settings, in_smaller_chunks, sample


def _noise(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    return _on_training_images(
        model,
        dataset,
        settings,
        lambda batches: dict(
            measure_noise_loss(model, batches, sigma=settings["noise_sigma"], draws=settings["noise_draws"])
        ),
        settings["noise_examples"],
    )


def _line(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    (direction,) = random_directions(model, 1, seed=settings["seed"])
    return _landscape(model, dataset, settings, measure_line, direction)


def _square(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    return _landscape(model, dataset, settings, measure_square, random_directions(model, 2, seed=settings["seed"]))


def _landscape(
    model: nn.Module, dataset: Dataset, settings: Settings, measure: Callable[..., dict[str, Any]], directions: Any
) -> dict[str, Any]:
    known = settings.known if isinstance(settings.known, list) else []

    def keep(found: list[Any]) -> None:
        known[:] = found
        settings.keep(found)

    def work(batches: Batches) -> dict[str, Any]:
        return measure(
            model,
            batches,
            directions,
            points=settings["points"],
            radius=settings["radius"],
            loss=settings.chosen_loss,
            reestimate=_reestimate(settings),
            known=known,
            keep=keep,
            tell=settings.tell,
        )

    return _on_training_images(model, dataset, settings, work, settings["examples"])


def _between(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    if settings.other is None:
        raise MeasureError("the way to another run needs that run", mend="name it: --with RUN")
    other = settings.other
    return _on_training_images(
        model,
        dataset,
        settings,
        lambda batches: measure_between(
            model,
            other,
            batches,
            points=settings["points"],
            loss=settings.chosen_loss,
            reestimate=_reestimate(settings),
            keep=settings.keep,
            tell=settings.tell,
        ),
        settings["examples"],
    )


def _attention(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    numbers = sample(len(dataset.test), max(1, settings["images"]))
    split = dataset.test.take(numbers)

    def work(size: int) -> dict[str, Any]:
        last: list[Any] = []
        rolled: list[Any] = []
        for images, _ in in_order(split, dataset, batch_size=size, device=settings.device):
            last += attention_maps(model, images).double().cpu().tolist()
            rolled += attention_maps(model, images, rollout=True).double().cpu().tolist()
        return {"images": numbers.tolist(), "split": "test", "last_layer": last, "rollout": rolled}

    return in_smaller_chunks(work, min(settings.batch_size, 32), settings.say)


def _on_training_images(
    model: nn.Module, dataset: Dataset, settings: Settings, work: Callable[[Batches], dict[str, Any]], examples: int
) -> dict[str, Any]:
    if examples < 1:
        raise ConfigError("at least one example is needed", where="--set")
    return in_smaller_chunks(
        lambda size: work(settings.batches(dataset.train, dataset, examples, size)), settings.batch_size, settings.say
    )


def _reestimate(settings: Settings) -> bool:
    known = {"kept": False, "reestimated": True}
    if settings["batchnorm"] not in known:
        what = f"batchnorm cannot be {settings['batchnorm']!r}"
        raise ConfigError(what, where="--set", mend=f"choose one of: {', '.join(known)}")
    return known[settings["batchnorm"]]


_LANDSCAPE: dict[str, Any] = {
    "radius": 1.0,
    "examples": 5000,
    "seed": 0,
    "loss": "cross_entropy",
    "batchnorm": "kept",
    "directions": "random, filter-normalised",
}

MEASURES: dict[str, Measure] = {
    "noise": Measure(
        _noise,
        "loss under Gaussian weight noise",
        MeasureConfig().model_dump(mode="json"),
        key="noise_loss",
    ),
    "line": Measure(
        _line,
        "loss along a random filter-normalised direction",
        {"points": 51, **_LANDSCAPE},
        quick={"points": 21, "examples": 256},
    ),
    "landscape": Measure(
        _square,
        "loss on a square of two random filter-normalised directions; points is a side's",
        {"points": 50, **_LANDSCAPE},
        quick={"points": 15, "examples": 256},
    ),
    "between": Measure(
        _between,
        "loss on the way to another run of the same model (--with), and the barrier",
        {"points": 21, "examples": 5000, "loss": "cross_entropy", "batchnorm": "reestimated"},
        quick={"points": 11, "examples": 256},
        by_default=False,
    ),
    "attention": Measure(
        _attention,
        "where a vision transformer looks: last layer and rollout, on test images",
        {"images": 8},
    ),
}
"""What is measured of a model's weights, by name."""
