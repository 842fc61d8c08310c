"""What a run minimizes: the loss of the labels, the same under attack, or a contrastive loss before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from steppe.config.section import Section, refuse_foreign, with_defaults

OBJECTIVE_DEFAULTS: dict[str, dict[str, float | int | str]] = {
    "supervised": {},
    "adversarial": {"epsilon": 2.0, "attack_step": 1.25},
    "contrastive": {
        "temperature": 0.1,
        "projection": 128,
        "pretrain": 0.8,
        "head_optimizer": "rmsprop",
        "head_lr": 0.005,
        "head_weight_decay": 1e-6,
    },
}
"""What each objective's own options are when the user does not say; written out in full in `config.toml`."""


class ObjectiveConfig(Section):
    """What is minimized."""

    name: Literal["supervised", "adversarial", "contrastive"] | None = Field(
        None,
        description="supervised, adversarial (FGSM, random start) or contrastive (two stages); default: supervised",
    )
    epsilon: float | None = Field(
        None, gt=0, le=255, description="adversarial: largest change of a pixel, in 255ths; default: 2"
    )
    attack_step: float | None = Field(
        None, gt=0, description="adversarial: the attack's step from its random start, in epsilons; default: 1.25"
    )
    temperature: float | None = Field(None, gt=0, description="contrastive: temperature of its loss; default: 0.1")
    projection: int | None = Field(
        None, gt=0, le=65536, description="contrastive: width of the projection's output; default: 128"
    )
    pretrain: float | None = Field(
        None, gt=0, lt=1, description="contrastive: share of the budget for the first stage; default: 0.8"
    )
    head_optimizer: Literal["sgd", "adam", "adamw", "rmsprop", "lamb"] | None = Field(
        None, description="contrastive: optimizer of the second stage; default: rmsprop"
    )
    head_lr: float | None = Field(None, gt=0, description="contrastive: its peak learning rate; default: 0.005")
    head_weight_decay: float | None = Field(None, ge=0, description="contrastive: its weight decay; default: 1e-06")

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        """Fill the chosen objective's options; the supervised one is the absence of a name, so it renames no run."""
        values = with_defaults(values, OBJECTIVE_DEFAULTS, "supervised")
        if isinstance(values, Mapping) and values.get("name") == "supervised":
            return {key: value for key, value in values.items() if key != "name"}
        return values

    @model_validator(mode="after")
    def _only_own_options(self) -> Self:
        refuse_foreign(self, self.name or "supervised", OBJECTIVE_DEFAULTS)
        return self


def check_objective(config: Any) -> None:
    """Refuse what a run's objective cannot be combined with, saying why.

    Args:
        config: the whole run, as `RunConfig`.
    """
    name, minimizer = config.objective.name, config.minimizer
    refused: dict[str, bool] = {}
    if name == "adversarial":
        refused = {
            "minimizer.ascent_fraction: the first gradient is the attack's too, and every image is attacked": (
                minimizer.ascent_fraction is not None
            ),
            "minimizer 'aesam': it may end a step after the first gradient, before the attack": (
                minimizer.name == "aesam"
            ),
        }
    if name == "contrastive":
        refused = {
            "accumulate: its loss compares all images of a batch, and cannot be computed in parts": (
                config.accumulate is not None
            ),
            "minimizer.m: its loss compares all images of a batch": minimizer.m is not None,
            "minimizer 'esam': it descends on some examples, and the loss compares all": minimizer.name == "esam",
            "augment.mixup or cutmix: it compares images by their labels": config.augment.mixes,
            "model.mode 'frozen': its first stage would train nothing": config.model.mode == "frozen",
            "budget.epochs 1: each of its two stages needs an epoch": config.budget.epochs == 1,
        }
    for what, there in refused.items():
        if there:
            raise ValueError(f"objective {name!r} does not go with {what}")
