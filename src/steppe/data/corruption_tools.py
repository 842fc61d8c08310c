"""What the corruptions are made of: random numbers that belong to an image, and filters on whole batches.

Images are floats (B, C, H, W) from 0 to 1 unless a docstring says otherwise.
"""

from __future__ import annotations

import math
from functools import lru_cache

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
        self._key = _mixed(_mixed(indices.to(device, torch.int64) * _GAMMA + seed) + seed)
        self._used = 0

    def uniform(self, *shape: int) -> torch.Tensor:
        """Draw (B, *shape) numbers, strictly between 0 and 1."""
        count = math.prod(shape)
        counter = torch.arange(self._used + 1, self._used + count + 1, device=self.device)
        self._used += count
        bits = (_mixed(self._key[:, None] + counter * _GAMMA) >> 40) & 0xFFFFFF
        return ((bits.float() + 0.5) * 2.0**-24).view(-1, *shape)

    def normal(self, *shape: int) -> torch.Tensor:
        """Draw (B, *shape) standard normal numbers (Box and Muller)."""
        radius = (-2 * self.uniform(*shape).log()).sqrt()
        return radius * (2 * math.pi * self.uniform(*shape)).cos()


_GAMMA = 0x9E3779B97F4A7C15 - 2**64


def _mixed(z: torch.Tensor) -> torch.Tensor:
    z = (z ^ ((z >> 30) & (2**34 - 1))) * (0xBF58476D1CE4E5B9 - 2**64)
    z = (z ^ ((z >> 27) & (2**37 - 1))) * (0x94D049BB133111EB - 2**64)
    return z ^ ((z >> 31) & (2**33 - 1))


@lru_cache(maxsize=128)
def _gaussian_matrix(side: int, sigma: float, mode: str, truncate: float) -> torch.Tensor:
    from scipy.ndimage import gaussian_filter1d

    matrix = gaussian_filter1d(np.eye(side), sigma, axis=0, mode=mode, truncate=truncate) if sigma else np.eye(side)
    return torch.from_numpy(matrix).float()


def gaussian(images: torch.Tensor, sigma: float, mode: str = "nearest", truncate: float = 4.0) -> torch.Tensor:
    """Blur the last two dimensions: scipy's filter, as a matrix for each side, borders and all."""
    rows = _gaussian_matrix(images.shape[-2], sigma, mode, truncate).to(images.device)
    columns = _gaussian_matrix(images.shape[-1], sigma, mode, truncate).to(images.device)
    return rows @ images @ columns.T


def filtered(images: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """Correlate every channel with one kernel of odd size; the border is mirrored about its pixels."""
    channels = images.shape[1]
    pad = kernel.shape[-1] // 2
    weight = kernel.to(images)[None, None].expand(channels, 1, -1, -1)
    side = min(images.shape[-2:])
    while pad >= side:  # tiny images: what lies further off than the mirror reaches is left out
        weight, pad = weight[..., 1:-1, 1:-1] / weight[..., 1:-1, 1:-1].sum((2, 3), keepdim=True), pad - 1
    return F.conv2d(F.pad(images, (pad, pad, pad, pad), mode="reflect"), weight, groups=channels)


def disk(radius: float, alias_blur: float) -> torch.Tensor:
    """A disc, its rim softened by a small Gaussian (3×3 up to radius 8, 5×5 above)."""
    reach = 8 if radius <= 8 else math.ceil(radius)
    line = torch.arange(-reach, reach + 1, dtype=torch.float32)
    inside = (line[:, None] ** 2 + line[None, :] ** 2 <= radius**2).float()
    half = 1 if radius <= 8 else 2
    bell = torch.exp(-(torch.arange(-half, half + 1.0) ** 2) / (2 * alias_blur**2))
    bell = bell / bell.sum()
    return filtered((inside / inside.sum())[None, None], bell[:, None] * bell[None, :])[0, 0]


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
    taps = 2 * math.ceil(radius) + 1
    bell = torch.exp(-(torch.arange(taps, dtype=torch.float64) ** 2) / (2 * sigma**2))
    weights = (bell / bell.sum()).tolist()
    turned = angle.double().deg2rad()
    row, column = torch.arange(height, device=images.device), torch.arange(width, device=images.device)
    out, flat = torch.zeros_like(images), images.flatten(2)
    for tap, weight in enumerate(weights):
        right = torch.ceil(tap * turned.cos() - 0.5).long()[:, None]
        down = torch.ceil(tap * turned.sin() - 0.5).long()[:, None]
        source_row = (row + down).clamp(0, height - 1)
        source_column = (column + right).clamp(0, width - 1)
        index = (source_row[:, :, None] * width + source_column[:, None, :]).view(-1, 1, height * width)
        out += weight * flat.gather(2, index.expand(-1, channels, -1)).view_as(images)
    return out


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
    weights = torch.tensor([0.299, 0.587, 0.114], device=images.device).view(1, 3, 1, 1)
    return (images * weights).sum(1, keepdim=True)


def coloured(rgb: tuple[int, int, int], like: torch.Tensor) -> torch.Tensor:
    """A colour of 8-bit values as (1, C, 1, 1), or its luminance for grey images."""
    colour = torch.tensor(rgb, device=like.device, dtype=like.dtype).view(1, 3, 1, 1) / 255
    return colour if like.shape[1] == 3 else grey(colour)
