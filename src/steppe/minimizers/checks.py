"""Wrong uses, refused with what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor
from torch.optim import LBFGS, Optimizer

from .schedules import GradientNorm

if TYPE_CHECKING:
    from .engine import Minimizer


def check_base(base: Any) -> None:
    """A base optimizer is a torch optimizer instance whose step takes the gradients as they are."""
    if not isinstance(base, Optimizer):
        raise TypeError(f"base must be an optimizer instance such as torch.optim.SGD(...), not {base!r}")
    if isinstance(base, LBFGS):
        raise ValueError("LBFGS evaluates the loss inside its own step and cannot be the base of a minimizer")
    if hasattr(base, "gradient_evaluations"):
        raise ValueError(f"the base optimizer is a minimizer already ({type(base).__name__}): wrap its base instead")


def check_numbers(name: str, numbers: dict[str, Any], known: tuple[str, ...]) -> None:
    """The method's hyper-parameters: known by name, and numbers."""
    for key, value in numbers.items():
        if key not in known:
            hint = "; that is ASAM(base, eta=0.0, scaling='all', model=model)" if key == "adaptive" else ""
            raise TypeError(f"{name} has no option {key!r}{hint}")
        if not isinstance(value, int | float) and not (isinstance(value, Tensor) and value.ndim == 0):
            hint = "; the network is passed as model=" if callable(value) else ""
            raise TypeError(f"{key} is a number or a 0-d tensor, not a {type(value).__name__}{hint}")


def check_groups(minimizer: Minimizer) -> None:
    """What the parameter groups must not say."""
    for group in minimizer.param_groups:
        if not isinstance(group["rho"], Tensor) and group["rho"] < 0:
            raise ValueError(f"the radius rho is at least 0, not {group['rho']}")
        if group.get("maximize") and minimizer.name != "base":
            raise ValueError(
                f"{minimizer.name} looks for the largest loss nearby, and maximize=True asks for a large one: "
                "minimize the negative objective instead"
            )


def check_options(minimizer: Minimizer) -> None:
    """Options that contradict one another, or the method."""
    name, fraction, m = minimizer.name, minimizer.ascent_fraction, minimizer.m
    looks = isinstance(minimizer.schedule, GradientNorm)
    if fraction is not None and not 0.0 < fraction <= 1.0:
        raise ValueError(f"ascent_fraction lies in (0, 1], not {fraction}")
    if fraction is not None and (looks or isinstance(m, int) or minimizer.keeps_first):
        raise ValueError(
            f"{name}: ascent_fraction works neither with micro-batches (m) nor with methods and schedules "
            "that go by the whole batch's first gradient"
        )
    if isinstance(m, int):
        if m < 1:
            raise ValueError(f"m counts the examples that share one perturbation: at least 1, not {m}")
        if not minimizer.micro_batches or looks:
            raise ValueError(f"{name} remembers gradients and cannot use micro-batches (m={m})")
    elif m not in (None, "rank"):
        raise ValueError(f"m is a number of examples, 'rank' or None, not {m!r}")
    if m == "rank" and (not minimizer.micro_batches or looks):
        raise ValueError(
            f'{name} goes by the global first gradient: with m="rank" each process has its own, and they would part'
        )
    if m == "rank" and not hasattr(minimizer.model, "no_sync"):
        raise ValueError('m="rank" needs model= to be a DistributedDataParallel model')


def check_loss(loss: Any) -> Tensor:
    """What a closure returned, if it is a loss."""
    if not isinstance(loss, Tensor):
        raise TypeError(f"the closure must return the loss as a tensor, not {loss!r}")
    return loss


def check_closure(closure: Any) -> Callable[..., Tensor]:
    """The closure; refuse none, and Lightning's where the trainer accumulates or clips gradients around the passes.

    Lightning hands its optimizers a `functools.partial` whose first argument is the module.
    """
    if closure is None:
        raise TypeError(
            "step() needs a closure that runs forward and backward and returns the loss; without one, "
            "call ascend() and descend() around the second backward pass"
        )
    owner = next(iter(getattr(closure, "args", ())), None)
    trainer = getattr(owner, "_trainer", None)  # `trainer` raises where there is none
    if getattr(trainer, "accumulate_grad_batches", 1) != 1:
        raise ValueError(
            "accumulate_grad_batches adds up gradients outside step(), where a second pass cannot repeat them: set it "
            "to 1 and, in manual optimization, pass step() a closure that runs all micro-batches"
        )
    if getattr(trainer, "gradient_clip_val", None):
        raise ValueError("gradient_clip_val clips the first gradient too: pass clip_norm= to the minimizer instead")
    return cast(Callable[..., Tensor], closure)
