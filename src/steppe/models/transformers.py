"""Vision transformers, Swin, MLP-Mixer and the ResNet hybrids at any image size.

The building blocks are timm's; ours are the sizes, the windows that fit, and the attention without softmax.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from timm.layers.hybrid_embed import HybridEmbed
from timm.layers.std_conv import StdConv2dSame
from timm.models.mlp_mixer import MlpMixer
from timm.models.resnetv2 import ResNetV2
from timm.models.swin_transformer import SwinTransformer, get_relative_position_index
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from steppe.models.resnet import SMALL_IMAGE


class FreeAttention(nn.Module):
    """Attention whose logits weigh the values directly, without softmax: (QKᵀ/√d)·V.

    Chen et al. 2022, "When Vision Transformers Outperform ResNets without Pre-training or Strong Data Augmentations",
    section 3 (ViT-B/16-Free). Without softmax the product is associative, so the cheaper order is taken: Q·(KᵀV)
    where there are more tokens than channels in a head.
    """

    def __init__(self, attention: Any) -> None:
        """Take over the layers of timm's softmax attention, under the same names."""
        super().__init__()
        self.num_heads, self.scale = int(attention.num_heads), float(attention.scale)
        self.qkv: nn.Linear = attention.qkv
        self.attn_drop: nn.Dropout = attention.attn_drop
        self.proj: nn.Linear = attention.proj
        self.proj_drop: nn.Dropout = attention.proj_drop

    def forward(self, x: torch.Tensor, attn_mask: torch.Tensor | None = None, **_: Any) -> torch.Tensor:
        """Mix the tokens of a batch of shape (images, tokens, width)."""
        assert attn_mask is None, "a mask of -inf means nothing without softmax"
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        q = q * self.scale
        if tokens > v.shape[-1] and not self.attn_drop.p:
            mixed = q @ (k.transpose(-2, -1) @ v)
        else:
            mixed = self.attn_drop(q @ k.transpose(-2, -1)) @ v
        return self.proj_drop(self.proj(mixed.transpose(1, 2).reshape(batch, tokens, width)))


def vit(*, free: bool = False, **options: Any) -> nn.Module:
    """A ViT with a class token and learned positions (Dosovitskiy et al. 2021); `free` leaves out the softmax."""
    _check_tiling(options["img_size"], options["patch_size"])
    model: Any = VisionTransformer(weight_init="jax", **options)
    if free:
        for block in model.blocks:
            block.attn = FreeAttention(block.attn)
    return model


def mixer(**options: Any) -> nn.Module:
    """An MLP-Mixer (Tolstikhin et al. 2021). Its token mixing is tied to one grid of patches."""
    _check_tiling(options["img_size"], options["patch_size"])
    return MlpMixer(**options)


def hybrid(
    *,
    img_size: int,
    in_chans: int,
    layers: Sequence[int] = (3, 4, 9),
    channels: Sequence[int] = (256, 512, 1024),
    **options: Any,
) -> nn.Module:
    """A ViT over the features of a ResNet, by default the ResNet-50 of Dosovitskiy et al. 2021 (section 3.1).

    The features have 1/16 of the image's side. Of a small image that would leave four places, so up to 64 pixels
    the stem is one 3×3 convolution and the features have 1/4 of the side.
    """
    conv = partial(StdConv2dSame, eps=1e-8)
    backbone: Any = ResNetV2(
        layers=list(layers),
        channels=tuple(channels),
        num_classes=0,
        global_pool="",
        in_chans=in_chans,
        preact=False,
        stem_type="same",
        conv_layer=conv,
    )
    if img_size <= SMALL_IMAGE:
        backbone.stem.conv = conv(in_chans, 64, kernel_size=3, stride=1)
        nn.init.kaiming_normal_(backbone.stem.conv.weight, mode="fan_out", nonlinearity="relu")
        backbone.stem.pool = nn.Identity()
    return VisionTransformer(
        img_size=img_size,
        patch_size=1,
        in_chans=in_chans,
        embed_layer=partial(HybridEmbed, backbone=backbone),
        weight_init="jax",
        **options,
    )


def swin(*, img_size: int, patch_size: int, depths: tuple[int, ...], **options: Any) -> nn.Module:
    """A Swin Transformer (Liu et al. 2021) whose windows fit every stage's grid.

    timm takes an odd grid's half rounded down, while its patch merging pads and so rounds up; at 28 pixels the last
    stage would get windows smaller than its grid. Here the grids are counted as they are.
    """
    _check_tiling(img_size, patch_size)
    grids = [img_size // patch_size]
    for _ in depths[1:]:
        grids.append(math.ceil(grids[-1] / 2))
    windows: Any = [fitting_window(grid) for grid in grids]
    model: Any = SwinTransformer(
        img_size=img_size, patch_size=patch_size, depths=depths, window_size=windows, **options
    )
    for stage, grid, window in zip(model.layers, grids, windows, strict=True):
        if stage.output_resolution == (grid, grid):
            continue
        stage.input_resolution, stage.output_resolution = (2 * grid, 2 * grid), (grid, grid)
        for block in stage.blocks:
            _set_window(block.attn, window)
            block.set_input_size((grid, grid), (window, window))
    return model


def _set_window(attention: Any, window: int) -> None:
    """Give a window attention another window, with a fresh table of position biases."""
    attention.window_size, attention.window_area = (window, window), window**2
    table = torch.empty((2 * window - 1) ** 2, attention.num_heads)
    attention.relative_position_bias_table = nn.Parameter(nn.init.trunc_normal_(table, std=0.02))
    attention.register_buffer("relative_position_index", get_relative_position_index(window, window), persistent=False)


def fitting_window(grid: int) -> int:
    """Choose the window for a grid: the grid itself up to 7, else the one of 4 to 7 that needs the least padding."""
    return grid if grid <= 7 else min(range(7, 3, -1), key=lambda window: math.ceil(grid / window) * window)


def _check_tiling(image_size: int, patch_size: int) -> None:
    if image_size % patch_size:
        raise ValueError(f"patches of {patch_size} do not tile it")
