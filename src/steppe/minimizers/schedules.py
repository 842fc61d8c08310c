"""Sharpness schedules: which steps pay for a second gradient, and how the radius moves.

A schedule is called with the number of the step (from 0) and answers whether that step is sharp. It decides on the
host, so a captured step picks its graph without reading the device. Any function of that form will do.
`GradientNorm` is the exception: it decides after the first gradient, from its norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

Schedule = Callable[[int], bool]


@dataclass(frozen=True)
class Always:
    """Every step is sharp."""

    def __call__(self, step: int) -> bool:
        """Whether step number `step` is sharp."""
        return True


@dataclass(frozen=True)
class Every:
    """Every k-th step is sharp, starting with the first."""

    k: int

    def __post_init__(self) -> None:
        """Refuse a period that is none."""
        if self.k < 1:
            raise ValueError(f"every k-th step needs k >= 1, not {self.k}")

    def __call__(self, step: int) -> bool:
        """Whether step number `step` is sharp."""
        return step % self.k == 0


@dataclass(frozen=True)
class Last:
    """Only the last share of training is sharp (`Last(0.2, num_steps=1000)`: the last 200 steps)."""

    share: float
    num_steps: int

    def __post_init__(self) -> None:
        """Refuse a share that is none."""
        if not 0.0 <= self.share <= 1.0:
            raise ValueError(f"the share of sharp steps lies between 0 and 1, not {self.share}")

    def __call__(self, step: int) -> bool:
        """Whether step number `step` is sharp."""
        return step >= round(self.num_steps * (1.0 - self.share))


@dataclass
class GradientNorm:
    """Sharp where the squared gradient norm is large for its recent history (AE-SAM's rule, Jiang et al., 2023).

    With s = ‖g‖², μ ← δμ + (1−δ)s and σ² ← δσ² + (1−δ)(s−μ)², a step is sharp when s ≥ μ + c·σ, where c moves
    linearly from `start` to `end` over `num_steps`, or with `share` (`start` alone where neither is given).
    Reads one number from the device each step: the decision is the host's.
    """

    decay: float = 0.9
    start: float = 1.0
    end: float = -1.0
    num_steps: int | None = None
    share: Callable[[], float] | None = None
    """Tells the share of training that is done, where a number of steps cannot."""
    mean: float = field(default=0.0, init=False)
    variance: float = field(default=0.0, init=False)
    observed: bool = field(default=False, init=False)

    def __call__(self, step: int) -> bool:
        """Every step may be sharp; `observe` decides."""
        return True

    def observe(self, step: int, squared_norm: Tensor) -> bool:
        """Take in the squared gradient norm of this step and say whether the step is sharp."""
        value = float(squared_norm)
        if not self.observed:
            self.mean, self.observed = value, True
        self.mean = self.decay * self.mean + (1.0 - self.decay) * value
        self.variance = self.decay * self.variance + (1.0 - self.decay) * (value - self.mean) ** 2
        done = self.share() if self.share is not None else step / self.num_steps if self.num_steps else 0.0
        done = min(1.0, done)
        threshold = self.start + (self.end - self.start) * done
        return value >= self.mean + threshold * math.sqrt(self.variance)

    def state_dict(self) -> dict[str, Any]:
        """The averages."""
        return {"mean": self.mean, "variance": self.variance, "observed": self.observed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the averages back."""
        self.mean, self.variance = float(state["mean"]), float(state["variance"])
        self.observed = bool(state.get("observed", True))


def set_scalar(group: dict[str, Any], key: str, value: float) -> None:
    """Set a number of a parameter group; a 0-d tensor is filled in place, so a captured graph sees the change."""
    if isinstance(group.get(key), Tensor):
        group[key].fill_(value)
    else:
        group[key] = value
