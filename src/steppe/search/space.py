"""What `steppe fit` chooses from: architecture × mode × minimizer × optimizer × schedule, and their numbers.

A point of the space is a dict of plain values, as Optuna keeps it; `to_config` makes a run's configuration of it.
Numbers that mean different things to different methods (the learning rates of SGD and AdamW, the radii of SAM and ASAM)
have names of their own, so that what is learned about one is not believed of the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from steppe import models
from steppe.config import DataConfig, ModelConfig, RunConfig, parse
from steppe.cost import wait_for
from steppe.data import Dataset
from steppe.errors import ConfigError
from steppe.search.probe_search import describe_model
from steppe.search.starts import starts_for

_BY_SIZE: tuple[tuple[int, tuple[str, ...]], ...] = (
    (3, ("mlp_64_64", "mlp_32_32_32", "mlp_128_128")),
    (16, ("resnet_tiny", "vit_tiny_p2", "mixer_tiny_p2", "swin_tiny_p2", "wrn_10_2")),
    (
        64,
        (
            *("resnet_tiny", "wrn_10_2", "vit_2l_2h_128", "mixer_tiny_p2", "wrn_16_4", "vit_4l_4h_256"),
            *("resnet18", "swin_t_p2", "mixer_s_p4", "vit_ti_p4"),
        ),
    ),
    (1024, ("resnet_tiny", "vit_2l_2h_128_p16", "resnet18", "vit_ti_p16", "mixer_s_p16", "swin_t_p4", "resnet50")),
)
"""Images up to so many pixels a side, and the models worth trying on them, the cheap ones first."""

OPTIMIZERS: dict[str, dict[str, tuple[float, float]]] = {
    "adamw": {"lr": (3e-4, 1e-2), "weight_decay": (1e-3, 0.3)},
    "sgd": {"lr": (0.01, 0.5), "weight_decay": (1e-5, 5e-3)},
}


@dataclass(frozen=True)
class Method:
    """A minimizer as the search knows it: its radii, and what else is set."""

    minimizer: str
    radii: tuple[float, float] | None = None
    also: dict[str, float] = field(default_factory=dict)


METHODS: dict[str, Method] = {
    "base": Method("base"),
    "sam_late": Method("sam", (0.01, 0.3), {"sharp_last": 0.25}),
    "sam": Method("sam", (0.01, 0.3)),
    "asam": Method("asam", (0.1, 2.0)),
}
CHOSEN_FROM = ("base", "sam_late", "sam", "asam")
"""Methods of a new search. At equal seconds SAM in the last quarter of the budget lost least where all lost
(results/relatives) and ASAM won where anything did (results/relatives-laptop, a ResNet); the perturbation of a quarter
of the batch did neither."""

SCHEDULES = ("cosine", "linear", "step")
AUGMENTS = ("none", "crop", "crop_flip")


@dataclass(frozen=True)
class Wanted:
    """What is searched for: what a folder keeps, and cannot be changed when it goes on.

    Args:
        data: the images.
        models: only these architectures; by default those that suit the images.
        weights: "auto" for the best at hand, "none" to train from scratch, a name of `steppe weights list`, or a file.
        seed: of the sampler and of every run.
    """

    data: DataConfig
    models: tuple[str, ...] = ()
    weights: str = "auto"
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        values = {"data": self.data.model_dump(mode="json", exclude_defaults=True) | {"name": self.data.name}}
        return values | {"models": list(self.models), "weights": self.weights, "seed": self.seed}


@dataclass(frozen=True)
class Space:
    """The choices of one search; kept with it, so that it is continued in the same space.

    Args:
        models: names of architectures.
        batch_sizes: images per step.
        crop: pixels that images are padded by before a random crop; 0 where they are too small to be moved.
        methods: names in `METHODS`.
    """

    models: tuple[str, ...]
    batch_sizes: tuple[int, ...] = (64,)
    crop: int = 0
    methods: tuple[str, ...] = CHOSEN_FROM

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @staticmethod
    def from_json(values: dict[str, Any]) -> Space:
        """The other way."""
        plain: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
        return Space(**plain)


def suggest(trial: Any, space: Space) -> dict[str, Any]:
    """Ask an Optuna trial for every value; give the point."""
    trial.suggest_categorical("model", space.models)
    optimizer = trial.suggest_categorical("optimizer", tuple(OPTIMIZERS))
    for key, (low, high) in OPTIMIZERS[optimizer].items():
        trial.suggest_float(f"{optimizer}_{key}", low, high, log=True)
    method = METHODS[trial.suggest_categorical("method", space.methods)]
    if method.radii is not None:
        trial.suggest_float(f"rho_{method.minimizer}", *method.radii, log=True)
    trial.suggest_categorical("schedule", SCHEDULES)
    trial.suggest_float("warmup", 0.0, 0.2, step=0.05)
    trial.suggest_categorical("batch_size", space.batch_sizes)
    trial.suggest_categorical("augment", AUGMENTS if space.crop else AUGMENTS[:1])
    return dict(trial.params)


def to_config(
    point: dict[str, Any], space: Space, *, data: dict[str, Any], seed: int, budget: dict[str, float]
) -> RunConfig:
    """Make the configuration of a run.

    Args:
        point: what was chosen.
        space: where from.
        data: the `data` section.
        seed: of the run.
        budget: the `budget` section.
    """
    method = METHODS[point["method"]]
    optimizer = point["optimizer"]
    numbers = {key: _short(point[f"{optimizer}_{key}"]) for key in OPTIMIZERS[optimizer]}
    values: dict[str, Any] = {
        "seed": seed,
        "batch_size": point["batch_size"],
        "data": data,
        "model": {"name": point["model"]},
        "minimizer": {"name": method.minimizer, **method.also},
        "optimizer": {"name": optimizer, **numbers},
        "schedule": {"name": point["schedule"], "warmup": _short(point["warmup"])},
        "budget": {key: _short(value) if key == "seconds" else value for key, value in budget.items()},
    }
    if method.radii is not None:
        values["minimizer"]["rho"] = _short(point[f"rho_{method.minimizer}"])
    if point["augment"] != "none":
        values["augment"] = {"crop_padding": space.crop, "flip": point["augment"] == "crop_flip"}
    return parse(RunConfig, values, where="the search")


def recommended(space: Space) -> list[dict[str, Any]]:
    """Return where a search begins: the lines of the table in `starts` that suit the models."""
    batch = min(space.batch_sizes, key=lambda size: abs(size - 64))
    out: list[dict[str, Any]] = []
    for model, start in starts_for(space.models):
        if start.method not in space.methods:
            continue
        numbers = {"lr": start.lr, "weight_decay": start.weight_decay}
        point: dict[str, Any] = {"model": model, "optimizer": start.optimizer}
        point |= {f"{start.optimizer}_{key}": value for key, value in numbers.items()}
        point |= {"method": start.method, "schedule": "cosine", "warmup": start.warmup}
        if start.rho is not None:
            point[f"rho_{METHODS[start.method].minimizer}"] = start.rho
        out.append(point | {"batch_size": batch, "augment": "none"})
    return out


def describe(config: RunConfig) -> dict[str, str]:
    """A configuration in a few labels, for tables; the last is its budget."""
    if config.model.mode == "probe":
        settings = f"{config.data.image_size} px"
        return {"model": describe_model(config.model), "training": "frozen + logistic", "settings": settings}
    how = {"base": "", "sam": " + SAM", "asam": " + ASAM"}[config.minimizer.name]
    how += " at the end" if config.minimizer.sharp_last else ""
    mode = f", {config.model.mode}" if config.model.mode else ""
    optimizer = {"adamw": "AdamW", "sgd": "SGD"}[config.optimizer.name]
    rho = f", ρ {config.minimizer.rho:g}" if config.minimizer.rho else ""
    moved = config.augment.crop_padding
    augment = f", crops{' and mirrors' if config.augment.flip else ''}" if moved else ""
    seconds, gradients = config.budget.seconds, config.budget.gradient_evaluations
    return {
        "model": config.model.name,
        "training": f"{optimizer}{how}{mode}",
        "settings": f"lr {config.optimizer.lr:g}, decay {config.optimizer.weight_decay:g}{rho}, "
        f"{config.schedule.name}, batch {config.batch_size}{augment}",
        **({"gradients": str(gradients)} if seconds is None else {"seconds": f"{seconds:g}"}),
    }


@dataclass(frozen=True)
class Candidate:
    """A model that fits the images, and what a pass over them takes here, in seconds, about; 0 if it was not timed."""

    name: str
    epoch_s: float


def find_models(
    dataset: Dataset,
    device: torch.device,
    *,
    names: Sequence[str] = (),
    enough: Callable[[Sequence[Candidate]], bool] = lambda found: False,
    timed: bool = True,
) -> list[Candidate]:
    """Find the models worth trying on these images, cheapest first, each with the time of an epoch.

    Args:
        dataset: the images.
        device: where they are learned.
        names: only these, where given.
        enough: asked between models, with those found so far; True ends the looking once there is one.
        timed: if not, they come in the order of the table.

    Raises:
        ConfigError: none of them fits.
    """
    found: list[Candidate] = []
    problem: ConfigError | None = None
    for name in names or next(those for size, those in _BY_SIZE if dataset.image_size <= size):
        if found and enough(found):
            break
        try:
            model = _build(parse(ModelConfig, {"name": name}, where="--model"), dataset)
            found.append(Candidate(name, _time_epoch(model, dataset, device) if timed else 0.0))
        except ConfigError as error:
            problem = error
    if not found:
        raise problem or ConfigError("there is no model to try")
    return sorted(found, key=lambda candidate: candidate.epoch_s)


def _build(config: ModelConfig, dataset: Dataset) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        classes = len(dataset.classes)
        return models.build(config, image_size=dataset.image_size, channels=dataset.channels, classes=classes)


def _time_epoch(model: nn.Module, dataset: Dataset, device: torch.device) -> float:
    """Time a forward and backward pass of one small batch, the second: the first warms up."""
    batch = min(32, len(dataset.train))
    model.to(device).train()
    images = torch.zeros(batch, dataset.channels, dataset.image_size, dataset.image_size, device=device)
    taken = 0.0
    for _ in range(2):
        began = time.perf_counter()
        model(images).sum().backward()
        wait_for(device)
        taken = time.perf_counter() - began
    return taken * len(dataset.train) / batch


def _short(value: float) -> float:
    """Three digits: more would say nothing, and make configurations unreadable."""
    return float(f"{value:.3g}")
