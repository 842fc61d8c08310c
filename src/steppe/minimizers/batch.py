"""The closure protocol: what `Minimizer.step` calls.

Most methods call a plain closure: it takes nothing, runs forward and backward, and returns the loss. Some need parts
of the batch (ε from a fraction of it, ε for each micro-batch, ESAM's choice of examples): they call a `Batch`, which is
such a closure and can also be called for some of its examples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Examples = slice | Tensor
"""Which examples of the batch: a slice, or a vector of their positions."""

Closure = Callable[[], Tensor]


class Batch:
    """One batch of examples, as a closure that can run on parts of it.

    Args:
        losses: takes a slice or a vector of positions, runs the forward pass on these examples and returns one loss
            each. It is the only thing to write:

                batch = Batch(len(x), lambda part: F.cross_entropy(model(x[part]), y[part], reduction="none"))
                minimizer.step(batch)

        size: the number of examples in the batch.
        scaler: a `torch.amp.GradScaler` whose scale the backward pass is to carry.

    `batch()` runs forward and backward on the whole batch and returns the mean loss, as a plain closure does. A class
    of your own needs the same three members: `size`, `__call__(examples, weight)` and `losses(examples)`.
    """

    def __init__(self, size: int, losses: Callable[[Examples], Tensor], scaler: Any = None) -> None:
        """Remember how to compute the losses; nothing runs yet."""
        self.size = size
        self.losses = losses
        self.scaler = scaler
        self.latest: Tensor | None = None
        """The per-example losses of the latest pass, without their graph."""

    def __call__(self, examples: Examples | None = None, weight: float = 1.0) -> Tensor:
        """Backward through weight × the mean loss of the examples (all of them by default); returns the mean loss."""
        losses = self.losses(slice(None) if examples is None else examples)
        self.latest = losses.detach()
        loss = losses.mean()
        objective = loss * weight if weight != 1.0 else loss
        (self.scaler.scale(objective) if self.scaler is not None else objective).backward()
        return loss.detach()

    @torch.no_grad()
    def score(self, examples: Examples | None = None) -> Tensor:
        """Losses of the examples without a gradient."""
        return self.losses(slice(None) if examples is None else examples)


def require_batch(closure: Any, why: str, *members: str) -> Batch:
    """The closure, if it can run on parts of its batch; a clear error otherwise."""
    if not all(hasattr(closure, member) for member in ("size", *members)):
        raise TypeError(
            f"{why} needs a closure that can run on part of the batch: pass a steppe.minimizers.Batch "
            f"(size and per-example losses) instead of {closure!r}"
        )
    return closure
