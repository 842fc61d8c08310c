"""Saving and loading a minimizer: the base optimizer's state, the counters and the averages.

The state holds dicts, lists, numbers, strings, None and tensors, nothing else. Loading copies into the tensors that are
already there where shapes agree, so that a captured step goes on with what was loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .schedules import GradientNorm
from .vectors import local

if TYPE_CHECKING:
    from .engine import Minimizer

FORMAT = 1


def state_of(minimizer: Minimizer) -> dict[str, Any]:
    """Everything a minimizer needs to go on bit for bit."""
    schedule = minimizer.schedule
    return {
        "format": FORMAT,
        "method": minimizer.name,
        "base": minimizer.base.state_dict(),
        "step_count": minimizer.step_count,
        "sharp_step_count": minimizer.sharp_step_count,
        "gradient_evaluations": minimizer.gradient_evaluations,
        "averages": {name: list(vector) for name, vector in minimizer.averages.items()},
        "seed": minimizer.seed,
        "schedule": schedule.state_dict() if isinstance(schedule, GradientNorm) else None,
    }


def check(minimizer: Minimizer, state: dict[str, Any]) -> None:
    """Refuse a state that is not one of ours, or of another method."""
    if "base" not in state and {"state", "param_groups"} <= state.keys():
        raise ValueError(
            "this is the state of a plain optimizer or of a davda54-style SAM, which does not hold the base "
            "optimizer's momentum and steps: training cannot go on from it. If it is the base optimizer's own state, "
            "load it with minimizer.base.load_state_dict(state)"
        )
    if state.get("format") != FORMAT:
        raise ValueError(f"not a minimizer state of format {FORMAT}: it has the keys {sorted(map(str, state))}")
    if state["method"] != minimizer.name:
        raise ValueError(f"the state belongs to the method {state['method']!r}, not to {minimizer.name!r}")


@torch.no_grad()
def load(minimizer: Minimizer, state: dict[str, Any]) -> None:
    """Take a state over, in place where tensors are already there."""
    check(minimizer, state)
    base = minimizer.base
    held_state = {parameter: dict(values) for parameter, values in base.state.items()}
    held_groups = [dict(group) for group in base.param_groups]
    base.load_state_dict(state["base"])
    for parameter, values in held_state.items():
        for key, old in values.items():
            _take_over(base.state[parameter], key, old)
    for group, held in zip(base.param_groups, held_groups, strict=True):
        for key, old in held.items():
            _take_over(group, key, old)
    minimizer.averages = {name: minimizer.averages[name] for name in minimizer.averages if name in state["averages"]}
    for name, saved in state["averages"].items():
        _load_vector(name, minimizer.average(name), saved)
    minimizer.step_count = int(state["step_count"])
    minimizer.sharp_step_count = int(state["sharp_step_count"])
    minimizer.gradient_evaluations = float(state["gradient_evaluations"])
    minimizer.seed = int(state.get("seed", 0))
    if isinstance(minimizer.schedule, GradientNorm) and state["schedule"] is not None:
        minimizer.schedule.load_state_dict(state["schedule"])


def _take_over(values: dict[str, Any], key: str, old: Any) -> None:
    """Copy a loaded tensor or number into the tensor that was there before."""
    new = values.get(key)
    if not isinstance(old, Tensor) or key == "params" or new is None:
        return
    if isinstance(new, Tensor) and (new.shape != old.shape or new.dtype != old.dtype):
        return
    old.copy_(new) if isinstance(new, Tensor) else old.fill_(new)
    values[key] = old


def _load_vector(name: str, target: list[Any], saved: list[Any]) -> None:
    if len(saved) != len(target):
        raise ValueError(f"the state has {len(saved)} averages ({name}) for {len(target)} parameters")
    for position, (mine, theirs) in enumerate(zip(target, saved, strict=True)):
        if mine is None:
            continue
        if theirs is None:
            mine.zero_()
        elif local(theirs).shape != mine.shape:
            raise ValueError(f"the state's average ({name}) number {position} has another shape than the parameter")
        else:
            mine.copy_(local(theirs))
