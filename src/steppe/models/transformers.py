"""Vision transformers, CCT, Swin, MLP-Mixer and the ResNet hybrids at any image size.

The building blocks are timm's. The sizes, the fitting windows, the convolutional stems, the sequence pooling and the
attention without softmax are ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from timm.layers.conv_bn_act import ConvNormAct
from timm.layers.hybrid_embed import HybridEmbed
from timm.layers.std_conv import StdConv2dSame
from timm.models.mlp_mixer import MlpMixer
from timm.models.resnetv2 import ResNetV2
from timm.models.swin_transformer import SwinTransformer, get_relative_position_index
from timm.models.vision_transformer import Block, VisionTransformer
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
        self.q_norm: nn.Module = attention.q_norm
        self.k_norm: nn.Module = attention.k_norm
        self.attn_drop: nn.Dropout = attention.attn_drop
        self.proj: nn.Linear = attention.proj
        self.proj_drop: nn.Dropout = attention.proj_drop

    def forward(self, x: torch.Tensor, attn_mask: torch.Tensor | None = None, **_: Any) -> torch.Tensor:
        """Mix the tokens of a batch of shape (images, tokens, width)."""
        assert attn_mask is None, "a mask of -inf means nothing without softmax"
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.q_norm(q) * self.scale, self.k_norm(k)
        if tokens > v.shape[-1] and not self.attn_drop.p:
            mixed = q @ (k.transpose(-2, -1) @ v)
        else:
            mixed = self.attn_drop(q @ k.transpose(-2, -1)) @ v
        return self.proj_drop(self.proj(mixed.transpose(1, 2).reshape(batch, tokens, width)))


def vit(*, free: bool = False, stem: bool = False, mean: bool = False, **options: Any) -> nn.Module:
    """Build a ViT with learned positions (Dosovitskiy et al. 2021).

    Args:
        free: leave out the softmax of the attention.
        stem: make the tokens by a stack of convolutions instead of one linear layer on each patch.
        mean: answer from the mean of the tokens instead of a class token.
        options: timm's options of a VisionTransformer; `qk_norm` normalises the queries and keys of every head.
    """
    patch, width = options["patch_size"], options["embed_dim"]
    _check_tiling(options["img_size"], patch)
    if stem:
        backbone = _convolutional_stem(patch, options.get("in_chans", 3), width)
        options |= {"patch_size": 1, "embed_layer": partial(HybridEmbed, backbone=backbone)}
    if mean:
        options |= {"class_token": False, "global_pool": "avg"}
    model: Any = VisionTransformer(weight_init="jax", **options)
    if free:
        for block in model.blocks:
            block.attn = FreeAttention(block.attn)
    return model


def _convolutional_stem(patch: int, channels: int, width: int) -> nn.Sequential:
    """Build the stem of Xiao et al. 2021, "Early Convolutions Help Transformers See Better".

    3×3 convolutions of stride 2 with BatchNorm and ReLU, twice as wide from each to the next, up to the width of the
    transformer; HybridEmbed adds the last 1×1 convolution.
    """
    count = patch.bit_length() - 1
    if patch < 2 or patch != 2**count:
        raise ValueError(f"a convolutional stem halves the image, so its patch is 2, 4, 8 or 16, not {patch}")
    widths = [channels, *(width // 2 ** (count - 1 - i) for i in range(count))]
    return nn.Sequential(*(ConvNormAct(*pair, kernel_size=3, stride=2) for pair in pairwise(widths)))


class CompactBlock(Block):
    """A block of a Compact Transformer: the MLP adds to the normalised tokens, as in the authors' code."""

    def forward(self, x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Transform the tokens of a batch of shape (images, tokens, width)."""
        x = self.norm2(x + self.drop_path1(self.attn(self.norm1(x))))
        return x + self.drop_path2(self.mlp(x))


class SequencePool(nn.Linear):
    """Average tokens with weights from a softmax over a learned score of each token."""

    def __init__(self, width: int) -> None:
        """Make the layer that scores tokens of this width."""
        super().__init__(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pool tokens of shape (images, tokens, width) to (images, width)."""
        return (super().forward(x).softmax(dim=1) * x).sum(dim=1)


def cct(*, img_size: int, in_chans: int, kernel: int, convolutions: int, embed_dim: int, **options: Any) -> nn.Module:
    """Build a Compact Convolutional Transformer (Hassani et al. 2021, arXiv:2104.05704).

    Convolutions with ReLU and max-pooling make the tokens, and a learned weighting pools them. Initial weights are
    those of the authors' code: positions of deviation 0.2, dense layers of 0.02, He's convolutions.

    Args:
        img_size: side of the images in pixels.
        in_chans: channels of the images.
        kernel: side of the convolutions' kernels.
        convolutions: number of convolutions; each is followed by a max-pooling of stride 2.
        embed_dim: width of the tokens.
        options: timm's options of a VisionTransformer.
    """
    widths = [in_chans, *[64] * (convolutions - 1), embed_dim]
    stride, padding = max(1, kernel // 2 - 1), kernel // 2
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        convolution = nn.Conv2d(before, after, kernel, stride, padding, bias=False)
        layers += [convolution, nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]
    tokenizer: Any = partial(HybridEmbed, backbone=nn.Sequential(*layers), proj=False)
    model = VisionTransformer(
        img_size=img_size,
        patch_size=1,
        in_chans=in_chans,
        embed_dim=embed_dim,
        embed_layer=tokenizer,
        block_fn=CompactBlock,
        qkv_bias=False,
        class_token=False,
        global_pool="",
        **options,
    )
    model.attn_pool = SequencePool(embed_dim)  # type: ignore[assignment]
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
        if isinstance(module, SequencePool):
            nn.init.trunc_normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)
    assert model.pos_embed is not None
    nn.init.trunc_normal_(model.pos_embed, std=0.2)
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
