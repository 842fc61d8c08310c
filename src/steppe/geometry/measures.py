"""The table of `steppe geometry`: name -> measure. A new measure is one entry here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from steppe.config import MeasureConfig
from steppe.data import Dataset, in_order
from steppe.errors import ConfigError, MeasureError, SteppeError, ran_out_of_memory
from steppe.geometry import figures
from steppe.geometry.attention import attention_maps, evenness
from steppe.geometry.how import describe
from steppe.geometry.landscape import batch_norms, measure_between, measure_line, measure_square, random_directions
from steppe.geometry.noise import measure_noise_loss
from steppe.geometry.rescaling import rescaling
from steppe.geometry.tangent import Definition
from steppe.measuring import (
    CROSS_ENTROPY,
    Batches,
    BatchNormMode,
    Measure,
    Precision,
    Range,
    Settings,
    Text,
    in_smaller_chunks,
    sample,
)
from steppe.measuring.table import LOSSES
from steppe.measuring.values import Allowed


def _noise(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    return _on_training_images(
        model,
        dataset,
        settings,
        lambda batches: dict(
            measure_noise_loss(
                model,
                batches,
                sigma=settings["noise_sigma"],
                draws=settings["noise_draws"],
                seed=settings["seed"],
                loss=settings.chosen_loss,
                tell=settings.tell,
            )
        ),
        settings["noise_examples"],
    )


def _line(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    (direction,), about = _directions(model, dataset, settings, 1)
    return {**_landscape(model, dataset, settings, measure_line, direction, radius=settings["radius"]), **about}


def _square(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    two, about = _directions(model, dataset, settings, 2)
    return {**_landscape(model, dataset, settings, measure_square, two, radius=settings["radius"]), **about}


def _between(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    if settings.other is None:
        raise MeasureError("the way to another run needs that run", fix="name it: --with RUN")
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
            reestimate=settings.pick("batchnorm", BATCHNORM),
            known=known,
            keep=keep,
            tell=settings.tell,
            **options,
        )

    return _on_training_images(model, dataset, settings, work, settings["examples"])


def _directions(
    model: nn.Module, dataset: Dataset, settings: Settings, count: int
) -> tuple[list[list[Tensor]], dict[str, Any]]:
    """Directions, and what is stored of how they were found."""
    found, about = settings.pick("directions", DIRECTIONS)(model, dataset, settings, count)
    return found, {"directions": about} if about else {}


def _random(
    model: nn.Module, dataset: Dataset, settings: Settings, count: int
) -> tuple[list[list[Tensor]], dict[str, Any]]:
    return random_directions(model, count, seed=settings["seed"]), {}


BATCHNORM = {"kept": False, "reestimated": True}
"""Whether BatchNorm's statistics are taken anew at each point of a landscape."""

BATCH = 512
"""Images whose statistics BatchNorm takes together, where it does not go by its running ones."""

DIRECTIONS: dict[str, Callable[[nn.Module, Dataset, Settings, int], tuple[list[list[Tensor]], dict[str, Any]]]] = {
    "random": _random,
    "eigenvectors": figures.eigenvectors,
}
"""Where the directions of a landscape come from: name -> function that gives so many, and what to store of them."""


def _attention(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    numbers = sample(len(dataset.test), settings["images"])
    split = dataset.test.take(numbers)

    def work(size: int) -> dict[str, Any]:
        maps: dict[str, list[Tensor]] = {"last_layer": [], "rollout": []}
        batches = list(in_order(split, dataset, batch_size=size, device=settings.device))
        for images, _ in batches:
            for name, found in maps.items():
                found.append(attention_maps(model, images, rollout=name == "rollout").double().cpu())
        whole = {name: torch.cat(found) for name, found in maps.items()}
        figures = {name: float(evenness(found).mean()) for name, found in whole.items()}
        shown = {name: found.tolist() for name, found in whole.items()}
        how = {**describe(model, batches, loss=CROSS_ENTROPY), "loss": "none"}
        return {"images": numbers.tolist(), "split": "test", **shown, "evenness": figures, "how": how}

    return in_smaller_chunks(work, min(settings.batch_size, 32), settings.say)


def _on_training_images(
    model: nn.Module, dataset: Dataset, settings: Settings, work: Callable[[Batches], dict[str, Any]], examples: int
) -> dict[str, Any]:
    """Measure on training images, in smaller chunks if need be, and write down how.

    A batch that BatchNorm's statistics are taken on is as large as asked: another cut would give other figures.
    """
    if examples < 1:
        raise ConfigError("at least one example is needed", where="--set")

    def in_chunks(size: int) -> dict[str, Any]:
        batches = settings.batches(dataset.train, dataset, examples, size)
        how = describe(model, batches, loss=settings.chosen_loss, seed=settings.get("seed", 0))
        if settings.get("batchnorm") == "reestimated":
            how["batch_norm"] = "reestimated"
        return {**work(batches), "how": how}

    if settings.get("batchnorm") == "reestimated" and batch_norms(model):
        try:
            return in_chunks(settings["batch"])
        except Exception as error:
            if not ran_out_of_memory(error):
                raise
            fix = f"ask for less than batch={settings['batch']}, or for batchnorm=kept: that can be cut"
            raise SteppeError("the memory does not hold a batch to take statistics on", fix=fix) from None
    return in_smaller_chunks(in_chunks, settings.batch_size, settings.say)


_LANDSCAPE: dict[str, Any] = {
    "radius": 1.0,
    "examples": 5000,
    "seed": 0,
    "loss": "cross_entropy",
    "batchnorm": "kept",
    "batch": BATCH,
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
    "batchnorm": "running",
    "batch": BATCH,
}
_OF_HESSIAN: dict[str, Allowed] = {"batchnorm": get_args(BatchNormMode)}

_MAY: dict[str, Allowed] = {
    "examples": Range(1),
    "loss": LOSSES,
    "precision": get_args(Precision),
    "parts": Text("roles, all, whole, or names such as attention,block1"),
    "method": ("lanczos", "power"),
    "top": Range(1),
    "subsets": Range(1),
    "iterations": Range(1),
    "tolerance": Range(0, 1, above=True),
    "definition": get_args(Definition),
    "weights": ("trained", "initial"),
    "block": Range(2),
    "blocks": Range(1),
    "logit": Range(0),
    "weight": Range(0, 1),
    "noise_sigma": Range(0, above=True),
    "noise_draws": Range(2),
    "noise_examples": Range(1),
    "points": Range(2),
    "radius": Range(0, above=True),
    "batchnorm": tuple(BATCHNORM),
    "batch": Range(2),
    "directions": tuple(DIRECTIONS),
    "images": Range(1),
    **{f"rho_{scaling}": Range(0, above=True) for scaling in figures.SCALINGS},
}
"""Setting -> its values; the same for every measure that has it."""


def _of_first_weights(measure: Measure) -> Measure:
    """The same measure of the weights a run began with."""
    changed = {**measure.defaults, "weights": "initial"}
    return replace(measure, about="the same with the weights the run began with", defaults=changed)


_TANGENT_KERNEL = Measure(
    figures.tangent_kernel,
    "condition number of the tangent kernel, over diagonal blocks",
    {"weights": "trained", "definition": "sum", "logit": 0, "block": 48, "blocks": 8, "relu": False},
    quick={"blocks": 1},
    allowed=_MAY,
)
_RESCALED = Measure(
    rescaling,
    "what rescalings that leave a perceptron's function alone do to SAM's and ASAM's loss",
    {"weights": "trained", **_RESCALING},
    by_default=False,
)

MEASURES: dict[str, Measure] = {
    "lambda_max": Measure(
        figures.curvature,
        "largest eigenvalue of the Hessian, whole and by block, and the smallest of the whole",
        {
            "parts": "roles",
            "method": "lanczos",
            "top": 1,
            "iterations": 100,
            "tolerance": 1e-3,
            "subsets": 1,
            **_HESSIAN,
        },
        quick={"examples": 128, "iterations": 12, "tolerance": 0.01},
        allowed=_MAY | _OF_HESSIAN,
    ),
    "trace": Measure(
        figures.trace,
        "trace of the Hessian, whole and by block, with error bars",
        {"parts": "roles", "probes": 50, **_HESSIAN},
        quick={"examples": 128, "probes": 5},
        allowed={**_MAY, **_OF_HESSIAN, "probes": Range(2)},
    ),
    "spectrum": Measure(
        figures.spectrum,
        "density of the Hessian's eigenvalues",
        {"probes": 3, "steps": 50, **_HESSIAN},
        quick={"examples": 128, "probes": 1, "steps": 15},
        allowed={**_MAY, **_OF_HESSIAN, "probes": Range(1), "steps": Range(1)},
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
        quick={"examples": 128, "steps": 3},
        allowed={**_MAY, "steps": Range(1)},
    ),
    "ntk": _TANGENT_KERNEL,
    "ntk_initial": _of_first_weights(_TANGENT_KERNEL),
    "norms": Measure(
        figures.norms,
        "norms of weights, gradients and activations, and active neurons, by block",
        {"examples": 5000, "loss": "trained"},
        quick={"examples": 256},
        allowed=_MAY,
    ),
    "missing_rate": Measure(
        figures.missing_rate,
        "how often a mixture of two images is taken for a third class",
        {"weight": 0.5, "examples": 5000, "seed": 0},
        quick={"examples": 256},
        allowed={**_MAY, "examples": Range(2)},
    ),
    "noise": Measure(
        _noise,
        "loss under Gaussian weight noise",
        {**MeasureConfig().noise, "loss": "cross_entropy", "seed": 0},
        allowed=_MAY,
        key="noise_loss",
        of_training=True,
    ),
    "line": Measure(
        _line,
        "loss along a direction: random, filter-normalised",
        {"points": 51, **_LANDSCAPE},
        quick={"points": 21, "examples": 128},
        allowed=_MAY,
    ),
    "landscape": Measure(
        _square,
        "loss on a square of two directions; points are a side's",
        {"points": 50, **_LANDSCAPE},
        quick={"points": 11, "examples": 128},
        allowed=_MAY,
    ),
    "between": Measure(
        _between,
        "loss on the way to another run of the same model (--with), and the barrier",
        {"points": 21, "examples": 5000, "loss": "cross_entropy", "batchnorm": "reestimated", "batch": BATCH},
        quick={"points": 11, "examples": 256},
        allowed=_MAY,
        by_default=False,
    ),
    "rescaling": _RESCALED,
    "rescaling_initial": _of_first_weights(_RESCALED),
    "attention": Measure(
        _attention,
        "where a vision transformer looks: last layer and rollout, on test images",
        {"images": 8},
        allowed=_MAY,
    ),
}
"""What is measured of a model's weights, by name."""
