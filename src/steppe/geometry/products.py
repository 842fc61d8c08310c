"""Products of a model's Hessian with vectors, by torch's double backward: right on every layer.

The product with v is the gradient of ⟨∇L(w), v⟩ (Pearlmutter 1994). On a CPU, building ∇L with its graph costs a
gradient and a half; going back through it costs about two, on CUDA more (docs/curvature.md). The weights do not move
while a figure is measured, so the graph is built once and kept for every product that follows, of the whole model and
of its parts, as far as memory goes; the chunks of data whose graphs do not fit are rebuilt for every product.
`compiled` fuses both halves with torch.compile, which takes a minute to warm up.

Forward-over-reverse products are not used. They cost three gradients, and of the ways to write them `torch.func.jvp`
of `jacrev` (which is `torch.func.hessian`) and `grad` of `jvp` are silently wrong through an affine LayerNorm and
through BatchNorm in training mode, `jvp` of `grad` is not (`tests/geometry/test_products.py` shows it).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from steppe.errors import SteppeError, ran_out_of_memory
from steppe.geometry.how import borrowed
from steppe.geometry.memory import SavedBytes, free_bytes
from steppe.geometry.parts import WHOLE, resolve_parts, trained_parameters
from steppe.measuring import (
    CROSS_ENTROPY,
    Batches,
    BatchNormMode,
    Loss,
    Precision,
    check_batches,
    check_finite,
    count_examples,
)

_FEWEST = 16
"""Examples that a chunk is not cut below to keep more graphs."""
_PIECES = 16
"""Memory is cut for about so many graphs, where not all fit: with more, each is too small to fill a GPU."""
_WORK = 2.0
"""Graphs that a product needs room for: that of a chunk which is not kept, and what flows back through it."""

Gradient = Sequence[Tensor | None]
Progress = Callable[[str, int], None]
"""Told the part and how many products with its Hessian have been made."""


class Hessian:
    """The Hessian of the mean loss over batches, as products with flat vectors. Use it in a `with` statement.

    A vector of a part holds its trainable parameters one after the other, in the model's order.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        *,
        loss: Loss = CROSS_ENTROPY,
        parts: Sequence[str] | Mapping[str, Sequence[str]] = (WHOLE,),
        batch_norm: BatchNormMode = "running",
        precision: Precision = "float32",
        chunk: int | None = None,
        keep: bool = True,
        compiled: bool = False,
        progress: Progress | None = None,
        checked: bool = False,
    ) -> None:
        """Check the model and the data.

        Args:
            model: what is measured, on the device where it is to compute.
            batches: normalised images and labels, on the same device.
            loss: of each example.
            parts: the diagonal blocks that products are wanted of, beside the whole model.
            batch_norm: where BatchNorm's statistics come from.
            precision: of a float32 model's products on CUDA.
            chunk: examples at a time; by default a batch, or less where that leaves room for more graphs. Memory that
                runs out makes it smaller, whatever is asked.
            keep: keep graphs between products, as far as memory goes.
            compiled: compile the products, once for every size of chunk. Where BatchNorm uses each batch's statistics
                they stay as they are.
            progress: told of every product.
            checked: the model and the data are known to be good.
        """
        if not checked:
            check_finite(model)
            check_batches(batches, batch_norm=batch_norm)
        self.model, self.loss, self.batch_norm, self.precision = model, loss, batch_norm, precision
        self.named = trained_parameters(model)
        self.parts = {WHOLE: list(self.named), **resolve_parts(model, parts)}
        self.examples = count_examples(batches)
        self.batches = [(images, targets) for images, targets in batches if len(targets)]
        largest = max(len(targets) for _, targets in self.batches)
        self.chunk = min(chunk or largest, largest)
        self.may_cut = chunk is None and batch_norm == "running" and not compiled
        self.keep, self.progress = keep, progress
        self.compiled = compiled and batch_norm == "running"
        self.products = dict.fromkeys(self.parts, 0)
        self.graphs: dict[int, Gradient] = {}
        self.room: int | None = None
        self.reserved = 0
        """Bytes that graphs must leave to others, such as the vectors of Lanczos."""
        self.index = {name: i for i, name in enumerate(self.named)}
        self._gradient_function: Callable[..., Any] | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Hessian:
        self._stack.enter_context(borrowed(self.model, batch_norm=self.batch_norm, precision=self.precision))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.graphs.clear()
        self._gradient_function = None
        self._stack.__exit__(kind, error, trace)

    def size(self, part: str = WHOLE) -> int:
        """The number of parameters of a part."""
        return sum(self.named[name].numel() for name in self.parts[part])

    def unflatten(self, vector: Tensor, part: str = WHOLE) -> dict[str, Tensor]:
        """Cut a part's vector into views of its parameters' shapes, by name."""
        parameters = {name: self.named[name] for name in self.parts[part]}
        pieces = vector.split([parameter.numel() for parameter in parameters.values()])
        return {name: piece.view(p.shape) for (name, p), piece in zip(parameters.items(), pieces, strict=True)}

    def like(self, *shape: int) -> Tensor:
        """An empty tensor of the model's kind; gives up kept graphs where there is no room for it."""
        parameter = next(iter(self.named.values()))
        return self._with_room(lambda: torch.empty(shape, dtype=parameter.dtype, device=parameter.device))

    def reserve(self, part: str, vectors: int) -> None:
        """Leave room for a number of a part's vectors, before the first product is made."""
        self.reserved = max(self.reserved, vectors * self.size(part) * next(iter(self.named.values())).element_size())

    def random(self, part: str, generator: torch.Generator, *, signs: bool = False) -> Tensor:
        """A vector of standard normal numbers, or of random signs.

        They are drawn on the CPU, so that a figure does not depend on the device.
        """
        size, like = self.size(part), next(iter(self.named.values()))
        if signs:
            drawn = torch.randint(2, (size,), generator=generator).mul_(2).sub_(1)
        else:
            drawn = torch.randn(size, generator=generator)
        return drawn.to(like.device, like.dtype)

    def multiply(self, vector: Tensor, part: str = WHOLE) -> Tensor:
        """The product of a part's diagonal block of the Hessian with a vector, over all examples.

        Args:
            vector: flat, of the part's size.
            part: which diagonal block.
        """
        found = self._with_room(lambda: self._multiply(vector, part))
        self.products[part] += 1
        if self.progress is not None:
            self.progress(part, self.products[part])
        return found

    def gradient(self, part: str = WHOLE) -> Tensor:
        """The gradient of the mean loss, flat."""
        return self.loss_and_gradient(part)[1]

    def loss_and_gradient(self, part: str = WHOLE) -> tuple[float, Tensor]:
        """The mean loss and its gradient, flat, at the weights the model has now."""
        loss, gradient = self._with_room(lambda: self._gradient(part)).split([1, self.size(part)])
        return float(loss), gradient

    def _chunks(self) -> list[tuple[Tensor, Tensor]]:
        if self.batch_norm == "batch":  # a cut batch would have other statistics
            return self.batches
        chunks: list[tuple[Tensor, Tensor]] = []
        for images, targets in self.batches:
            pieces = _count_pieces(len(targets), self.chunk)
            chunks += zip(images.tensor_split(pieces), targets.tensor_split(pieces), strict=True)
        return chunks

    def _multiply(self, vector: Tensor, part: str) -> Tensor:
        if self.keep and self.room is None:
            self._plan()
        names = self.parts[part]
        total = torch.zeros_like(vector)
        sums, directions = (list(self.unflatten(v, part).values()) for v in (total, vector))
        parameters = [self.named[name] for name in names]
        for number, chunk in enumerate(self._chunks()):
            gradient = self._graph(number, chunk)
            pairs = [
                (g, v)
                for g, v in zip((gradient[self.index[name]] for name in names), directions, strict=True)
                if g is not None and g.requires_grad
            ]
            if not pairs:  # the loss is linear in this part
                continue
            found = torch.autograd.grad(
                [g for g, _ in pairs],
                parameters,
                [v for _, v in pairs],
                retain_graph=number in self.graphs,
                allow_unused=True,
            )
            del gradient
            present = [(s, f) for s, f in zip(sums, found, strict=True) if f is not None]
            torch._foreach_add_([s for s, _ in present], [f.detach() for _, f in present])
        return total

    def _gradient(self, part: str) -> Tensor:
        """The mean loss and, after it, its gradient."""
        total = self.like(1 + self.size(part)).zero_()
        sums = self.unflatten(total[1:], part)
        for images, targets in self._chunks():
            loss = self._mean_loss(images, targets)
            total[0] += loss.detach()
            found = torch.autograd.grad(loss, [self.named[name] for name in sums], allow_unused=True)
            for s, f in zip(sums.values(), found, strict=True):
                if f is not None:
                    s += f
        return total

    def _mean_loss(self, images: Tensor, targets: Tensor) -> Tensor:
        """A chunk's share of the mean over all examples: these add up exactly however the data is cut."""
        return self.loss(self.model(images), targets).sum() / self.examples

    def _graph(self, number: int, chunk: tuple[Tensor, Tensor]) -> Gradient:
        """The gradient of a chunk's share of the loss, with its graph; kept where there is room for it."""
        if number in self.graphs:
            return self.graphs[number]
        gradient = self._build(*chunk)
        if self.room is not None and len(self.graphs) < self.room:
            self.graphs[number] = gradient
        return gradient

    def _plan(self) -> None:
        """Find out how many graphs there is room for; cut the data finer where that makes room for more of it."""
        images, targets = self._chunks()[0]
        if self.compiled:  # tracing forbids the hooks that count
            self._build(images, targets)
        counted = SavedBytes(self.named.values())
        gradient = self._build(images, targets, counted)
        graph = max(1, counted.total)
        free = max(0.0, graph + free_bytes(images.device) - self.reserved)
        share = graph / len(targets)
        if self.may_cut and share * self.examples + _WORK * graph > free and graph > free / _PIECES:
            del gradient
            self.chunk = max(_FEWEST, int(free / _PIECES / share))
            self.room = max(0, int(free / (share * len(self._chunks()[0][1])) - _WORK))
            return
        self.room = max(0, int(free / graph - _WORK))
        if self.room:
            self.graphs[0] = gradient

    def _build(self, images: Tensor, targets: Tensor, counted: SavedBytes | None = None) -> Gradient:
        if self.compiled:
            if self._gradient_function is None:
                self._gradient_function = _compile_gradient(self.model, self.loss, self.examples)
            with _keeping_buffers(), counted or ExitStack():
                return self._gradient_function(self.named, images, targets)
        with counted or ExitStack():
            loss = self._mean_loss(images, targets)
            if not bool(torch.isfinite(loss)):
                raise SteppeError(
                    "the loss is not finite, so it has no curvature", fix="look at the weights and the images"
                )
            return torch.autograd.grad(loss, list(self.named.values()), create_graph=True, allow_unused=True)

    def _with_room(self, work: Callable[[], Tensor]) -> Tensor:
        while True:
            try:
                with _keeping_buffers() if self.compiled else ExitStack():
                    return work()
            except Exception as error:
                if not ran_out_of_memory(error):
                    raise
            self._shrink()

    def _shrink(self) -> None:
        """Make room: keep fewer graphs, in the end none; then halve the chunks. The answer stays the same."""
        if self.graphs:
            self.room = len(self.graphs) * 3 // 4
            for number in list(self.graphs)[self.room :]:
                del self.graphs[number]
        elif self.chunk > 1 and self.batch_norm == "running":
            self.chunk = math.ceil(self.chunk / 2)
            self.room = 0 if self.room is not None else None  # None: it ran out while planning
        else:
            fix = "measure a smaller model, or on a device with more memory"
            if self.batch_norm == "batch":
                fix = "set batch to less, or use BatchNorm's running statistics: a batch may not be cut here"
            raise SteppeError("memory ran out, even for the smallest chunk of data", fix=fix)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _compile_gradient(model: nn.Module, loss: Loss, examples: int) -> Callable[..., Any]:
    """The gradient as one compiled function, whose compiled backward is the product with the Hessian."""

    def mean_loss(parameters: dict[str, Tensor], images: Tensor, targets: Tensor) -> Tensor:
        return loss(torch.func.functional_call(model, parameters, (images,)), targets).sum() / examples

    def gradient(parameters: dict[str, Tensor], images: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.func.grad(mean_loss)(parameters, images, targets).values())

    return torch.compile(gradient, dynamic=False)


def _keeping_buffers() -> AbstractContextManager[None]:
    """Have compiled graphs keep what they saved, and save half of what they would.

    By default they reuse it, and can be gone through once only. What is not saved is cheap to compute again.
    """
    from torch._functorch import config

    return config.patch(donated_buffer=False, activation_memory_budget=0.5)


def _count_pieces(examples: int, chunk: int) -> int:
    """Into how many chunks to cut a batch: equal ones if not far from the fewest, since each size is compiled anew."""
    fewest = math.ceil(examples / chunk)
    return next((pieces for pieces in range(fewest, 2 * fewest) if examples % pieces == 0), fewest)
