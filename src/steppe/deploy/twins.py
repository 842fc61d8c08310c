"""How timm can build a network of ours, where it can: an architecture it registers, and arguments that change it.

What is said here is not trusted: `timm_format` loads every export by timm and compares the answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import timm
from timm.models.mlp_mixer import MlpMixer
from timm.models.swin_transformer import SwinTransformer
from torch import nn

from steppe.models import small, transformers
from steppe.models.names import short_name
from steppe.models.resnet import SMALL_IMAGE, resnet, resnet_v1

_MIXERS = {
    (f"{letter}{patch}"): {"embed_dim": width, "num_blocks": blocks, "patch_size": patch}
    for letter, width, blocks in (("s", 512, 8), ("b", 768, 12))
    for patch in (16, 32)
}


@dataclass(frozen=True)
class Twin:
    """What to give timm."""

    architecture: str
    arguments: dict[str, Any]


def find_twin(name: str, model: nn.Module, image_size: int) -> Twin | str:
    """How timm can build a model of this name, or why it cannot, in words.

    Args:
        name: as in `ModelConfig`.
        model: the network itself, built for images of this size.
        image_size: side of the images in pixels.
    """
    known = short_name(name)
    if known is None:
        return Twin(name.removeprefix("timm:").partition(".")[0], {"img_size": image_size})
    function, options = known.build.func, {**known.build.keywords, "img_size": image_size}  # type: ignore[attr-defined]
    if function is resnet:
        if image_size <= SMALL_IMAGE:
            return f"up to {SMALL_IMAGE} pixels its stem is one 3×3 convolution, which timm's ResNet cannot be told"
        return Twin(options["variant"], {})
    if function is resnet_v1:
        return "timm's ResNet has a block's stride in its second convolution and norms' eps 1e-5, and cannot be told"
    if function in (transformers.vit, small.vit):
        if options.pop("free", False):
            return "timm has no attention without softmax"
        if options.pop("stem", False):
            return "timm has no ViT with this convolutional stem"
        if options.pop("mean", False):
            options |= {"class_token": False, "global_pool": "avg"}
        return Twin(known.twin or "vit_base_patch16_224", options)
    if function in (transformers.swin, SwinTransformer):
        options.pop("weight_init", None)
        if function is transformers.swin and _has_odd_grid(image_size // options["patch_size"], len(options["depths"])):
            return "timm counts the places of a Swin otherwise where a grid of them has an odd side"
        windows = [stage.blocks[0].attn.window_size[0] for stage in model.layers]  # type: ignore[union-attr]
        return Twin(known.twin or "swin_tiny_patch4_window7_224", {**options, "window_size": windows})
    if function in (transformers.mixer, MlpMixer):
        return _find_mixer(options)
    if function is transformers.hybrid:
        if image_size <= SMALL_IMAGE:
            return f"up to {SMALL_IMAGE} pixels its stem is one 3×3 convolution, which timm's hybrids cannot be told"
        return Twin("vit_base_r50_s16_224", options)
    return "it is a network of steppe's own"


def _has_odd_grid(grid: int, stages: int) -> bool:
    """Whether a stage before the last has an odd side: its half is rounded up here, and down in timm's windows."""
    for _ in range(stages - 1):
        if grid % 2:
            return True
        grid //= 2
    return False


def _find_mixer(options: dict[str, Any]) -> Twin | str:
    """Look among timm's own sizes: its mixers cannot be told another size of patches."""
    size = options.pop("img_size")
    for variant, numbers in _MIXERS.items():
        name = f"mixer_{variant}_224"
        if options == numbers and timm.is_model(name):
            return Twin(name, {"img_size": size})
    return "timm's mixers have patches of 16 or 32 pixels, and cannot be told another size"
