"""What the corruptions are made of: random numbers that belong to an image, and filters on whole batches.

Images are floats (B, C, H, W) from 0 to 1 unless a docstring says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F


class Keyed:
    """Random numbers by (image's number, words): the same in any batch, on any device.

    Number n of an image with key k is a mixing of k + n·γ, as in SplitMix64 (Steele et al., OOPSLA 2014).
    """

    def __init__(self, indices: torch.Tensor, seed: int, device: torch.device) -> None:
        """Give each image a key.

        Args:
            indices: (B,), the images' numbers in their split.
            seed: what sets this use of randomness apart from others.
            device: where numbers are wanted.
        """
        self.device, self.count = device, len(indices)
        self._indices, self._seed, self._used = indices, seed, 0

    @cached_property
    def _key(self) -> torch.Tensor:
        """Made where the indices are, mostly the CPU: they are few."""
        key = _mixed(_mixed(self._indices.long() * _GAMMA + self._seed) + self._seed)
        return key.to(self.device)

    def uniform(self, *shape: int) -> torch.Tensor:
        """Draw (B, *shape) numbers, strictly between 0 and 1."""
        count = math.prod(shape)
        counter = torch.arange(self._used + 1, self._used + count + 1, device=self.device)
        self._used += count
        bits = (_mixed(self._key[:, None] + counter * _GAMMA) >> 40).bitwise_and_(0xFFFFFF)
        return bits.float().add_(0.5).mul_(2.0**-24).view(-1, *shape)

    def several(self, *shapes: tuple[int, ...]) -> Iterator[torch.Tensor]:
        """Draw what calls of `uniform` one after the other would, at once."""
        sizes = [math.prod(shape) for shape in shapes]
        parts = self.uniform(sum(sizes)).split(sizes, 1)
        return (part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True))

    def normal(self, *shape: int) -> torch.Tensor:
        """Draw (B, *shape) standard normal numbers (Box and Muller)."""
        radius = self.uniform(*shape).log_().mul_(-2).sqrt_()
        return (2 * math.pi * self.uniform(*shape)).cos_().mul_(radius)


_GAMMA = 0x9E3779B97F4A7C15 - 2**64


def _mixed(z: torch.Tensor) -> torch.Tensor:
    z = _folded(z, 30).mul_(0xBF58476D1CE4E5B9 - 2**64)
    return _folded(_folded(z, 27).mul_(0x94D049BB133111EB - 2**64), 31)


def _folded(z: torch.Tensor, shift: int) -> torch.Tensor:
    return (z >> shift).bitwise_and_(2 ** (64 - shift) - 1).bitwise_xor_(z)


@contextmanager
def in_full_precision() -> Iterator[None]:
    """Have a GPU multiply float32 as a CPU does: ten bits fewer would show where values are cut to whole numbers."""
    cudnn = torch.backends.cudnn
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32 = before[1]


@lru_cache(maxsize=128)
def constant(values: tuple[Any, ...], device: torch.device) -> torch.Tensor:
    """A small tensor of floats that is brought to a device once."""
    return torch.tensor(values, dtype=torch.float32, device=device)


@lru_cache(maxsize=128)
def _gaussian_matrix(side: int, sigma: float, mode: str, truncate: float, device: torch.device) -> torch.Tensor:
    from scipy.ndimage import gaussian_filter1d

    matrix = gaussian_filter1d(np.eye(side), sigma, axis=0, mode=mode, truncate=truncate) if sigma else np.eye(side)
    return torch.from_numpy(matrix).float().to(device)


def gaussian(images: torch.Tensor, sigma: float, mode: str = "nearest", truncate: float = 4.0) -> torch.Tensor:
    """Blur the last two dimensions: scipy's filter, as a matrix for each side, borders and all."""
    rows = _gaussian_matrix(images.shape[-2], sigma, mode, truncate, images.device)
    columns = _gaussian_matrix(images.shape[-1], sigma, mode, truncate, images.device)
    return rows @ images @ columns.T


def filtered(images: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """Correlate every channel with one kernel of odd size; the border is mirrored about its pixels."""
    pad = kernel.shape[-1] // 2
    weight = kernel[None, None]
    side = min(images.shape[-2:])
    while pad >= side:  # tiny images: what lies further off than the mirror reaches is left out
        weight, pad = weight[..., 1:-1, 1:-1] / weight[..., 1:-1, 1:-1].sum((2, 3), keepdim=True), pad - 1
    around = F.pad(images, (pad, pad, pad, pad), mode="reflect")
    return F.conv2d(around.flatten(0, 1)[:, None], weight).view_as(images)


@lru_cache(maxsize=32)
def disk(radius: float, alias_blur: float, device: torch.device) -> torch.Tensor:
    """A disc, its rim softened by a small Gaussian (3×3 up to radius 8, 5×5 above), without a border of zeros."""
    reach = 8 if radius <= 8 else math.ceil(radius)
    line = torch.arange(-reach, reach + 1, dtype=torch.float32)
    inside = (line[:, None] ** 2 + line[None, :] ** 2 <= radius**2).float()
    half = 1 if radius <= 8 else 2
    bell = torch.exp(-(torch.arange(-half, half + 1.0) ** 2) / (2 * alias_blur**2))
    bell = bell / bell.sum()
    soft = filtered((inside / inside.sum())[None, None], bell[:, None] * bell[None, :])[0, 0]
    empty = int((soft.amax(0) == 0).sum()) // 2
    return soft[empty : len(soft) - empty, empty : len(soft) - empty].to(device)


def motion(images: torch.Tensor, radius: float, sigma: float, angle: torch.Tensor) -> torch.Tensor:
    """Blur each image along its own direction, as ImageMagick does: the tail of a Gaussian, on one side.

    Tap i weighs exp(-i² / 2σ²), i = 0 … 2·radius, and lies at the pixel nearest to i steps along the angle.

    Args:
        images: (B, C, H, W).
        radius: half of the length.
        sigma: of the Gaussian.
        angle: (B,) in degrees.
    """
    _, channels, height, width = images.shape
    tap = torch.arange(2 * math.ceil(radius) + 1, dtype=torch.float64, device=images.device)[:, None]
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(len(tap))]
    turned = angle.double().deg2rad()
    right, down = torch.ceil(tap * turned.cos() - 0.5).long(), torch.ceil(tap * turned.sin() - 0.5).long()
    row, column = torch.arange(height, device=images.device), torch.arange(width, device=images.device)
    rows = (row + down[..., None]).clamp(0, height - 1) * width  # (taps, B, height)
    columns = (column + right[..., None]).clamp(0, width - 1)
    out, flat = torch.zeros_like(images), images.flatten(2)
    for of_row, of_column, weight in zip(rows, columns, weights, strict=True):
        index = (of_row[:, :, None] + of_column[:, None, :]).view(-1, 1, height * width).expand(-1, channels, -1)
        out.add_(flat.gather(2, index).view_as(images), alpha=weight / sum(weights))
    return out


def portions(images: torch.Tensor, each: int) -> tuple[torch.Tensor, ...]:
    """Divide a batch whose images take `each` numbers to work on: by what a CPU's cache holds, 2²⁴ elsewhere."""
    return images.split(max(1, (2**20 if images.device.type == "cpu" else 2**24) // each))


def zoomed(images: torch.Tensor, factor: float) -> torch.Tensor:
    """Enlarge the middle of square images, corner pixels on corner pixels, and trim to the old size."""
    side = images.shape[-1]
    kept = math.ceil(side / factor)
    start = (side - kept) // 2
    size = round(kept * factor)
    middle = images[..., start : start + kept, start : start + kept]
    large = F.interpolate(middle, size=(size, size), mode="bilinear", align_corners=True)
    trim = (size - side) // 2
    return large[..., trim : trim + side, trim : trim + side]


def shuffled(images: torch.Tensor, reach: int, draws: torch.Tensor) -> torch.Tensor:
    """Let each pixel in turn, from the last to the first, take the value of a random one near it.

    In the published program a pixel copies the value its neighbour has *at that moment*. So where the neighbour came
    earlier, the value is what that one took before: a chain. All chains are followed at once by pointer doubling.

    Args:
        images: (B, C, H, W).
        reach: neighbours lie from -reach to reach - 1 pixels off, in both directions.
        draws: (B, 2, H, W) uniform numbers.
    """
    count, channels, height, width = images.shape
    total = height * width
    row = torch.arange(height, device=images.device)[:, None].expand(height, width)
    column = torch.arange(width, device=images.device)[None, :].expand(height, width)
    active = (row > reach) & (row <= height - reach) & (column > reach) & (column <= width - reach)
    offset = (draws * 2 * reach).long().clamp(max=2 * reach - 1) - reach
    source_row, source_column = row + offset[:, 0], column + offset[:, 1]
    source = (source_row * width + source_column).clamp(0, total - 1).view(count, total)
    here = torch.arange(total, device=images.device)
    was_active = active.flatten()[source]
    earlier = was_active & (source > here)
    pointer = torch.where(earlier, source, source + total)  # total + q: pixel q as it was at the start
    pointer = torch.where(active.flatten(), pointer, here + total)
    pointer = torch.cat([pointer, (here + total).expand(count, total)], 1)
    for _ in range(math.ceil(math.log2(total)) + 1):
        pointer = pointer.gather(1, pointer)
    index = (pointer[:, None, :total] - total).expand(-1, channels, -1)
    return images.flatten(2).gather(2, index).view_as(images)


def grey(images: torch.Tensor) -> torch.Tensor:
    """Luminance, (B, 1, H, W)."""
    if images.shape[1] != 3:
        return images[:, :1]
    weights = constant((0.299, 0.587, 0.114), images.device).view(1, 3, 1, 1)
    return (images * weights).sum(1, keepdim=True)


def coloured(rgb: tuple[int, int, int], like: torch.Tensor) -> torch.Tensor:
    """A colour of 8-bit values as (1, C, 1, 1), or its luminance for grey images."""
    colour = constant(rgb, like.device).view(1, 3, 1, 1) / 255
    return colour if like.shape[1] == 3 else grey(colour)
