"""The table of `steppe geometry`: name -> measure. A new measure is one entry here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor, nn

from steppe.config import MeasureConfig
from steppe.data import Dataset, in_order
from steppe.errors import ConfigError, MeasureError
from steppe.geometry import figures
from steppe.geometry.attention import attention_maps
from steppe.geometry.landscape import measure_between, measure_line, measure_square, random_directions
from steppe.geometry.noise import measure_noise_loss
from steppe.geometry.rescaling import rescaling
from steppe.measuring import Batches, Measure, Settings, in_smaller_chunks, sample

T = TypeVar("T")


def _noise(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    return _on_training_images(
        dataset,
        settings,
        lambda batches: dict(
            measure_noise_loss(model, batches, sigma=settings["noise_sigma"], draws=settings["noise_draws"])
        ),
        settings["noise_examples"],
    )


def _line(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    (direction,) = _directions(model, dataset, settings, 1)
    return _landscape(model, dataset, settings, measure_line, direction, radius=settings["radius"])


def _square(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    two = _directions(model, dataset, settings, 2)
    return _landscape(model, dataset, settings, measure_square, two, radius=settings["radius"])


def _between(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    if settings.other is None:
        raise MeasureError("the way to another run needs that run", mend="name it: --with RUN")
    return _landscape(model, dataset, settings, measure_between, settings.other)


def _landscape(
    model: nn.Module,
    dataset: Dataset,
    settings: Settings,
    measure: Callable[..., dict[str, Any]],
    where: Any,
    **options: Any,
) -> dict[str, Any]:
    """Measure where to go in smaller chunks if need be; what was found before memory ran out is not lost."""
    known = settings.known if isinstance(settings.known, list) else []

    def keep(found: list[Any]) -> None:
        known[:] = found
        settings.keep(found)

    def work(batches: Batches) -> dict[str, Any]:
        return measure(
            model,
            *((where, batches) if measure is measure_between else (batches, where)),
            points=settings["points"],
            loss=settings.chosen_loss,
            reestimate=_pick(settings, "batchnorm", {"kept": False, "reestimated": True}),
            known=known,
            keep=keep,
            tell=settings.tell,
            **options,
        )

    return _on_training_images(dataset, settings, work, settings["examples"])


def _directions(model: nn.Module, dataset: Dataset, settings: Settings, count: int) -> list[list[Tensor]]:
    return _pick(settings, "directions", DIRECTIONS)(model, dataset, settings, count)


def _random(model: nn.Module, dataset: Dataset, settings: Settings, count: int) -> list[list[Tensor]]:
    return random_directions(model, count, seed=settings["seed"])


DIRECTIONS: dict[str, Callable[[nn.Module, Dataset, Settings, int], list[list[Tensor]]]] = {
    "random": _random,
    "eigenvectors": figures.eigenvectors,
}
"""Where the directions of a landscape come from: name -> function that gives so many."""


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
    dataset: Dataset, settings: Settings, work: Callable[[Batches], dict[str, Any]], examples: int
) -> dict[str, Any]:
    if examples < 1:
        raise ConfigError("at least one example is needed", where="--set")
    return in_smaller_chunks(
        lambda size: work(settings.batches(dataset.train, dataset, examples, size)), settings.batch_size, settings.say
    )


def _pick(settings: Settings, key: str, known: dict[str, T]) -> T:
    if settings[key] not in known:
        mend = f"choose one of: {', '.join(known)}"
        raise ConfigError(f"{key} cannot be {settings[key]!r}", where="--set", mend=mend)
    return known[settings[key]]


_LANDSCAPE: dict[str, Any] = {
    "radius": 1.0,
    "examples": 5000,
    "seed": 0,
    "loss": "cross_entropy",
    "batchnorm": "kept",
    "directions": "random",
}

_RESCALING: dict[str, Any] = {
    "steps": 50,
    "points": 5,
    "rho": 0.05,
    "asam_rho": 0.5,
    "eta": 0.01,
    "examples": 200,
    "seed": 0,
}

_HESSIAN: dict[str, Any] = {
    "examples": 5000,
    "seed": 0,
    "loss": "trained",
    "precision": "float32",
    "compiled": False,
}

MEASURES: dict[str, Measure] = {
    "lambda_max": Measure(
        figures.curvature,
        "largest and smallest eigenvalue of the Hessian, whole and by block",
        {"parts": "roles", "method": "lanczos", "top": 1, "iterations": 100, "tolerance": 1e-3, **_HESSIAN},
        quick={"examples": 256, "iterations": 20, "tolerance": 0.01},
    ),
    "trace": Measure(
        figures.trace,
        "trace of the Hessian, whole and by block, with error bars",
        {"parts": "roles", "probes": 50, **_HESSIAN},
        quick={"examples": 256, "probes": 5},
    ),
    "spectrum": Measure(
        figures.spectrum,
        "density of the Hessian's eigenvalues",
        {"probes": 3, "steps": 50, **_HESSIAN},
        quick={"examples": 256, "probes": 1, "steps": 15},
    ),
    "sharpness": Measure(
        figures.sharpness,
        "rise of the loss in the ball of each scaling, to first order and by ascent",
        {
            "rho_none": 0.05,
            "rho_weights": 0.5,
            "rho_all": 0.5,
            "rho_layer": 0.01,
            "steps": 5,
            "examples": 5000,
            "loss": "trained",
        },
        quick={"examples": 256, "steps": 3},
    ),
    "ntk": Measure(
        figures.tangent_kernel,
        "condition number of the tangent kernel, over diagonal blocks",
        {"weights": "trained", "definition": "sum", "block": 48, "blocks": 8, "relu": False},
        quick={"blocks": 1},
    ),
    "ntk_initial": Measure(
        figures.tangent_kernel,
        "the same with the weights the run began with",
        {"weights": "initial", "definition": "sum", "block": 48, "blocks": 8, "relu": False},
        quick={"blocks": 1},
    ),
    "norms": Measure(
        figures.norms,
        "norms of weights, gradients and activations, and active neurons, by block",
        {"examples": 5000, "loss": "trained"},
        quick={"examples": 256},
    ),
    "missing_rate": Measure(
        figures.missing_rate,
        "how often a mixture of two images is taken for a third class",
        {"weight": 0.5, "examples": 5000, "seed": 0},
        quick={"examples": 256},
    ),
    "noise": Measure(
        _noise,
        "loss under Gaussian weight noise",
        MeasureConfig().noise,
        key="noise_loss",
    ),
    "line": Measure(
        _line,
        "loss along a direction: random, filter-normalised",
        {"points": 51, **_LANDSCAPE},
        quick={"points": 21, "examples": 256},
    ),
    "landscape": Measure(
        _square,
        "loss on a square of two directions; points are a side's",
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
    "rescaling": Measure(
        rescaling,
        "what rescalings that leave a perceptron's function alone do to SAM's and ASAM's loss",
        {"weights": "trained", **_RESCALING},
        by_default=False,
    ),
    "rescaling_initial": Measure(
        rescaling,
        "the same with the weights the run began with",
        {"weights": "initial", **_RESCALING},
        by_default=False,
    ),
    "attention": Measure(
        _attention,
        "where a vision transformer looks: last layer and rollout, on test images",
        {"images": 8},
    ),
}
"""What is measured of a model's weights, by name."""
