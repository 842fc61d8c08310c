"""Fine-tuning from the best probe: a few recipes for a short time each, the best of them for the rest.

The head begins as the solution of a probe that has not learned the validation images. These decide: a fine-tuned
network replaces the probe only if it answers more of the very same images right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from steppe.config import RunConfig, parse

LEAST_EPOCHS = 8.0
"""Fewer epochs of fine-tuning end below the probe that they began with."""
TRIAL_EPOCHS = 8.0
"""Below so many epochs for each recipe the first one gets all the time."""
TRIAL_SHARE = 0.5
"""Share of the time for the comparison of recipes; the rest is the best one's."""


@dataclass(frozen=True)
class Recipe:
    """How a network is fine-tuned.

    Args:
        name: in a word or two.
        lr: peak learning rate of AdamW.
        augment: section `augment`.
        minimizer: section `minimizer`.
    """

    name: str
    lr: float
    augment: dict[str, Any] = field(default_factory=lambda: {"resized_crop": 0.4, "flip": True})
    minimizer: dict[str, Any] = field(default_factory=dict)


RECIPES = (
    Recipe("AdamW", 1e-4),
    Recipe("AdamW, SAM at the end", 1e-4, minimizer={"name": "sam", "rho": 0.05, "sharp_last": 0.25}),
    Recipe("AdamW, higher rate", 4e-4),
    Recipe(
        "AdamW, RandAugment and mixing",
        2e-4,
        {
            "resized_crop": 0.3,
            "flip": True,
            "randaugment": 2,
            "randaugment_magnitude": 9,
            "mixup": 0.2,
            "cutmix": 1.0,
            "mixup_probability": 0.5,
        },
    ),
)
"""In the order in which they are tried."""


@dataclass(frozen=True)
class Attempt:
    """A recipe, and the seconds of training it gets."""

    recipe: int
    seconds: float


def plan_attempts(left_s: float, epoch_s: Callable[[Recipe], float]) -> list[Attempt]:
    """Divide the time between recipes; empty where there is too little for any.

    Args:
        left_s: for all of fine-tuning but the last attempt, which the search plans when the others are known.
        epoch_s: what an epoch of a recipe takes, with its validation.
    """
    if left_s < LEAST_EPOCHS * epoch_s(RECIPES[0]):
        return []
    share = TRIAL_SHARE * left_s / len(RECIPES)
    if share < TRIAL_EPOCHS * max(map(epoch_s, RECIPES)):
        return [Attempt(0, left_s)]
    return [Attempt(index, share) for index in range(len(RECIPES))]


def make_config(
    recipe: Recipe, *, model: str, weights: str, data: dict[str, Any], seconds: float, seed: int, precision: str
) -> RunConfig:
    """Make the configuration of an attempt.

    Args:
        recipe: how.
        model: the network's name.
        weights: the probe it begins from.
        data: section of the images, with their size.
        seconds: of training.
        seed: of the run.
        precision: float32 or bfloat16.
    """
    values = {
        "seed": seed,
        "batch_size": 32,
        "precision": precision,
        "label_smoothing": 0.1,
        "ema": 0.99,
        "clip_norm": 1.0,
        "data": data,
        "model": {"name": model, "weights": weights, "mode": "finetune"},
        "minimizer": recipe.minimizer,
        "optimizer": {"name": "adamw", "lr": recipe.lr, "weight_decay": 0.05},
        "schedule": {"name": "cosine", "warmup": 0.1},
        "augment": recipe.augment,
        "budget": {"seconds": float(f"{seconds:.3g}")},
    }
    return parse(RunConfig, values, where="the search")
