"""Convolutions whose second derivative runs on the kernels of the first.

torch differentiates a convolution's backward by convolutions with the batch as channels and the image as kernel, for
which cuDNN has nothing fast: a Hessian product of ResNet-18 costs 4.7 gradients on an H200. By hand it is two
convolutions, one gradient of an input and one of a weight, all of the usual shapes: 2.3 gradients. On a CPU torch's own
way is the faster one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

Shape = tuple[list[int], list[int], list[int], int]
"""Stride, padding and dilation for each dimension, and groups."""


class FastDoubleBackward(TorchFunctionMode):
    """While it is entered, convolutions of batches can be differentiated twice at little cost."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Tensor | Any:
        """Call a function; a convolution by way of `_Convolution`, where that knows its arguments."""
        kwargs = kwargs or {}
        if function in _DIMENSIONS:
            known = _SIGNATURE.bind(*args, **kwargs)
            known.apply_defaults()
            x, weight, bias, *numbers, groups = known.arguments.values()
            dimensions = _DIMENSIONS[function]
            if x.ndim == dimensions + 2 and not any(isinstance(number, str) for number in numbers):
                shape = [[n] * dimensions if isinstance(n, int) else list(n) for n in numbers]
                return _Convolution.apply(x, weight, bias, (*shape, groups))
        return function(*args, **kwargs)


def _signature(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> None:
    """The arguments of torch's convolutions, which are built in and cannot be asked."""


_SIGNATURE = inspect.signature(_signature)
_DIMENSIONS: dict[Callable[..., Any], int] = {F.conv1d: 1, F.conv2d: 2, F.conv3d: 3}


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, shape: Shape) -> Tensor:
    stride, padding, dilation, groups = shape
    found: Tensor = torch.ops.aten.convolution(
        x, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups
    )
    return found


def _gradients(gradient: Tensor, x: Tensor, weight: Tensor, shape: Shape, wanted: tuple[bool, bool]) -> Any:
    """Of the input and of the weight, as far as wanted."""
    stride, padding, dilation, groups = shape
    return torch.ops.aten.convolution_backward(
        gradient, x, weight, None, stride, padding, dilation, False, [0] * len(stride), groups, [*wanted, False]
    )[:2]


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, shape: Shape) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.shape = shape
        return _convolve(x, weight, bias, shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias, _ = ctx.needs_input_grad
        found = _Gradients.apply(gradient, x, weight, ctx.shape, (of_x, of_weight))
        return *found, gradient.sum([0, *range(2, gradient.ndim)]) if of_bias else None, None


class _Gradients(torch.autograd.Function):
    """The backward of a convolution, bilinear in the incoming gradient and in each of input and weight."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, x: Tensor, weight: Tensor, shape: Shape, wanted: tuple[bool, bool]) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(gradient, x, weight)
        ctx.shape = shape
        return tuple(_gradients(gradient, x, weight, shape, wanted))

    @staticmethod
    def backward(ctx: Any, *vectors: Any) -> Any:
        along_x, along_weight = vectors
        gradient, x, weight = ctx.saved_tensors
        of_gradient, of_x, of_weight = None, None, None
        if along_x is not None:
            of_gradient = _convolve(along_x, weight, None, ctx.shape)
            of_weight = _gradients(gradient, along_x, weight, ctx.shape, (False, True))[1]
        if along_weight is not None:
            more = _convolve(x, along_weight, None, ctx.shape)
            of_gradient = more if of_gradient is None else of_gradient + more
            if ctx.needs_input_grad[1]:
                of_x = _gradients(gradient, x, along_weight, ctx.shape, (True, False))[0]
        return of_gradient, of_x, of_weight, None, None
