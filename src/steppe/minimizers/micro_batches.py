"""m-sharpness on one device: an ε of its own for every micro-batch of m examples."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .batch import require_batch
from .checks import check_loss
from .options import Kind

if TYPE_CHECKING:
    from .engine import Minimizer


def micro_passes(minimizer: Minimizer, closure: Callable[..., Tensor], kind: Kind) -> Tensor:
    """Both passes of every micro-batch of m examples; their second gradients add up, weighted by size.

    Args:
        minimizer: its `m` is the number of examples.
        closure: a `Batch`.
        kind: of the step.
    """
    assert isinstance(minimizer.m, int)
    batch = require_batch(closure, f"m-sharpness with m={minimizer.m}")
    nothing: list[Tensor | None] = [None] * len(minimizer.parameters)
    gathered, total = nothing, torch.zeros(())
    for start in range(0, batch.size, minimizer.m):
        part = slice(start, min(start + minimizer.m, batch.size))
        weight, last = (part.stop - part.start) / batch.size, part.stop == batch.size
        quiet = nullcontext() if last else minimizer.without_sync()
        if minimizer.replay is not None:
            minimizer.replay.record()
        minimizer.set_gradients(nothing if kind.second else gathered)
        with minimizer.without_sync() if kind.second else quiet, torch.enable_grad():
            loss = check_loss(closure(part, 1.0 if kind.second else weight))
        minimizer._spent += weight
        if minimizer._ascend(kind):
            minimizer.set_gradients(gathered)
            with minimizer.second_pass(), quiet, torch.enable_grad():
                closure(part, weight)
            minimizer._spent += weight
            minimizer._restore()
        gathered = minimizer.gradients()
        total = loss.detach() * weight + total.to(loss.device)
        if minimizer._overflowed:
            break
    return total
