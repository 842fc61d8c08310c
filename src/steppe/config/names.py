"""Names that a shell can offer without importing torch: what `steppe models` and `steppe data` list."""

from __future__ import annotations

MODELS = (
    *("resnet_tiny", "vit_tiny_p2", "swin_tiny_p2", "mixer_tiny_p2", "hybrid_tiny"),
    *(f"resnet{depth}" for depth in (18, 34, 50, 101, 152)),
    *(f"resnet{depth}x2" for depth in (50, 101, 152)),
    "resnet50_v1",
    *("wrn_16_8", "wrn_28_10"),
    *(f"vit_{size}_p{patch}" for size in ("ti", "s", "b") for patch in (2, 4, 8, 14, 16, 32)),
    *("vit_2l_2h_128", "vit_4l_4h_256", "vit_6l_8h_384", "vit_8l_8h_512", "vit_b_p16_free"),
    *(f"swin_{size}_p{patch}" for size in ("t", "s") for patch in (1, 2, 4)),
    *(f"mixer_{size}_p{patch}" for size in ("s", "b") for patch in (4, 8, 16, 32)),
    "mixer_9l_384",
    *("r50_vit_s_p16", "r50_vit_b_p16"),
    *("mlp_10l_10_10_10", "mlp_64_64"),
)

DATASETS = (
    *("digits", "cifar10", "cifar100", "mnist", "fashion_mnist", "flowers102", "pets", "imagenet"),
    *("toy_corners", "toy_rings", "toy_moons"),
)
