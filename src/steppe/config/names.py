"""Names of models and data sets, known without importing torch: listed ones, and the grammar of short names."""

from __future__ import annotations

import re

MODELS = (
    *("resnet_tiny", "vit_tiny_p2", "swin_tiny_p2", "mixer_tiny_p2", "hybrid_tiny"),
    *(f"resnet{depth}" for depth in (18, 34, 50, 101, 152)),
    *(f"resnet{depth}x2" for depth in (50, 101, 152)),
    "resnet50_v1",
    *("wrn_16_8", "wrn_28_10"),
    *(f"vit_{size}_p{patch}" for size in ("ti", "s", "b") for patch in (2, 4, 8, 14, 16, 32)),
    *("vit_2l_2h_128", "vit_4l_4h_256", "vit_6l_8h_384", "vit_8l_8h_512", "vit_b_p16_free"),
    *("vit_7l_12h_384_mlp384", "vit_6l_8h_384_conv", "vit_6l_8h_384_mean", "vit_6l_8h_384_qknorm"),
    *("cct_2_3x2", "cct_6_3x1", "cct_7_3x1", "cct_7_3x2", "cct_14_7x2"),
    *(f"swin_{size}_p{patch}" for size in ("t", "s") for patch in (1, 2, 4)),
    *(f"mixer_{size}_p{patch}" for size in ("s", "b") for patch in (4, 8, 16, 32)),
    "mixer_9l_384",
    *("r50_vit_s_p16", "r50_vit_b_p16"),
    *("speednet2_64_256_256", "speednet3_128_384_512"),
    *("mlp_10l_10_10_10", "mlp_64_64"),
)

DATASETS = (
    *("digits", "cifar10", "cifar100", "mnist", "fashion_mnist", "flowers102", "pets", "imagenet"),
    *("toy_corners", "toy_rings", "toy_moons"),
)

DEVICES = ("cpu", "cuda", "mps")
"""Kinds of devices that steppe computes on; one of several has a number, as cuda:1."""

_NUMBER = r"[1-9]\d{0,3}"
_VIT_PARTS = r"(?P<stem>_conv)?(?P<mean>_mean)?(?P<qk_norm>_qknorm)?(?P<free>_free)?"
SHORT_NAMES = {
    "resnet": r"resnet(?P<depth>18|34|50|101|152)(?:x(?P<width>[2-4]))?",
    "resnet_v1": r"resnet(?P<depth>50|101|152)_v1",
    "wrn": rf"wrn_(?P<depth>{_NUMBER})_(?P<width>{_NUMBER})",
    "vit": rf"vit_(?P<size>ti|s|b)_p(?P<patch>{_NUMBER}){_VIT_PARTS}",
    "sized_vit": rf"vit_(?P<layers>{_NUMBER})l_(?P<heads>{_NUMBER})h_(?P<width>{_NUMBER})(?:_mlp(?P<mlp>{_NUMBER}))?"
    rf"(?:_p(?P<patch>{_NUMBER}))?{_VIT_PARTS}",
    "cct": r"cct_(?P<layers>2|4|6|7|14)_(?P<kernel>3|5|7)x(?P<convolutions>[1-3])",
    "swin": rf"swin_(?P<size>t|s)_p(?P<patch>{_NUMBER})",
    "mixer": rf"mixer_(?P<size>s|b)_p(?P<patch>{_NUMBER})",
    "sized_mixer": rf"mixer_(?P<layers>{_NUMBER})l_(?P<width>{_NUMBER})(?:_p(?P<patch>{_NUMBER}))?",
    "hybrid": r"r50_vit_(?P<size>s|b)_p16",
    "sized_hybrid": rf"r50_vit_(?P<layers>{_NUMBER})l_(?P<heads>{_NUMBER})h_(?P<width>{_NUMBER})",
    "mlp": rf"mlp_(?:(?P<stem>{_NUMBER})l_)?(?P<widths>{_NUMBER}(?:_{_NUMBER})*)",
    "speednet": rf"speednet(?P<depth>2|3)_(?P<widths>{_NUMBER}(?:_{_NUMBER})*)",
}
"""Family -> the pattern of its names; `steppe.models.names` builds what they say."""


def is_short_name(name: str) -> bool:
    """Say whether a name is listed here, or follows the grammar of short names."""
    return name in MODELS or any(re.fullmatch(pattern, name) for pattern in SHORT_NAMES.values())
