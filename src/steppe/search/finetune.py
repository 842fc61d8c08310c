"""Fine-tuning from the best probe: its recipes, what it may be expected to reach, and how its time is divided.

The head begins as the solution of a probe that has not learned the validation images. These decide: a fine-tuned
network replaces the probe only if it answers more of the very same images right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from steppe.config import RunConfig, parse
from steppe.search.probe_search import Candidate

LEAST_EPOCHS = 8.0
"""Fewer epochs of fine-tuning end below the probe that they began with."""
TRIAL_EPOCHS = 8.0
"""Below so many epochs for each recipe the first one gets all the time."""
TRIAL_SHARE = 0.5
"""Share of the time for the comparison of recipes; the rest is the best one's."""
FINAL_SHARE = 0.1
"""Share of the time in which the best network learns the validation images, too."""
FINAL_EPOCHS = 3.0
"""Epochs of that at the most: it is a small step from a network that is trained."""
FINAL_RATE = 0.1
"""Peak learning rate of that, as a share of the recipe's."""
LEAST_SHARE = 0.4
"""Fine-tuning is expected to leave at least this share of the errors of its network's probe."""


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
    """A recipe for one network at one image size, and the seconds of training it gets."""

    recipe: int
    seconds: float
    backbone: str = ""
    image_size: int = 0


def rank(attempt: dict[str, Any]) -> tuple[float, float]:
    """Return what attempts are compared by: accuracy on validation images; among equals, the smaller loss."""
    return attempt["accuracy"], -attempt["loss"]


def key_of(candidate: Candidate) -> tuple[str, int]:
    """Return the network and the image size, by which attempts are alike."""
    return candidate.parts[0], candidate.image_size


def expect_share(epochs: float) -> float:
    """Expect which share of its probe's errors a network keeps after so many epochs; 1 where they are too few."""
    return 1.0 if epochs < LEAST_EPOCHS else max(LEAST_SHARE, (LEAST_EPOCHS / epochs) ** 0.5)


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
    recipe: Recipe,
    *,
    model: str,
    weights: str,
    data: dict[str, Any],
    seconds: float,
    seed: int,
    precision: str,
    rate: float = 1.0,
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
        rate: factor of the recipe's learning rate.
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
        "optimizer": {"name": "adamw", "lr": rate * recipe.lr, "weight_decay": 0.05},
        "schedule": {"name": "cosine", "warmup": 0.1},
        "augment": recipe.augment,
        "budget": {"seconds": float(f"{seconds:.3g}")},
    }
    return parse(RunConfig, values, where="the search")
