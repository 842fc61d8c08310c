"""What a step needs before it can be recorded: wrong uses refused, torch's optimizers set up for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .engine import Minimizer


def check_capturable(minimizer: Minimizer) -> None:
    """Refuse what cannot be recorded, saying why.

    Args:
        minimizer: that is to be captured.
    """
    if minimizer.chooses_examples and minimizer.replay is not None:
        name = minimizer.name
        raise ValueError(f"{name}'s passes see different examples: replay_rng cannot be captured with it")
    if minimizer.m is not None:
        raise ValueError(f"a captured step has one perturbation for its batch; m={minimizer.m!r} is not supported")
    if hasattr(minimizer.model, "no_sync") or any(block.distributed for block in minimizer.blocks):
        raise ValueError("a captured step runs on one device: gradients of its second set of weights are not reduced")
    if minimizer.unscaling.scaler is not None:
        raise ValueError("a gradient scaler decides on the host and cannot be captured; use bf16")
    if any(group.get("dampening") for group in minimizer.param_groups) and not minimizer.state:
        raise ValueError("SGD's dampening treats its first step apart: make one step before capturing")


_NOT_FROM_ZERO = (torch.optim.NAdam, torch.optim.ASGD, torch.optim.Rprop)


def check_state(minimizer: Minimizer) -> None:
    """Warm-up steps make the base optimizer's state, which is set to zero after them: refuse where that is wrong.

    Args:
        minimizer: that is to be captured.
    """
    missing = any(p.requires_grad and p not in minimizer.state for p in minimizer.parameters)
    if missing and isinstance(minimizer.base, _NOT_FROM_ZERO):
        name = type(minimizer.base).__name__
        raise ValueError(f"{name}'s state does not start from zero: make one step before capturing")


def settings_of(minimizer: Minimizer) -> list[dict[str, Any]]:
    """The numbers of each group that are no tensors of the graph.

    Args:
        minimizer: whose groups to read.
    """
    tensors = ("lr", "initial_lr", "capturable", "fused", "foreach", *minimizer.numbers)
    return [
        {key: value for key, value in group.items() if key not in tensors and isinstance(value, int | float | tuple)}
        for group in minimizer.param_groups
    ]


def make_capturable(minimizer: Minimizer) -> None:
    """Set what torch's optimizers need under capture: the fused form, counters on the device.

    Args:
        minimizer: whose base optimizer is set.
    """
    for group in minimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
        if "fused" in group:
            group["fused"], group["foreach"] = True, False
        for parameter in group["params"]:
            step = minimizer.state[parameter].get("step") if parameter in minimizer.state else None
            if isinstance(step, Tensor):
                minimizer.state[parameter]["step"] = step.to(parameter.device, torch.float32)
            if isinstance(minimizer.base, torch.optim.SGD) and group["momentum"] and parameter.requires_grad:
                held = minimizer.state[parameter]
                if held.get("momentum_buffer") is None:  # fused SGD cannot start some of its buffers later than others
                    held["momentum_buffer"] = torch.zeros_like(parameter)
