"""A second set of weights that follows the trained ones: moving average, equal average (SWA), or Lookahead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from steppe.config import RunConfig
from steppe.minimizers.vectors import local
from steppe.train.distributed import local_vector, whole_vector


@dataclass(frozen=True)
class Moment:
    """Where in the training an average is asked whether it takes the weights in."""

    steps: int
    """Steps so far."""
    share: float
    """Share of the budget spent so far."""
    taken: int
    """How often weights were taken in before."""
    epoch_ends: bool
    """Whether this is the end of an epoch, and not that of a step."""


class Policy(Protocol):
    """When weights are taken into an average, and with which rate."""

    writes_back: bool
    """Whether training goes on from the average."""

    def rate(self, moment: Moment) -> float | None:
        """Return r of a ← a + r (w − a), or None where the average stays as it is."""


@dataclass(frozen=True)
class MovingAverage:
    """Take in every step with the rate 1 − d, where d = min(decay, (1 + t) / (10 + t)) forgets the start."""

    decay: float
    writes_back = False

    def rate(self, moment: Moment) -> float | None:
        """Return the rate after a step."""
        return None if moment.epoch_ends else 1 - min(self.decay, (1 + moment.steps) / (10 + moment.steps))


@dataclass(frozen=True)
class EqualAverage:
    """Average the weights at the ends of the epochs in the last share of the budget, all with equal weight.

    Izmailov, Podoprikhin, Garipov, Vetrov, Wilson 2018, "Averaging Weights Leads to Wider Optima and Better
    Generalization" (SWA, arXiv:1803.05407).
    """

    last: float
    writes_back = False

    def rate(self, moment: Moment) -> float | None:
        """Return the rate at the end of an epoch."""
        begun = moment.epoch_ends and moment.share > 1 - self.last + 1e-9
        return 1 / (moment.taken + 1) if begun else None


@dataclass(frozen=True)
class Lookahead:
    """Let slow weights go a share of the way to the trained ones every few steps; training goes on from there.

    Zhang, Lucas, Hinton, Ba 2019, "Lookahead Optimizer: k steps forward, 1 step back" (arXiv:1907.08610). With `ramp`
    the share falls from 1 to `reach` with the cube of the spent budget, as in the CIFAR-10 speed records.
    """

    reach: float
    every: int
    ramp: bool = False
    writes_back = True

    def rate(self, moment: Moment) -> float | None:
        """Return the rate after every k-th step."""
        if moment.epoch_ends or moment.steps % self.every:
            return None
        return 1 - (1 - self.reach) * min(1.0, moment.share) ** 3 if self.ramp else self.reach


def choose_policy(config: RunConfig) -> Policy | None:
    """Return the policy of the run's average; None where it keeps none."""
    if config.ema is not None:
        return MovingAverage(config.ema)
    if config.swa is not None:
        return EqualAverage(config.swa)
    if config.lookahead is not None:
        return Lookahead(config.lookahead, config.lookahead_every or 5, config.lookahead_ramp)
    return None


class WeightAverage:
    """Keeps a second set of weights, for evaluation and for keeping.

    BatchNorm's statistics and other buffers are averages already: the model's own are used.
    """

    def __init__(self, model: nn.Module, policy: Policy) -> None:
        """Begin at the model's weights."""
        self.policy = policy
        self.steps = self.taken = 0
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.live = [local(p) for p in self.parameters]
        self.averages = [p.detach().clone() for p in self.live]

    def after_step(self, share: float) -> None:
        """Take in the weights after a step, if the policy says so.

        Args:
            share: of the budget, spent so far.
        """
        self.steps += 1
        self._take_in(Moment(self.steps, share, self.taken, epoch_ends=False))

    def after_epoch(self, share: float) -> None:
        """Take in the weights at the end of an epoch, if the policy says so.

        Args:
            share: of the budget, spent so far.
        """
        self._take_in(Moment(self.steps, share, self.taken, epoch_ends=True))

    @torch.no_grad()
    def _take_in(self, moment: Moment) -> None:
        rate = self.policy.rate(moment)
        if rate is None:
            return
        self.taken += 1
        torch._foreach_lerp_(self.averages, self.live, rate)
        if self.policy.writes_back:
            torch._foreach_copy_(self.live, self.averages)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the model has the averaged weights, if there are any yet."""
        if not self.taken:
            yield
            return
        with torch.no_grad():
            own = [p.detach().clone() for p in self.live]
            torch._foreach_copy_(self.live, self.averages)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self.live, own)

    def state_dict(self) -> dict[str, object]:
        """Return the averages and what they hold."""
        return {
            "steps": self.steps,
            "taken": self.taken,
            "averages": whole_vector(self.averages, self.parameters),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, object]) -> None:
        """Take back what `state_dict` gave."""
        steps, taken, averages = state["steps"], state["taken"], state["averages"]
        fits = isinstance(steps, int) and isinstance(taken, int)
        if not fits or not isinstance(averages, list) or len(averages) != len(self.averages):
            raise ValueError("the average belongs to another model")
        assert isinstance(steps, int)
        assert isinstance(taken, int)
        self.steps, self.taken = steps, taken
        for own, given in zip(self.averages, local_vector(averages, self.parameters), strict=True):
            assert given is not None
            own.copy_(given)
