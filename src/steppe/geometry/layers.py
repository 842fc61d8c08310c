"""Layers whose second derivative is written by hand, on the kernels of the first and in smaller graphs.

Going back through the graph of a gradient, torch takes a dozen passes over memory for a GELU, a LayerNorm or attention,
and convolves with the batch as channels and the image as kernel, for which cuDNN has nothing fast. By hand each is a
few products of the usual shapes and one elementwise pass. What a pass over a layer's input gives
again (the value of a GELU or a LayerNorm, the gradient of a GELU) is not kept. What this brings, and what of it is
measured: dev/experiments.md. On a CPU torch's own way is the faster one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from steppe.geometry.by_hand import ByHand, Known, Layer, Tensors


def _add(*terms: Tensor | None) -> Tensor | None:
    present = [term for term in terms if term is not None]
    return sum(present[1:], start=present[0]) if present else None


class Linear(Layer):
    """x Wᵀ + b."""

    def value(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer's value."""
        return F.linear(x, weight, bias)

    def gradient(self, wanted: Sequence[bool], g: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensors:
        """Of x, the weight and the bias."""
        flat = g.reshape(-1, g.shape[-1])
        return (
            g @ weight if wanted[0] else None,
            flat.t() @ x.reshape(-1, x.shape[-1]) if wanted[1] else None,
            flat.sum(0) if wanted[2] else None,
        )

    def second(self, vectors: Tensors, g: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensors:
        """Of g, x, the weight and the bias."""
        of_x, of_weight, of_bias = vectors
        along: Tensor | None = None
        if of_weight is not None:
            along = F.linear(x, of_weight, of_bias)
        elif of_bias is not None:
            along = of_bias.expand_as(g)
        if of_x is not None:
            along = F.linear(of_x, weight) if along is None else _add_product(along, of_x, weight)
        return (
            along,
            g @ of_weight if of_weight is not None else None,
            _flat(g).t() @ _flat(of_x) if of_x is not None else None,
            None,
        )


def _flat(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def _add_product(start: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    return torch.addmm(_flat(start), _flat(x), weight.t()).view(start.shape)


class Gelu(Layer):
    """x Φ(x), Φ being the normal distribution function."""

    again = (True, True)

    def value(self, x: Tensor) -> Tensor:
        """The layer's value."""
        return F.gelu(x)

    def gradient(self, wanted: Sequence[bool], g: Tensor, x: Tensor) -> Tensors:
        """Of x."""
        return (torch.ops.aten.gelu_backward(g, x),)

    def second(self, vectors: Tensors, g: Tensor, x: Tensor) -> Tensors:
        """Of g and x."""
        (v,) = vectors
        if v is None:
            return None, None
        density = torch.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
        slope = 0.5 * (1 + torch.erf(x * math.sqrt(0.5))) + x * density
        return v * slope, v * g * density * (2 - x * x)


class LayerNorm(Layer):
    """(x − mean) / deviation, times a weight, plus a bias."""

    again = (True, False)

    def __init__(self, shape: Sequence[int], eps: float) -> None:
        self.shape, self.eps = list(shape), eps

    def value(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """The layer's value."""
        return torch.layer_norm(x, self.shape, weight, bias, self.eps)

    def gradient(
        self, wanted: Sequence[bool], g: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None
    ) -> Tensors:
        """Of x, the weight and the bias."""
        _, mean, rstd = torch.native_layer_norm(x, self.shape, None, None, self.eps)
        mask = [want and tensor is not None for want, tensor in zip(wanted, (x, weight, bias), strict=True)]
        found = torch.ops.aten.native_layer_norm_backward(g, x, self.shape, mean, rstd, weight, bias, mask)
        return tuple(tensor if want else None for tensor, want in zip(found, mask, strict=True))

    def second(self, vectors: Tensors, g: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensors:
        """Of g, x, the weight and the bias."""
        of_x, of_weight, of_bias = vectors
        last = tuple(range(-len(self.shape), 0))
        if of_x is None:
            of_x = torch.zeros_like(x)
        along, by_x, spread = _norm_second(g, x, weight, of_x, of_weight, of_bias, last, self.eps)
        by_weight = spread.sum(tuple(range(x.ndim - len(self.shape)))) if weight is not None else None
        return along, by_x, by_weight, None


def _norm_second(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    v: Tensor,
    of_weight: Tensor | None,
    of_bias: Tensor | None,
    last: tuple[int, ...],
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by g and by x, and what sums up to that by the weight."""
    var, mean = torch.var_mean(x, last, correction=0, keepdim=True)
    rstd = torch.rsqrt(var + eps)
    unit = (x - mean) * rstd
    shared = (unit * v).mean(last, keepdim=True)
    moved = v - v.mean(last, keepdim=True) - unit * shared
    towards = g if weight is None else g * weight
    back = -rstd * (towards * shared + (towards * unit).mean(last, keepdim=True) * v)
    along = rstd * moved if weight is None else rstd * moved * weight
    if of_weight is not None:
        back = back + g * of_weight
        along = along + unit * of_weight
    if of_bias is not None:
        along = along + of_bias
    centred = back - back.mean(last, keepdim=True) - unit * (back * unit).mean(last, keepdim=True)
    by_x = rstd * centred - rstd * rstd * unit * (towards * moved).mean(last, keepdim=True)
    return along, by_x, g * moved * rstd


class Attention(Layer):
    """softmax(scale q kᵀ + bias) v."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def value(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """The layer's value."""
        return torch.softmax(self._logits(q, k, bias), -1) @ v

    def gradient(
        self, wanted: Sequence[bool], g: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None
    ) -> Tensors:
        """Of q, k, v and the bias."""
        q, k, v, g = (tensor.contiguous() for tensor in (q, k, v, g))
        p = torch.softmax(self._logits(q, k, bias), -1)
        by_logits = torch._softmax_backward_data(g @ v.mT, p, -1, p.dtype)
        return (
            by_logits @ k * self.scale if wanted[0] else None,
            by_logits.mT @ q * self.scale if wanted[1] else None,
            p.mT @ g if wanted[2] else None,
            by_logits.sum_to_size(bias.shape) if wanted[3] and bias is not None else None,
        )

    def second(self, vectors: Tensors, g: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensors:
        """Of g, q, k, v and the bias."""
        *along, of_bias = vectors
        of_q, of_k, of_v = (
            torch.zeros_like(like) if vector is None else vector.contiguous()
            for vector, like in zip(along, (q, k, v), strict=True)
        )
        q, k, v, g = (tensor.contiguous() for tensor in (q, k, v, g))
        moved = (of_q @ k.mT + q @ of_k.mT) * self.scale
        if of_bias is not None:
            moved = moved + of_bias
        p, p_moved, by_logits, back = _softmax_second(self._logits(q, k, bias), g @ v.mT, moved, g @ of_v.mT)
        return (
            p_moved @ v + p @ of_v,
            (back @ k + by_logits @ of_k) * self.scale,
            (back.mT @ q + by_logits.mT @ of_q) * self.scale,
            p_moved.mT @ g,
            back.sum_to_size(bias.shape) if bias is not None else None,
        )

    def _logits(self, q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
        logits = (q * self.scale) @ k.mT
        return logits if bias is None else logits + bias


def _softmax_second(logits: Tensor, g: Tensor, moved: Tensor, more: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The softmax, its change along `moved`, its gradient, and the gradient of their product by the logits."""
    p = torch.softmax(logits, -1)
    mean_g, mean_moved = ((p * tensor).sum(-1, keepdim=True) for tensor in (g, moved))
    by_p = g * (moved - mean_moved) - mean_g * moved + more
    return p, p * (moved - mean_moved), p * (g - mean_g), p * (by_p - (p * by_p).sum(-1, keepdim=True))


class Convolution(Layer):
    """In one, two or three dimensions."""

    def __init__(self, stride: list[int], padding: list[int], dilation: list[int], groups: int) -> None:
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups

    def value(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer's value."""
        nothing = [0] * len(self.stride)
        found: Tensor = torch.ops.aten.convolution(
            x, weight, bias, self.stride, self.padding, self.dilation, False, nothing, self.groups
        )
        return found

    def gradient(self, wanted: Sequence[bool], g: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensors:
        """Of x, the weight and the bias."""
        return *self._back(g, x, weight, wanted[:2]), g.sum([0, *range(2, g.ndim)]) if wanted[2] else None

    def second(self, vectors: Tensors, g: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensors:
        """Of g, x, the weight and the bias."""
        of_x, of_weight, of_bias = vectors
        along_x = along_weight = by_x = by_weight = None
        if of_x is not None:
            along_x = self.value(of_x, weight, None)
            by_weight = self._back(g, of_x, weight, (False, True))[1]
        if of_weight is not None:
            along_weight = self.value(x, of_weight, of_bias)
            by_x = self._back(g, x, of_weight, (True, False))[0]
        elif of_bias is not None:
            along_weight = of_bias.view(-1, *[1] * (g.ndim - 2)).expand_as(g)
        return _add(along_x, along_weight), by_x, by_weight, None

    def _back(self, g: Tensor, x: Tensor, weight: Tensor, wanted: Sequence[bool]) -> Any:
        """The gradients of the input and of the weight, as far as wanted."""
        nothing = [0] * len(self.stride)
        return torch.ops.aten.convolution_backward(
            g, x, weight, None, self.stride, self.padding, self.dilation, False, nothing, self.groups, [*wanted, False]
        )[:2]


def _know_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Known:
    return (Linear(), (input, weight, bias)) if input.ndim > 1 and weight.ndim == 2 else None


def _know_gelu(input: Tensor, *, approximate: str = "none") -> Known:
    return (Gelu(), (input,)) if approximate == "none" else None


def _know_layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Known:
    return LayerNorm(normalized_shape, eps), (input, weight, bias)


def _know_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Known:
    if dropout_p or is_causal or enable_gqa:
        return None
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, -math.inf)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return Attention(scale), (query, key, value, attn_mask)


def _know_convolution(
    dimensions: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Known:
    numbers = (stride, padding, dilation)
    if input.ndim != dimensions + 2 or any(isinstance(number, str) for number in numbers):
        return None
    strides, paddings, dilations = ([n] * dimensions if isinstance(n, int) else list(n) for n in numbers)
    return Convolution(strides, paddings, dilations, groups), (input, weight, bias)


_KNOWN: dict[Callable[..., Any], Callable[..., Known]] = {
    F.linear: _know_linear,
    F.gelu: _know_gelu,
    F.layer_norm: _know_layer_norm,
    F.scaled_dot_product_attention: _know_attention,
    F.conv1d: partial(_know_convolution, 1),
    F.conv2d: partial(_know_convolution, 2),
    F.conv3d: partial(_know_convolution, 3),
}


class HandWritten(ByHand):
    """While it is entered, the layers above are differentiated by hand; counts what their graphs hold."""

    known = _KNOWN
