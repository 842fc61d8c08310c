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
    """The closure of a step that is not captured; can run on part of its batch, so many examples at a time."""

    def __init__(self, compute: Computed, inputs: tuple[Tensor, ...], micro: int) -> None:
        self.compute, self.inputs, self.size, self.micro = compute, inputs, len(inputs[0]), micro
        self.latest: Tensor | None = None
        self.calls = 0

    def __call__(self, part: Any = slice(None), weight: float = 1.0) -> Tensor:
        """Forward and backward on some of the examples; returns their mean loss."""
        chosen = [tensor[part] for tensor in self.inputs]
        total, found = torch.zeros((), device=chosen[0].device), []
        for pieces in zip(*(tensor.split(self.micro) for tensor in chosen), strict=True):
            self.calls += 1
            share = len(pieces[0]) / len(chosen[0])
            loss, each = self.compute(*pieces)
            (loss * (weight * share)).backward()
            total += loss.detach() * share
            found.append(each)
        self.latest = None if found[0] is None else torch.cat([each for each in found if each is not None])
        return total

    def score(self) -> Tensor:
        """The loss of each example."""
        found = []
        for pieces in zip(*(tensor.split(self.micro) for tensor in self.inputs), strict=True):
            self.calls += 1
            _, each = self.compute(*pieces)
            assert each is not None
            found.append(each)
        return torch.cat(found)
