"""Functions that are differentiated twice by hand, in graphs that keep little.

A layer is three functions of its tensors: its value, its gradient, and the gradient of ⟨gradient, vectors⟩. While
`ByHand` is entered, calls go by way of layers. A graph then keeps what a layer was given; a value or a gradient that a
pass over that gives again is kept as a recipe, and made anew when it is needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from steppe.geometry.memory import SavedBytes

Tensors = Sequence[Tensor | None]


class Layer(ABC):
    """A kind of layer with its settings. Tensors that it may be called without are None."""

    again = (False, False)
    """Whether the value, and the gradient, cost so little that a graph need not keep them."""

    @abstractmethod
    def value(self, *tensors: Any) -> Tensor:
        """The layer's value."""

    @abstractmethod
    def gradient(self, wanted: Sequence[bool], g: Tensor, *tensors: Any) -> Tensors:
        """The gradient of ⟨value, g⟩ by each of the tensors that is wanted."""

    @abstractmethod
    def second(self, vectors: Tensors, g: Tensor, *tensors: Any) -> Tensors:
        """The gradient of ⟨gradient, vectors⟩ by g and by each of the tensors. Not all vectors are None."""


Known = tuple[Layer, Tensors] | None
"""A layer and its tensors, or None where the arguments are left to torch."""


class ByHand(SavedBytes):
    """While it is entered, functions that are known go by way of a layer; counts what their graphs hold."""

    known: Mapping[Callable[..., Any], Callable[..., Known]] = {}
    """A function -> what reads its arguments."""

    def __init__(self, parameters: Iterable[Tensor] = ()) -> None:
        super().__init__(parameters)
        self._recipes: dict[int, tuple[StorageWeakRef, Callable[[], Tensor]]] = {}
        self._calls = _Calls(self)
        self._open = False

    def __enter__(self) -> None:
        super().__enter__()
        self._calls.__enter__()
        self._open = True

    def __exit__(self, *error: Any) -> None:
        self._open = False
        self._recipes.clear()
        self._calls.__exit__(*error)
        super().__exit__(*error)

    def remember(self, made: Tensor, recipe: Callable[[], Tensor]) -> None:
        """Have graphs keep a recipe wherever they would keep a tensor, or a view of it; no more graphs, no recipes."""
        if not self._open:  # going back through a kept graph: nothing packs what is made there, nor would forget it
            return
        storage = made.untyped_storage()
        # a weak reference keeps the storage's address from being given to another
        self._recipes[storage._cdata] = (StorageWeakRef(storage), recipe)

    def _pack(self, tensor: Tensor) -> Any:
        known = self._recipes.get(tensor.untyped_storage()._cdata)
        if known is None:
            return super()._pack(tensor)
        return known[1], tensor.shape, tensor.stride(), tensor.storage_offset()

    def _unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        recipe, *view = packed
        with torch.no_grad():
            made: Tensor = recipe()
        self.remember(made, recipe)  # the graph of the gradient would keep it too
        return made.as_strided(*view)


class _Calls(TorchFunctionMode):
    """Sends the functions that are known here by way of `_Value`."""

    def __init__(self, notes: ByHand) -> None:
        super().__init__()
        self.notes = notes

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function; one that is known as a layer, where that knows its arguments."""
        kwargs = kwargs or {}
        known = self.notes.known.get(function)
        found = known(*args, **kwargs) if known is not None else None
        if found is None:
            return function(*args, **kwargs)
        layer, tensors = found
        return _Value.apply(layer, self.notes, *tensors)


class _Value(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layer: Layer, notes: ByHand, *tensors: Tensor | None) -> Tensor:
        ctx.layer, ctx.notes = layer, notes
        ctx.save_for_backward(*tensors)
        value = layer.value(*tensors)
        if layer.again[0]:
            notes.remember(value, partial(layer.value, *map(_detach, tensors)))
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        wanted = ctx.needs_input_grad[2:]
        return None, None, *_Gradient.apply(ctx.layer, ctx.notes, wanted, gradients[0], *ctx.saved_tensors)


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, layer: Layer, notes: ByHand, wanted: Sequence[bool], g: Tensor, *tensors: Tensor | None
    ) -> Any:
        ctx.set_materialize_grads(False)
        ctx.layer = layer
        ctx.save_for_backward(g, *tensors)
        gradient = tuple(layer.gradient(wanted, g, *tensors))
        if layer.again[1]:
            remade = partial(layer.gradient, wanted, g.detach(), *map(_detach, tensors))
            for i, made in enumerate(gradient):
                if made is not None:
                    notes.remember(made, partial(_nth, remade, i))
        return gradient

    @staticmethod
    def backward(ctx: Any, *vectors: Any) -> Any:
        if all(vector is None for vector in vectors):
            return (None,) * len(ctx.needs_input_grad)
        found = ctx.layer.second(vectors, *ctx.saved_tensors)
        needed = zip(found, ctx.needs_input_grad[3:], strict=True)
        return None, None, None, *(f if need else None for f, need in needed)


def _detach(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()


def _nth(call: Callable[[], Any], n: int) -> Tensor:
    found: Tensor = call()[n]
    return found
