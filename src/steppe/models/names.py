"""Short names: a small grammar in which a name is the whole specification.

`vit_s_p4` is a ViT-S over patches of 4 pixels, `wrn_28_10` a wide ResNet of depth 28 and width 10, `vit_6l_8h_384` a
ViT of 6 layers, 8 heads and width 384, `cct_7_3x1` a Compact Transformer of 7 layers over one 3×3 convolution,
`mixer_9l_384` a Mixer of 9 layers and width 384, `mlp_64_64` a perceptron of two hidden layers.
Any name the grammar can read is built; `SMALL_MODELS` lists those worth showing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from steppe.config.names import MODELS, SHORT_NAMES
from steppe.models.mlp import Perceptron
from steppe.models.resnet import resnet, resnet_v1
from steppe.models.small import TINY_MODELS
from steppe.models.speed import SpeedNet
from steppe.models.transformers import cct, hybrid, mixer, swin, vit
from steppe.models.wide import WideResNet

Builder = Callable[..., nn.Module]


@dataclass(frozen=True)
class ShortName:
    """What a short name stands for."""

    build: Builder
    """Takes img_size, in_chans, num_classes and the regularisation rates."""
    about: str
    """One line about it."""
    twin: str | None = None
    """The timm name of the same network at 224 pixels, if there are weights for it."""


def short_name(name: str) -> ShortName | None:
    """Read a short name; None if it is not one."""
    if name in TINY_MODELS:
        return ShortName(*TINY_MODELS[name])
    for family, pattern in SHORT_NAMES.items():
        if found := re.fullmatch(pattern, name):
            return _READERS[family](**found.groupdict())
    return None


_SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "ti": ("tiny", {"embed_dim": 192, "depth": 12, "num_heads": 3}),
    "s": ("small", {"embed_dim": 384, "depth": 12, "num_heads": 6}),
    "b": ("base", {"embed_dim": 768, "depth": 12, "num_heads": 12}),
}
_MIXERS = {"s": {"embed_dim": 512, "num_blocks": 8}, "b": {"embed_dim": 768, "num_blocks": 12}}
_SWINS: dict[str, tuple[str, tuple[int, ...]]] = {"t": ("tiny", (2, 2, 6, 2)), "s": ("small", (2, 2, 18, 2))}
_VIT_TWINS = {"ti": ("16",), "s": ("8", "16", "32"), "b": ("8", "16", "32")}


def _read_resnet(depth: str, width: str | None) -> ShortName:
    about = f"ResNet-{depth}{f'x{width}, {width} times as wide' if width else ''}"
    about += "; up to 64 px with a 3×3 stem and no max-pooling"
    twin = None if width else f"resnet{depth}"
    return ShortName(partial(resnet, variant=f"resnet{depth}", width=int(width or 1)), about, twin)


def _read_resnet_v1(depth: str) -> ShortName:
    about = f"ResNet-{depth} as Keras has it: a block's stride in its first convolution, norms' eps 1e-3, 7×7 stem"
    return ShortName(partial(resnet_v1, variant=f"resnet{depth}"), about)


def _read_wrn(depth: str, width: str) -> ShortName:
    about = f"wide ResNet, pre-activation, depth {depth}, width {width}"
    return ShortName(partial(WideResNet, depth=int(depth), width=int(width)), about)


def _read_vit(size: str, patch: str, **parts: str | None) -> ShortName:
    long, numbers = _SIZES[size]
    about = f"ViT-{size.capitalize()}, patch {patch}" + _about_parts(parts)
    same = f"vit_{long}_patch{patch}_224" if patch in _VIT_TWINS[size] and not any(parts.values()) else None
    return ShortName(partial(vit, patch_size=int(patch), **_given(parts), **numbers), about, same)


def _read_sized_vit(
    layers: str, heads: str, width: str, mlp: str | None, patch: str | None, **parts: str | None
) -> ShortName:
    patch = patch or "4"
    about = f"ViT of {layers} layers, {heads} heads, width {width}, patch {patch}"
    about += f", MLPs of {mlp}" if mlp else ""
    numbers: dict[str, Any] = {"depth": int(layers), "num_heads": int(heads), "embed_dim": int(width)}
    numbers |= {"patch_size": int(patch), **({"mlp_ratio": int(mlp) / int(width)} if mlp else {})}
    return ShortName(partial(vit, **_given(parts), **numbers), about + _about_parts(parts))


_VIT_PARTS = {
    "stem": "a convolutional stem",
    "mean": "mean instead of class token",
    "qk_norm": "normalised queries and keys",
    "free": "without softmax",
}


def _about_parts(parts: dict[str, str | None]) -> str:
    return "".join(f", {about}" for part, about in _VIT_PARTS.items() if parts[part])


def _given(parts: dict[str, str | None]) -> dict[str, bool]:
    return {part: True for part, given in parts.items() if given}


_CCTS = {"2": (128, 2, 1), "4": (128, 2, 1), "6": (256, 4, 2), "7": (256, 4, 2), "14": (384, 6, 3)}
"""Layers -> width, heads and ratio of the MLP, as published."""


def _read_cct(layers: str, kernel: str, convolutions: str) -> ShortName:
    width, heads, ratio = _CCTS[layers]
    about = f"Compact Transformer of {layers} layers, {heads} heads, width {width}, "
    about += f"over {convolutions} convolution{'s' if convolutions != '1' else ''} of {kernel}×{kernel}"
    numbers: dict[str, Any] = {"depth": int(layers), "num_heads": heads, "embed_dim": width, "mlp_ratio": ratio}
    return ShortName(partial(cct, kernel=int(kernel), convolutions=int(convolutions), **numbers), about)


def _read_swin(size: str, patch: str) -> ShortName:
    long, depths = _SWINS[size]
    about = f"Swin-{size.upper()}, patch {patch}, windows of 4 to 7 that fit the image"
    same = f"swin_{long}_patch4_window7_224" if patch == "4" else None
    options: dict[str, Any] = {"patch_size": int(patch), "embed_dim": 96, "depths": depths, "num_heads": (3, 6, 12, 24)}
    return ShortName(partial(swin, **options), about, same)


def _read_mixer(size: str, patch: str) -> ShortName:
    about = f"MLP-Mixer-{size.upper()}, patch {patch}"
    same = "mixer_b16_224" if (size, patch) == ("b", "16") else None
    return ShortName(partial(mixer, patch_size=int(patch), **_MIXERS[size]), about, same)


def _read_sized_mixer(layers: str, width: str, patch: str | None) -> ShortName:
    patch = patch or "4"
    about = f"MLP-Mixer of {layers} layers, width {width}, patch {patch}"
    return ShortName(partial(mixer, num_blocks=int(layers), embed_dim=int(width), patch_size=int(patch)), about)


def _read_hybrid(size: str) -> ShortName:
    long, numbers = _SIZES[size]
    about = f"ResNet-50 features of stride 16 into a ViT-{size.upper()}; up to 64 px stride 4"
    return ShortName(partial(hybrid, **numbers), about, f"vit_{long}_r50_s16_224" if size == "b" else None)


def _read_sized_hybrid(layers: str, heads: str, width: str) -> ShortName:
    about = f"ResNet-50 features into a ViT of {layers} layers, {heads} heads, width {width}; stride as r50_vit_s_p16"
    return ShortName(partial(hybrid, depth=int(layers), num_heads=int(heads), embed_dim=int(width)), about)


def _read_mlp(stem: str | None, widths: str) -> ShortName:
    hidden = [int(width) for width in widths.split("_")]
    about = f"perceptron, ReLU, hidden layers of {', '.join(map(str, hidden))}"
    if stem:
        about += f" after a linear one of {stem}"
    return ShortName(partial(Perceptron, widths=hidden, stem=int(stem) if stem else None), about)


def _read_speednet(depth: str, widths: str) -> ShortName:
    numbers = [int(width) for width in widths.split("_")]
    about = (
        f"the speed records' network: whitening, groups of {depth} convolutions, {'-'.join(map(str, numbers))} channels"
    )
    return ShortName(partial(SpeedNet, widths=numbers, depth=int(depth)), about)


_READERS: dict[str, Callable[..., ShortName]] = {
    "resnet": _read_resnet,
    "resnet_v1": _read_resnet_v1,
    "wrn": _read_wrn,
    "vit": _read_vit,
    "sized_vit": _read_sized_vit,
    "cct": _read_cct,
    "swin": _read_swin,
    "mixer": _read_mixer,
    "sized_mixer": _read_sized_mixer,
    "hybrid": _read_hybrid,
    "sized_hybrid": _read_sized_hybrid,
    "mlp": _read_mlp,
    "speednet": _read_speednet,
}
"""Family, as in `steppe.config.names.SHORT_NAMES` -> what builds it."""


def _listed(name: str) -> tuple[Builder, str]:
    known = short_name(name)
    assert known is not None
    return known.build, known.about


SMALL_MODELS: dict[str, tuple[Builder, str]] = {name: _listed(name) for name in MODELS}
"""Name -> (builder taking img_size, in_chans, num_classes and the regularisation rates, one line about it)."""
