"""Where a vision transformer looks: the attention of its class token, and rollout, as maps over the image.

The map of a layer is the class token's row of the attention matrix, averaged over heads (Caron et al. 2021, as in Chen
et al. 2022, appendix E.2). Rollout (Abnar & Zuidema 2020, arXiv:2005.00928) follows attention through all layers: the
product of (A + I)/2, heads averaged. A model that averages its tokens instead of reading a class token has no such
row; there, the average over the rows of the patches stands in.

Fused attention never forms the matrix, so it is switched off for the pass and on again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steppe.errors import MeasureError
from steppe.measuring import as_found


@torch.no_grad()
def attention_weights(model: nn.Module, images: Tensor) -> list[Tensor]:
    """The attention matrices (images, heads, tokens, tokens) of every layer, first layer first; rows sum to 1.

    Args:
        model: a vision transformer of ours or timm's; left as it was found.
        images: normalised, where the model is.

    Raises:
        MeasureError: the model has no attention over the whole image.
    """
    layers = _find_layers(model)
    found: list[Tensor] = []
    with as_found(model), _unfused(layers):
        hooks = [
            layer.attn_drop.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0])) for layer in layers
        ]
        try:
            model(images)
        finally:
            for hook in hooks:
                hook.remove()
    if len(found) != len(layers):
        raise MeasureError(f"the attention of a {type(model).__name__} cannot be read out: its layers hide the weights")
    return found


def attention_maps(model: Any, images: Tensor, *, layer: int = -1, rollout: bool = False) -> Tensor:
    """Where the model looks in each image: (images, rows, columns) of patches.

    Args:
        model: a vision transformer of ours or timm's; left as it was found.
        images: normalised, where the model is.
        layer: which layer, if not `rollout`; the last by default.
        rollout: follow attention through all layers.

    Raises:
        MeasureError: the model has no attention over the whole image, or no such layer.
    """
    weights = attention_weights(model, images)
    if not -len(weights) <= layer < len(weights):
        raise MeasureError(f"there is no attention layer {layer}: the model has {len(weights)}")
    matrix = roll_out(weights) if rollout else weights[layer].mean(1)
    rows, columns = _grid(model)
    prefix = matrix.shape[1] - rows * columns
    if prefix < 0:
        raise MeasureError(f"{matrix.shape[1]} tokens are not a grid of {rows}×{columns} patches")
    seen = matrix[:, 0] if reads_class_token(model) else matrix[:, prefix:].mean(1)
    return seen[:, prefix:].unflatten(1, (rows, columns))


def roll_out(weights: list[Tensor]) -> Tensor:
    """Multiply (A + I)/2 over the layers, heads averaged: (images, tokens, tokens), rows sum to 1."""
    identity = torch.eye(weights[0].shape[-1], dtype=weights[0].dtype, device=weights[0].device)
    rolled = identity.expand(len(weights[0]), -1, -1)
    for layer in weights:
        rolled = (layer.mean(1) + identity) / 2 @ rolled
    return rolled


def evenness(maps: Tensor) -> Tensor:
    """How evenly each map (images, rows, columns) looks at the image: 1 for all patches alike, 0 for a single one.

    The entropy of the map's shares, in units of its largest value, the logarithm of the number of patches.
    """
    shares = maps.flatten(1) / maps.flatten(1).sum(1, keepdim=True)
    return torch.special.entr(shares).sum(1) / math.log(max(2, shares.shape[1]))


def enlarge(maps: Tensor, size: int) -> Tensor:
    """Bring maps to the size of the image, and each to [0, 1], for laying over it."""
    large = F.interpolate(maps[:, None].float(), size=(size, size), mode="bilinear", align_corners=False)[:, 0]
    low, high = large.amin((1, 2), keepdim=True), large.amax((1, 2), keepdim=True)
    return (large - low) / (high - low).clamp_min(1e-12)


def reads_class_token(model: Any) -> bool:
    """Whether the answer is read from a class token, and not from an average or a pooling of the patches."""
    has_token = getattr(model, "cls_token", None) is not None or getattr(model, "num_prefix_tokens", 0) > 0
    return has_token and getattr(model, "global_pool", "token") == "token"


def _find_layers(model: nn.Module) -> list[Any]:
    layers = [
        m for m in model.modules() if hasattr(m, "num_heads") and isinstance(getattr(m, "attn_drop", None), nn.Module)
    ]
    if not layers:
        raise MeasureError(
            f"a {type(model).__name__} has no attention to show", fix="choose a vision transformer (ViT)"
        )
    if any(hasattr(layer, "window_size") or hasattr(layer, "relative_position_bias_table") for layer in layers):
        what = f"the attention of a {type(model).__name__} stays within windows: no token looks at the whole image"
        raise MeasureError(what, fix="choose a vision transformer (ViT)")
    if any(not hasattr(layer, "fused_attn") for layer in layers):
        raise MeasureError("attention without softmax has no weights to show", fix="choose a ViT with softmax")
    return layers


@contextmanager
def _unfused(layers: list[Any]) -> Iterator[None]:
    before = [layer.fused_attn for layer in layers]
    try:
        for layer in layers:
            layer.fused_attn = False
        yield
    finally:
        for layer, fused in zip(layers, before, strict=True):
            layer.fused_attn = fused


def _grid(model: Any) -> tuple[int, int]:
    embed = getattr(model, "patch_embed", None)
    if getattr(embed, "grid_size", None) is None:
        raise MeasureError(f"the patches of a {type(model).__name__} do not lie on a known grid")
    rows, columns = embed.grid_size  # type: ignore[union-attr]
    return int(rows), int(columns)
