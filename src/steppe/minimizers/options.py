"""Kinds of steps, and the options every method takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from torch import Tensor, nn

from .parameters import Filter
from .schedules import Schedule


@dataclass(frozen=True)
class Kind:
    """A kind of step: which passes it makes. A captured step holds one graph for each kind."""

    name: str
    first: bool = True
    second: bool = False


PLAIN = Kind("plain")
SHARP = Kind("sharp", second=True)


class Options(TypedDict, total=False):
    """What every method takes besides its own numbers; `Minimizer` explains them."""

    model: nn.Module | None
    perturb: str | Filter
    scaling: str
    schedule: Schedule | None
    ascent_fraction: float | None
    m: int | Literal["rank"] | None
    ascent_weight_decay: bool
    replay_rng: bool
    clip_norm: float | None
    scaler: Any


class ScaledOptions(Options, total=False):
    """The same, and η of the scaling, for methods that do not scale by default."""

    eta: float | Tensor
