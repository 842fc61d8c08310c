"""An optimizer around an optimizer: shared parameter groups, gradients as vectors, state.

All that a minimizer needs of its base optimizer and of the network, and nothing about sharpness.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from operator import attrgetter, is_
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from . import vectors
from .checks import check_base
from .parameters import Filter, build_blocks
from .vectors import Vector

FILLED = "minimizer_numbers"
"""Names of the numbers in a group that come from a minimizer and not from whoever made the group."""


def fill(group: dict[str, Any], numbers: Mapping[str, Any]) -> None:
    """Put numbers into a parameter group where it has none of its own."""
    missing = {key: value for key, value in numbers.items() if key not in group}
    group.update(missing)
    group[FILLED] = [*group.get(FILLED, ()), *missing]


_is_trained = attrgetter("requires_grad")


def _is_part(tensor: Tensor) -> bool:
    """Whether a tensor lies in a larger piece of memory."""
    mine = vectors.local(tensor)
    return mine.untyped_storage().nbytes() > mine.numel() * mine.element_size()


class Wrapper(Optimizer):
    """A torch optimizer that shares the parameter groups and the state of the base optimizer it wraps."""

    counts: ClassVar[frozenset[str]] = frozenset()
    """The averages that hold one number for each parameter, not one for each of its elements."""

    def __init__(
        self,
        base: Optimizer,
        model: nn.Module | None,
        perturb: str | Filter,
        scaling: str,
        numbers: dict[str, float | Tensor],
    ) -> None:
        """`numbers` go into every group that does not bring its own."""
        check_base(base)
        self.base, self.model = base, model
        Optimizer.__setstate__(self, {"defaults": {**base.defaults, **numbers}})
        self.perturb, self.scaling, self.numbers = perturb, scaling, numbers
        self.parameters: list[Tensor] = []
        self.averages: dict[str, list[Tensor | None]] = {}
        """Vectors that a method keeps from step to step; saved with the state."""
        for group in self.param_groups:  # numbers of a minimizer that wrapped this optimizer before
            for key in group.pop(FILLED, ()):
                group.pop(key, None)
        self.build()

    def average(self, name: str) -> list[Tensor | None]:
        """One of the kept vectors, zero at first; nothing where a parameter is frozen."""
        if name not in self.averages:
            self.averages[name] = self._extended(name, {})
        return self.averages[name]

    def _extended(self, name: str, known: dict[int, Tensor | None]) -> list[Tensor | None]:
        """A vector over the present parameters: what is known of them, and zeros for the others that are trained."""
        return [
            value
            if value is not None
            else torch.zeros((), dtype=parameter.dtype, device=parameter.device)
            if parameter.requires_grad and name in self.counts
            else torch.zeros_like(vectors.local(parameter))
            if parameter.requires_grad
            else None
            for parameter, value in ((p, known.get(id(p))) for p in self.parameters)
        ]

    def build(self) -> None:
        """(Re)read the base optimizer's groups: which parameters there are and what each of them is."""
        for group in self.param_groups:
            fill(group, self.numbers)
        before = list(map(id, self.parameters))
        self.parameters, self.blocks = build_blocks(self.base, self.model, self.perturb, self.scaling)
        for name, vector in self.averages.items():
            self.averages[name] = self._extended(name, dict(zip(before, vector, strict=True)))
        self._built = self._signature()

    def _signature(self) -> tuple[Any, ...]:
        """What the blocks depend on besides the parameters: which are trained, in which group, where they are."""
        first, sizes = self.parameters[0], [len(group["params"]) for group in self.param_groups]
        return list(map(_is_trained, self.parameters)), sizes, first.dtype, first.device

    def outdated(self) -> bool:
        """Whether groups or parameters were changed behind our back (added to, unfrozen, loaded from elsewhere)."""
        given = chain.from_iterable(group["params"] for group in self.param_groups)
        return (
            not all(map(is_, given, self.parameters))
            or self._built != self._signature()
            or any(key not in group for group in self.param_groups for key in self.numbers)
        )

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The base optimizer's groups themselves."""
        return self.base.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The base optimizer's state itself."""
        return self.base.state

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: everything, not only what a plain optimizer keeps.

        Learning-rate schedulers hang a `step` bound to this object on it, and hooks are bound to whoever made them.
        """
        return {k: v for k, v in self.__dict__.items() if k != "step" and not k.endswith("_hooks")}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        self.base.zero_grad(set_to_none=set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base optimizer; the method's numbers are filled in."""
        self.base.add_param_group(param_group)
        self.build()

    def gradients(self) -> list[Tensor | None]:
        """The parameters' gradients as they stand."""
        return [parameter.grad for parameter in self.parameters]

    def set_gradients(self, gradients: Vector) -> None:
        """Put gradients in place, without copying."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient

    def keep(self, gradients: Vector) -> Vector:
        """Gradients that survive the next backward pass: the same tensors, or copies of views of DDP's buckets."""
        if not (dist.is_available() and dist.is_initialized()):
            return gradients
        return [gradient.clone() if gradient is not None and _is_part(gradient) else gradient for gradient in gradients]

    def with_decay(self, gradients: Vector) -> Vector:
        """The gradients with weight_decay · w added, in fresh tensors."""
        decayed: list[Tensor | None] = [None] * len(gradients)
        for block in self.blocks:
            mine, weights = vectors.pick(block, gradients, self.parameters)
            if mine:
                decay = vectors.as_scalar(self.param_groups[block.group].get("weight_decay", 0.0), block)
                sums = torch._foreach_add(torch._foreach_mul(weights, decay), mine)
                for i, value in zip((i for i in block.members if gradients[i] is not None), sums, strict=True):
                    decayed[i] = value
        return decayed

    def clip(self, limit: float | Tensor) -> None:
        """Scale the gradients down to the given global norm if they exceed it."""
        gradients = self.gradients()
        squared = vectors.squared_norm(self.blocks, gradients)
        if squared is not None:
            factor = (limit * vectors.guarded_reciprocal(squared.sqrt())).clamp(max=1.0)
            vectors.scale_(self.blocks, gradients, torch.where(squared > 0, factor, torch.ones_like(factor)))

    def without_sync(self) -> AbstractContextManager[Any]:
        """DDP's `no_sync`, which keeps gradients on their own process; nothing for other models."""
        no_sync = getattr(self.model, "no_sync", None)
        return no_sync() if no_sync is not None else nullcontext()
