"""The methods by name, with their defaults and costs as data."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from .cheap import AESAM, ESAM, MSAM, LookSAM
from .engine import Minimizer
from .methods import ASAM, FSAM, GSAM, SAM, SAMON, Base


@dataclass(frozen=True)
class Method:
    """One method: what makes it, and what to say of it in a list."""

    name: str
    make: type[Minimizer]
    cost: str
    summary: str

    @property
    def defaults(self) -> dict[str, Any]:
        """The method's own options with their default values."""
        parameters = inspect.signature(self.make).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}


_LISTED = (
    Method("base", Base, "1 gradient a step", "the base optimizer, no perturbation"),
    Method("sam", SAM, "2 gradients a step", "worst case in a ball of radius rho"),
    Method("asam", ASAM, "2 gradients a step", "worst case in a ball that stretches with the weights"),
    Method("looksam", LookSAM, "1 + 1/k gradients a step", "SAM every k-th step, its bend reused in between"),
    Method("esam", ESAM, "1 + 1/3 + gamma gradients a step", "SAM on random tensors and the most sensitive examples"),
    Method("msam", MSAM, "1 gradient a step", "the gradient is taken ahead, along the momentum"),
    Method("gsam", GSAM, "2 gradients a step", "SAM that also closes the gap to the clean loss"),
    Method("fsam", FSAM, "2 gradients a step", "SAM along the batch's noise instead of its gradient"),
    Method("samon", SAMON, "2 gradients a step", "SAM that perturbs normalisation layers only"),
    Method("aesam", AESAM, "1 to 2 gradients a step", "SAM on the steps where the gradient is large"),
)
METHODS: dict[str, Method] = {method.name: method for method in _LISTED}


def create(name: str, base: Optimizer, model: nn.Module | None = None, **options: Any) -> Minimizer:
    """Make a minimizer by name around a base optimizer."""
    if name not in METHODS:
        raise ValueError(f"unknown minimizer {name!r}; choose one of {', '.join(METHODS)}")
    make: Any = METHODS[name].make
    return make(base, model=model, **options)
