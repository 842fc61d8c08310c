"""fp16 with a gradient scaler: every pass unscaled, an overflow in any of them skips the step.

`GradScaler` knows one backward pass for each optimizer between two updates. A sharp step has two, so each pass is
unscaled under a stand-in of its own; `scaler.update()` then sees the overflows of all of them and lowers the scale.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class _Pass:
    """Stands for the optimizer in one call of `GradScaler.unscale_`, which reads its parameter groups."""

    def __init__(self, param_groups: list[dict[str, Any]]) -> None:
        self.param_groups = param_groups


class Unscaling:
    """Unscales the gradients of each pass of a step and tells whether they are finite."""

    def __init__(self, scaler: Any = None) -> None:
        """Take a `torch.amp.GradScaler`, or None where there is nothing to do."""
        self.scaler = scaler
        self.passes: list[_Pass] = []

    def begin(self) -> None:
        """A new step; stand-ins of an abandoned one stay until the scaler has forgotten them by `update()`."""
        self.passes = [old for old in self.passes if id(old) in self.scaler._per_optimizer_states]

    def unscale(self, param_groups: list[dict[str, Any]]) -> bool:
        """Unscale the gradients in place; False if any of them, on any process, is not finite.

        This reads the device, as `GradScaler.step` does.
        """
        if self.scaler is None or not self.scaler.is_enabled():
            return True
        if not any(parameter.grad is not None for group in param_groups for parameter in group["params"]):
            return True
        stand_in = _Pass(param_groups)
        self.passes.append(stand_in)  # kept alive: the scaler tells optimizers apart by id
        self.scaler.unscale_(stand_in)
        found: list[Tensor] = [flag.float() for flag in self.scaler._found_inf_per_device(stand_in).values()]
        flag = torch.stack([value.to(found[0].device) for value in found]).amax()
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(flag, op=dist.ReduceOp.MAX)
            if flag:  # so that the scale falls on every process
                for value in self.scaler._found_inf_per_device(stand_in).values():
                    value.fill_(1.0)
        return not bool(flag)
