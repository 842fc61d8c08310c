"""Tiny models for images of 8×8 pixels and up, that train on a laptop within minutes.

The transformers' and mixers' building blocks are timm's, the sizes are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from timm.models.mlp_mixer import MlpMixer
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from steppe.models.resnet import SmallResNet
from steppe.models.transformers import hybrid

Builder = Callable[..., nn.Module]


def vit(**options: Any) -> nn.Module:
    """A ViT for tiny images. A patch of a few pixels says little by itself, so places start as loud as contents.

    timm draws position embeddings with a standard deviation of 0.02: on 8×8 digits that costs this model most of its
    first thirty epochs (dev/experiments.md).
    """
    model = VisionTransformer(weight_init="jax", **options)
    assert model.pos_embed is not None
    nn.init.trunc_normal_(model.pos_embed, std=1.0)
    return model


TINY_MODELS: dict[str, tuple[Builder, str]] = {
    "resnet_tiny": (
        partial(SmallResNet, depths=(1, 1, 1), widths=(16, 32, 64)),
        "ResNet of 3 basic blocks, 16-32-64 channels, for 8×8 and up",
    ),
    "vit_tiny_p2": (
        partial(vit, patch_size=2, embed_dim=64, depth=3, num_heads=4, mlp_ratio=2.0),
        "ViT, patch 2, 3 layers, 4 heads, width 64, for 8×8 and up",
    ),
    "swin_tiny_p2": (
        partial(
            SwinTransformer,
            patch_size=2,
            embed_dim=48,
            depths=(2, 2),
            num_heads=(3, 6),
            window_size=2,
            mlp_ratio=2.0,
            weight_init="jax",
        ),
        "Swin, patch 2, 2+2 layers, width 48, windows of 2, for 8×8 and up",
    ),
    "mixer_tiny_p2": (
        partial(MlpMixer, patch_size=2, embed_dim=64, num_blocks=4, mlp_ratio=(0.5, 2.0)),
        "MLP-Mixer, patch 2, 4 blocks, width 64, for 8×8 and up",
    ),
    "hybrid_tiny": (
        partial(hybrid, layers=(1, 1, 1), channels=(128, 128, 256), embed_dim=64, depth=3, num_heads=4, mlp_ratio=2.0),
        "ResNet of 3 bottlenecks into a ViT of 3 layers, 4 heads, width 64, for 8×8 and up",
    ),
}
"""Name -> (builder taking img_size, in_chans, num_classes and the regularisation rates, one line about it)."""
