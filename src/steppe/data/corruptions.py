"""The 19 corruptions × 5 severities of ImageNet-C and CIFAR-10-C, in batches, each a function of the image's number.

Hendrycks and Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and Perturbations
(arXiv:1903.12261), with the constants of the programs that made the two published sets: `cifar` for images of up to 64
pixels, `imagenet` for larger ones. Written anew from those definitions; what differs is said here:
- random numbers belong to (image number, corruption, severity), so an image is corrupted alike in every batch;
- `frost` blends with panes that are drawn here, of the colours, contrast and spectrum of the photographs of the
  published program, whose blending it has;
- `spatter`'s edges and distances are computed exactly where OpenCV approximates them.
Values are cut to whole numbers, not rounded, as in the published sets.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F

from steppe.data import corruption_weather as weather
from steppe.data.corruption_tools import (
    Keyed,
    constant,
    disk,
    filtered,
    gaussian,
    in_full_precision,
    motion,
    shuffled,
    zoomed,
)
from steppe.data.jpeg import compress
from steppe.errors import ConfigError, unknown_name

Scale = Literal["auto", "cifar", "imagenet"]
Function = Callable[[torch.Tensor, Any, Keyed], torch.Tensor]

SMALL = 64

_ZOOMS = {
    "cifar": ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
    "imagenet": ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
}

CONSTANTS: dict[str, dict[str, tuple[Any, ...]]] = {
    "cifar": {
        "gaussian_noise": (0.04, 0.06, 0.08, 0.09, 0.10),
        "shot_noise": (500, 250, 100, 75, 50),
        "impulse_noise": (0.01, 0.02, 0.03, 0.05, 0.07),
        "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        "zoom_blur": _ZOOMS["cifar"],
        "snow": (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),
        "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
        "elastic_transform": (
            (0, 0, 0.08),
            (0.05, 0.2, 0.07),
            (0.08, 0.06, 0.06),
            (0.1, 0.04, 0.05),
            (0.1, 0.03, 0.03),
        ),
        "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),
        "jpeg_compression": (80, 65, 58, 50, 40),
        "speckle_noise": (0.06, 0.1, 0.12, 0.16, 0.2),
        "gaussian_blur": (0.4, 0.6, 0.7, 0.8, 1),
        "spatter": (
            (0.62, 0.1, 0.7, 0.7, 0.5, False),
            (0.65, 0.1, 0.8, 0.7, 0.5, False),
            (0.65, 0.3, 1, 0.69, 0.5, False),
            (0.65, 0.1, 0.7, 0.69, 0.6, True),
            (0.65, 0.1, 0.5, 0.68, 0.6, True),
        ),
        "saturate": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
    },
    "imagenet": {
        "gaussian_noise": (0.08, 0.12, 0.18, 0.26, 0.38),
        "shot_noise": (60, 25, 12, 5, 3),
        "impulse_noise": (0.03, 0.06, 0.09, 0.17, 0.27),
        "defocus_blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
        "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
        "motion_blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
        "zoom_blur": _ZOOMS["imagenet"],
        "snow": (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
        "frost": ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
        "fog": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
        "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),
        "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),
        "elastic_transform": tuple(
            (244 / 224 * a, 244 / 224 * s, 244 / 224 * p)
            for a, s, p in ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))
        ),
        "pixelate": (0.6, 0.5, 0.4, 0.3, 0.25),
        "jpeg_compression": (25, 18, 15, 10, 7),
        "speckle_noise": (0.15, 0.2, 0.35, 0.45, 0.6),
        "gaussian_blur": (1, 2, 3, 4, 6),
        "spatter": (
            (0.65, 0.3, 4, 0.69, 0.6, False),
            (0.65, 0.3, 3, 0.68, 0.6, False),
            (0.65, 0.3, 2, 0.68, 0.5, False),
            (0.65, 0.3, 1, 0.65, 1.5, True),
            (0.67, 0.4, 1, 0.65, 1.5, True),
        ),
        "saturate": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
    },
}
"""By scale and corruption, from severity 1 to 5. Lengths of `elastic_transform` are shares of the image's side."""

CORRUPTIONS: tuple[str, ...] = tuple(CONSTANTS["cifar"])
"""The names, in the order of the published set; the last four are its extra ones."""

EXTRA = CORRUPTIONS[15:]
"""The four that are not part of the mean corruption error, which is over the first 15."""


@torch.no_grad()
@in_full_precision()
def corrupt(
    images: torch.Tensor, name: str, severity: int, *, indices: torch.Tensor, scale: Scale = "auto"
) -> torch.Tensor:
    """Corrupt a batch.

    Args:
        images: uint8, (B, C, H, W), square, of one or three channels.
        name: one of `CORRUPTIONS`.
        severity: 1 to 5.
        indices: (B,), the images' numbers in their split: they are all that randomness depends on.
        scale: whose constants; "auto" takes those of CIFAR up to 64 pixels a side.

    Returns:
        uint8 images of the same shape, on the same device.

    Raises:
        ConfigError: there is no such corruption or severity.
    """
    if name not in CORRUPTIONS:
        raise unknown_name("corruption", name, CORRUPTIONS)
    if severity not in (1, 2, 3, 4, 5):
        raise ConfigError(f"there is no severity {severity!r}", fix="choose a whole number from 1 to 5")
    assert images.dtype == torch.uint8
    assert images.shape[-1] == images.shape[-2]
    if scale == "auto":
        scale = "cifar" if images.shape[-1] <= SMALL else "imagenet"
    seed = int.from_bytes(hashlib.blake2b(f"{name}:{severity}".encode(), digest_size=8).digest(), signed=True)
    random = Keyed(indices, seed, images.device)
    constant = CONSTANTS[scale][name][severity - 1]
    if name in _ON_BYTES:
        return _ON_BYTES[name](images, constant, random)
    out = _ON_FLOATS[name](images.float() / 255, constant, random)
    return (out.clamp(0, 1) * 255 + 1e-3).to(torch.uint8)


def _gaussian_noise(x: torch.Tensor, c: float, random: Keyed) -> torch.Tensor:
    return x + c * random.normal(*x.shape[1:])


def _speckle_noise(x: torch.Tensor, c: float, random: Keyed) -> torch.Tensor:
    return x + c * x * random.normal(*x.shape[1:])


def _impulse_noise(x: torch.Tensor, c: float, random: Keyed) -> torch.Tensor:
    hit = random.uniform(*x.shape[1:]) < c
    salt = random.uniform(*x.shape[1:]) < 0.5
    return torch.where(hit, salt.float(), x)


@lru_cache(maxsize=16)
def _poisson_table(photons: int, device: torch.device) -> torch.Tensor:
    """Row v holds v + P(N ≤ n) for n = 0, 1, …, where N is Poisson with mean photons · v / 255."""
    from scipy.special import pdtr

    rate = np.arange(256)[:, None] * photons / 255
    most = int(photons + 10 * math.sqrt(photons) + 10)
    table = pdtr(np.arange(most)[None, :], rate)
    table[:, -1] = 1
    return torch.from_numpy(np.arange(256)[:, None] + table).to(device)


def _shot_noise(images: torch.Tensor, c: int, random: Keyed) -> torch.Tensor:
    """Count photons: Poisson by inversion, one search for all pixels since a byte has only 256 rates."""
    table = _poisson_table(c, images.device)
    wanted = images.double() + random.uniform(*images.shape[1:]).double()
    count = torch.searchsorted(table.flatten(), wanted) - images.long() * table.shape[1]
    return ((count / c).clamp(0, 1) * 255 + 1e-3).to(torch.uint8)


def _gaussian_blur(x: torch.Tensor, c: float, random: Keyed) -> torch.Tensor:
    return gaussian(x, c)


def _glass_blur(x: torch.Tensor, c: tuple[float, int, int], random: Keyed) -> torch.Tensor:
    sigma, reach, rounds = c
    x = (gaussian(x, sigma) * 255 + 1e-3).floor() / 255
    for _ in range(rounds):
        x = shuffled(x, reach, random.uniform(2, *x.shape[2:]))
    return gaussian(x, sigma)


def _defocus_blur(x: torch.Tensor, c: tuple[float, float], random: Keyed) -> torch.Tensor:
    return filtered(x, disk(*c, x.device))


def _motion_blur(x: torch.Tensor, c: tuple[float, float], random: Keyed) -> torch.Tensor:
    return motion(x, *c, angle=random.uniform(1)[:, 0] * 90 - 45)


def _zoom_blur(x: torch.Tensor, c: tuple[float, float], random: Keyed) -> torch.Tensor:
    factors = np.arange(1, *c)
    return (x + sum(zoomed(x, float(factor)) for factor in factors)) / (len(factors) + 1)


def _brightness(x: torch.Tensor, c: float, random: Keyed) -> torch.Tensor:
    """Raise the value of hue, saturation and value: all channels grow by one factor."""
    value = x.amax(1, keepdim=True)
    lifted = (value + c).clamp(max=1)
    return torch.where(value > 0, x * (lifted / value.clamp_min(1e-6)), lifted)


def _saturate(x: torch.Tensor, c: tuple[float, float], random: Keyed) -> torch.Tensor:
    """Change the saturation S to c₀·S + c₁; grey has no hue, and the first of hues, red, is what it gets."""
    if x.shape[1] != 3:
        return x
    value, low = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    saturation = (value - low) / value.clamp_min(1e-6)
    wanted = (saturation * c[0] + c[1]).clamp(0, 1)
    red = value * (1 - wanted * constant((0, 1, 1), x.device).view(1, 3, 1, 1))
    return torch.where(value > low, value - (value - x) * (wanted / saturation.clamp_min(1e-6)), red)


def _contrast(x: torch.Tensor, c: float, random: Keyed) -> torch.Tensor:
    mean = x.mean((2, 3), keepdim=True)
    return (x - mean) * c + mean


def _elastic_transform(x: torch.Tensor, c: tuple[float, float, float], random: Keyed) -> torch.Tensor:
    """Move three corners by up to c₂, then every pixel by a smooth field: σ = c₁, strength c₀ (shares of the side)."""
    side = x.shape[-1]
    strength, sigma, corner = (share * side for share in c)
    low, high = side // 2 - side // 3, side // 2 + side // 3
    old = constant(((high, high), (high, low), (low, low)), x.device).double()
    new = old + (2 * random.uniform(3, 2).double() - 1) * corner
    ones = torch.ones(len(x), 3, 1, device=x.device, dtype=torch.float64)
    back = torch.linalg.solve(torch.cat([new, ones], 2), old.expand(len(x), 3, 2))  # maps new places to old ones
    line = torch.arange(side, device=x.device, dtype=torch.float64)
    places = torch.stack([line[None, :].expand(side, side), line[:, None].expand(side, side)], -1)
    source = (places.view(1, -1, 2) @ back[:, :2] + back[:, 2:]).view(len(x), side, side, 2)
    moved = F.grid_sample(x, (source / (side - 1) * 2 - 1).float(), padding_mode="reflection", align_corners=True)
    field = 2 * random.uniform(2, side, side) - 1
    offset = gaussian(field, sigma, mode="reflect", truncate=3.0).permute(0, 2, 3, 1) * strength
    grid = ((places + offset + 0.5) / side * 2 - 1).float()
    return F.grid_sample(moved, grid, padding_mode="reflection", align_corners=False)


@lru_cache(maxsize=32)
def _box_matrix(inputs: int, outputs: int, device: torch.device) -> torch.Tensor:
    """The weights of a box filter, (outputs, inputs): the pixels whose centres lie in the box share evenly."""
    step = inputs / outputs
    reach = max(step, 1) / 2
    out = torch.zeros(outputs, inputs)
    for i in range(outputs):
        centre = (i + 0.5) * step
        start, stop = max(int(centre - reach + 0.5), 0), min(int(centre + reach + 0.5), inputs)
        pixels = [j for j in range(start, stop) if -0.5 < (j + 0.5 - centre) / (2 * reach) <= 0.5] or [int(centre)]
        out[i, pixels] = 1 / len(pixels)
    return out.to(device)


def _pixelate(images: torch.Tensor, c: float, random: Keyed) -> torch.Tensor:
    side = images.shape[-1]
    small = max(1, int(side * c))
    out = images.float()
    for matrix in (_box_matrix(side, small, out.device), _box_matrix(small, side, out.device)):
        for _ in range(2):  # columns, then rows, each rounded to bytes
            out = (out @ matrix.T + 0.5 + 1e-4).floor().transpose(2, 3)
    return out.to(torch.uint8)


def _jpeg_compression(images: torch.Tensor, c: int, random: Keyed) -> torch.Tensor:
    return compress(images, c)


_ON_BYTES: dict[str, Function] = {
    "shot_noise": _shot_noise,
    "pixelate": _pixelate,
    "jpeg_compression": _jpeg_compression,
}
_ON_FLOATS: dict[str, Function] = {
    "gaussian_noise": _gaussian_noise,
    "impulse_noise": _impulse_noise,
    "defocus_blur": _defocus_blur,
    "glass_blur": _glass_blur,
    "motion_blur": _motion_blur,
    "zoom_blur": _zoom_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "brightness": _brightness,
    "contrast": _contrast,
    "elastic_transform": _elastic_transform,
    "speckle_noise": _speckle_noise,
    "gaussian_blur": _gaussian_blur,
    "spatter": weather.spatter,
    "saturate": _saturate,
}
