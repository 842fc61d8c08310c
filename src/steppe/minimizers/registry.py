"""The methods by name."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn
from torch.optim import Optimizer

from .cheap import AESAM, ESAM, MSAM, LookSAM
from .engine import Minimizer
from .methods import ASAM, FSAM, GSAM, LESAM, SAM, SAMON, Base

METHODS: dict[str, type[Minimizer]] = {
    method.name: method for method in (Base, SAM, ASAM, LookSAM, ESAM, MSAM, GSAM, FSAM, SAMON, AESAM, LESAM)
}


def defaults_of(method: type[Minimizer]) -> dict[str, Any]:
    """Return a method's own options with their default values.

    Args:
        method: a class of `METHODS`.
    """
    parameters = inspect.signature(method).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}


def create(name: str, base: Optimizer, model: nn.Module | None = None, **options: Any) -> Minimizer:
    """Make a minimizer by name around a base optimizer."""
    if name not in METHODS:
        raise ValueError(f"unknown minimizer {name!r}; choose one of {', '.join(METHODS)}")
    make: Any = METHODS[name]
    return make(base, model=model, **options)
