"""The minimizers as a run is configured: what each is, its own options with their defaults, and its cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from steppe.config.section import Section, refuse_foreign, with_defaults


class MinimizerConfig(Section):
    """Where the gradient is taken."""

    name: Literal["base", "sam", "asam", "looksam", "esam", "msam", "gsam", "fsam", "samon", "aesam", "lesam"] = Field(
        "base", description="base (the optimizer alone), sam, asam, or a relative: `steppe minimizers` lists them"
    )
    rho: float | None = Field(
        None,
        ge=0,
        description="radius of the perturbation, the largest one for lesam; default: 0.05; 0.5 for asam and samon, 0.3 "
        "for lesam, 3 for msam (0.3 over Adam)",
    )
    eta: float | None = Field(None, ge=0, description="asam: added to |w| in its scaling; default: 0.01")
    scaling: Literal["weights", "all", "layer"] | None = Field(
        None, description="asam: what its scaling acts on, weights, all or layer; default: weights, as the authors'"
    )
    k: int | None = Field(None, ge=1, description="looksam: every k-th step is sharp; default: 5")
    alpha: float | None = Field(
        None,
        ge=0,
        description="looksam: weight of the sharp part it reuses; gsam: of closing the gap; default: 0.1 and 0.4",
    )
    beta: float | None = Field(
        None,
        gt=0,
        le=1,
        description="esam's β: share of the parameter tensors that are perturbed, drawn at each step; default: 0.6",
    )
    gamma: float | None = Field(
        None,
        gt=0,
        le=1,
        description="esam's γ: share of the batch in the second gradient, those whose loss rose most; default: 0.5",
    )
    sigma: float | None = Field(
        None,
        ge=0,
        description="fsam: share of the average taken off; lesam: rise of the loss that sets the radius; default: 1 "
        "and 0.35",
    )
    lam: float | None = Field(None, ge=0, lt=1, description="fsam: decay of the average gradient; default: 0.6")
    rho_final: float | None = Field(
        None, ge=0, le=1, description="rho falls along a cosine to this share of itself; default: it stays"
    )
    ascent_fraction: float | None = Field(
        None, gt=0, le=1, description="take the first gradient on this share of the batch; default: all of it"
    )
    m: int | None = Field(
        None, gt=0, description="m-sharpness: one perturbation for each m examples; default: one for the batch"
    )
    per_rank: bool = Field(False, description="many processes: one perturbation for each, from its share of the batch")
    sharp_every: int | None = Field(None, gt=0, description="only every k-th step is sharp; default: each")
    sharp_last: float | None = Field(
        None, gt=0, le=1, description="only this last share of the budget is sharp; default: all of it"
    )
    replay_rng: bool = Field(False, description="draw the same dropout masks in both passes")

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        return with_defaults(values, MINIMIZER_DEFAULTS, cls.model_fields["name"].default)

    @model_validator(mode="after")
    def _only_own_options(self) -> Self:
        refuse_foreign(self, self.name, MINIMIZER_DEFAULTS)
        method = METHODS[self.name]
        for key, reason in method.refuses.items():
            if getattr(self, key) not in (None, False):
                raise ValueError(f"{key} means nothing to {self.name!r}: {reason}")
        if self.sharp_every and self.sharp_last:
            raise ValueError("sharp_every and sharp_last are two schedules; give one")
        dividing = ", ".join(name for name, method in METHODS.items() if method.divides)
        if self.per_rank and (self.m or not method.divides):
            raise ValueError(f"per_rank is for {dividing}, without m")
        if self.m and not method.divides:
            raise ValueError(f"m-sharpness is for {dividing}, not {self.name!r}")
        if self.m and self.ascent_fraction:
            raise ValueError("m and ascent_fraction both divide the batch; give one")
        return self

    @property
    def expected_gradients(self) -> float:
        """About how many batch gradients a step costs, for estimates and progress; a run counts its own."""
        return 1 + METHODS[self.name].extra(self) * self.sharp_share

    @property
    def sharp_share(self) -> float:
        """About which share of the steps makes two passes."""
        return METHODS[self.name].sharp_share(self)


def _by_schedule(config: MinimizerConfig) -> float:
    return config.sharp_last or 1 / (config.sharp_every or 1)


def _first_gradient(config: MinimizerConfig) -> float:
    return config.ascent_fraction or 1.0


@dataclass(frozen=True)
class Method:
    """What a configuration knows of one minimizer; `steppe.minimizers` makes its steps."""

    summary: str
    """One line for a list."""
    cost: str
    """Of a step, in words."""
    defaults: Mapping[str, float | str] = field(default_factory=dict)
    """Its own options when the user does not say; written out in full in `config.toml`."""
    sharp_share: Callable[[MinimizerConfig], float] = _by_schedule
    """About which share of the steps makes two passes."""
    extra: Callable[[MinimizerConfig], float] = _first_gradient
    """About how many gradients such a step costs beyond a plain one."""
    divides: bool = False
    """Whether parts of a batch can have perturbations of their own (`m`, `per_rank`)."""
    refuses: Mapping[str, str] = field(default_factory=dict)
    """Options of the engine that mean nothing to it -> why."""


_TWO = "2 gradients a step"
_ONE_PASS = ("ascent_fraction", "m", "per_rank", "replay_rng")
_NO_SECOND_PASS = dict.fromkeys(_ONE_PASS, "it has no second pass")
_NEVER_SHARP = dict.fromkeys(("rho_final", *_ONE_PASS, "sharp_every", "sharp_last"), "it has no second pass")
_CHOOSES_STEPS = dict.fromkeys(("sharp_every", "sharp_last"), "it decides by itself which steps are sharp")

METHODS: dict[str, Method] = {
    "base": Method(
        "the base optimizer, no perturbation",
        "1 gradient a step",
        sharp_share=lambda config: 0.0,
        refuses=_NEVER_SHARP,
    ),
    "sam": Method("worst case in a ball of radius rho", _TWO, {"rho": 0.05}, divides=True),
    "asam": Method(
        "worst case in a ball that stretches with the weights",
        _TWO,
        {"rho": 0.5, "eta": 0.01, "scaling": "weights"},
        divides=True,
    ),
    "looksam": Method(
        "SAM every k-th step, its bend reused in between",
        "1 + 1/k gradients a step",
        {"rho": 0.05, "k": 5, "alpha": 0.1},
        sharp_share=lambda config: 1 / (config.k or 1),
        refuses=_CHOOSES_STEPS,
    ),
    "esam": Method(
        "SAM on random tensors and the most sensitive examples",
        "1 + 1/3 + gamma gradients a step",
        {"rho": 0.05, "beta": 0.6, "gamma": 0.5},
        extra=lambda config: 1 / 3 + (config.gamma or 1.0),
    ),
    "msam": Method(
        "the gradient is taken ahead, along the momentum",
        "1 gradient a step",
        {"rho": 3.0},
        sharp_share=lambda config: 0.0,
        refuses=_NO_SECOND_PASS,
    ),
    "gsam": Method(
        "SAM that also closes the gap to the clean loss",
        _TWO,
        {"rho": 0.05, "alpha": 0.4},
        refuses={"rho_final": "its rho follows the learning rate by itself"},
    ),
    "fsam": Method(
        "SAM along the batch's noise instead of its gradient", _TWO, {"rho": 0.05, "sigma": 1.0, "lam": 0.6}
    ),
    "samon": Method("SAM that perturbs normalisation layers only", _TWO, {"rho": 0.5}, divides=True),
    "aesam": Method(
        "SAM on the steps where the gradient is large",
        "1 to 2 gradients a step",
        {"rho": 0.05},
        sharp_share=lambda config: 0.5,
        refuses=_CHOOSES_STEPS,
    ),
    "lesam": Method(
        "SAM whose radius makes the loss rise by sigma",
        _TWO,
        {"rho": 0.3, "sigma": 0.35},
        refuses={"rho_final": "its sigma has a schedule of its own"},
    ),
}
"""Name -> what a configuration knows of it: the one place for defaults, cost and description."""

MINIMIZER_DEFAULTS = {name: method.defaults for name, method in METHODS.items()}
"""Name -> its own options when the user does not say."""
