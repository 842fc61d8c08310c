"""Forward and loss as one function of a batch, plain or compiled."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

LossFunction = Callable[..., Tensor]
"""(model, *inputs) -> the batch's mean loss, or one loss for each example (which ESAM needs)."""

_COMPILED: WeakKeyDictionary[nn.Module, dict[Any, Any]] = WeakKeyDictionary()


Computed = Callable[..., tuple[Tensor, Tensor | None]]
"""inputs -> the mean loss, and the losses of the examples where the loss function gives them."""


def bind(model: nn.Module, loss: LossFunction, autocast: torch.dtype | None, device: str) -> Computed:
    """Forward and loss as a function of the inputs alone.

    Args:
        model: held weakly.
        loss: of the model and the inputs.
        autocast: the forward pass's dtype, None for its own.
        device: "cuda" or "cpu", for the autocast.
    """
    reference = weakref.ref(model)

    def compute(*inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        with torch.autocast(device, dtype=autocast, enabled=autocast is not None):
            found = loss(reference(), *inputs)
        return (found.mean(), found.detach()) if found.ndim else (found, None)

    return compute


def compile_loss(
    model: nn.Module, loss: LossFunction, autocast: torch.dtype | None, device: str, options: dict[str, Any] | None
) -> Computed:
    """The same, compiled; made once for a model and a loss, so another minimizer on them compiles nothing again.

    Args:
        model: as in `bind`.
        loss: as in `bind`.
        autocast: as in `bind`.
        device: as in `bind`.
        options: of `torch.compile`.
    """
    known = _COMPILED.setdefault(model, {})
    key = (loss, autocast, device, repr(options))
    if key not in known:
        compute: Any = bind(model, loss, autocast, device)
        # torch keeps compiled versions by code object and gives up after a few: a code object for each model.
        compute.__code__ = compute.__code__.replace(co_name=f"compute_{next(_NUMBERS)}")
        known[key] = torch.compile(compute, dynamic=False, **(options or {}))
    return known[key]


_NUMBERS = itertools.count()


class EagerBatch:
    """The closure of a step that is not captured; can run on part of its batch."""

    def __init__(self, compute: Computed, inputs: tuple[Tensor, ...]) -> None:
        self.compute, self.inputs, self.size = compute, inputs, len(inputs[0])
        self.latest: Tensor | None = None
        self.calls = 0

    def __call__(self, part: Any = slice(None), weight: float = 1.0) -> Tensor:
        """Forward and backward on some of the examples; returns their mean loss."""
        self.calls += 1
        loss, self.latest = self.compute(*(tensor[part] for tensor in self.inputs))
        (loss * weight).backward()
        return loss

    def score(self) -> Tensor:
        """The loss of each example."""
        self.calls += 1
        _, each = self.compute(*self.inputs)
        assert each is not None
        return each
