"""Baseline JPEG, written and read at once on whole batches: everything but the lossless coding of the result.

What libjpeg and Pillow do by default, to the bit: YCbCr, colours at half the resolution (4:2:0), a whole-number cosine
transform of 8×8 blocks, the example tables of the standard (ITU-T T.81, annex K) scaled by the quality, and colours
brought back by a triangle filter. Sums of whole numbers are taken in float64, where they are exact on any device.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F

_LUMINANCE = """
     16  11  10  16  24  40  51  61  12  12  14  19  26  58  60  55
     14  13  16  24  40  57  69  56  14  17  22  29  51  87  80  62
     18  22  37  56  68 109 103  77  24  35  55  64  81 104 113  92
     49  64  78  87 103 121 120 101  72  92  95  98 112 100 103  99
"""
_CHROMINANCE = """
     17  18  24  47  99  99  99  99  18  21  26  66  99  99  99  99
     24  26  56  99  99  99  99  99  47  66  99  99  99  99  99  99
     99  99  99  99  99  99  99  99  99  99  99  99  99  99  99  99
     99  99  99  99  99  99  99  99  99  99  99  99  99  99  99  99
"""
_COSINES = """
    8192  8192   8192   8192   11363   9633   6437   2260   10703   4433  -4433 -10703    9633 -2259 -11362  -6436
    8192 -8192  -8192   8192    6437 -11362   2261   9633    4433 -10704  10704  -4433    2260 -6436   9633 -11363
"""
"""√8 · 2¹³ times the cosine transform's rows, their first halves, as the factored transform's constants add up."""

_TO_YCC = ((19595, 38470, 7471), (-11059, -21709, 32768), (32768, -27439, -5329))
_TO_YCC_SHIFT = (2**15, 2**23 + 2**15 - 1, 2**23 + 2**15 - 1)
_TO_RGB = ((0, 91881), (-22554, -46802), (116130, 0))
"""From Cb and Cr; in 2¹⁶ths, as above."""


def compress(images: torch.Tensor, quality: int) -> torch.Tensor:
    """Give the images as they are after JPEG.

    Args:
        images: uint8, (B, C, H, W) of one or three channels.
        quality: 1 to 100.
    """
    height, width = images.shape[2:]
    matrices = _matrices(images.device)
    if images.shape[1] == 1:
        (grey,) = _through_blocks([images.double()], quality)
        return grey.to(torch.uint8)
    pixels = F.pad(images.double(), (0, -width % 16, 0, height % 2), mode="replicate")
    ycc = _sums(matrices["to_ycc"], pixels, matrices["to_ycc_shift"])
    colours = _halved(ycc[:, 1:])
    light, colours = _through_blocks([ycc[:, :1], colours], quality)
    light = light[..., :height, :width]
    colours = _doubled(colours[..., : (width + 1) // 2])[..., :height, :width]
    rgb = light + _sums(matrices["to_rgb"], colours - 128, matrices["to_rgb_shift"])
    return rgb.clamp_(0, 255).to(torch.uint8)


@lru_cache(maxsize=8)
def _matrices(device: torch.device) -> dict[str, torch.Tensor]:
    half = torch.tensor([int(word) for word in _COSINES.split()]).view(8, 4)
    signs = torch.tensor([1, -1] * 4)[:, None]
    values = {
        "cosines": torch.cat([half, signs * half.flip(1)], 1),
        "to_ycc": torch.tensor(_TO_YCC),
        "to_ycc_shift": torch.tensor(_TO_YCC_SHIFT)[:, None],
        "to_rgb": torch.tensor(_TO_RGB),
        "to_rgb_shift": torch.tensor(2**15),
    }
    return {name: value.double().to(device) for name, value in values.items()}


@lru_cache(maxsize=64)
def _steps(quality: int, blocks: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """The step of every coefficient, horizontal frequency first, for so many blocks of light and of colour."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    tables = []
    for words, count in zip((_LUMINANCE, _CHROMINANCE), blocks, strict=False):
        table = torch.tensor([int(word) for word in words.split()]).view(8, 8).T
        tables.append(((table * scale + 50) // 100).clamp(1, 255).expand(count, 8, 8))
    return torch.cat(tables).double().to(device)


def _sums(matrix: torch.Tensor, planes: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Weighted sums of planes, in 2¹⁶ths, rounded."""
    sums = (matrix @ planes.flatten(2)).add_(shift).div_(2**16).floor_()
    return sums.view(len(planes), -1, *planes.shape[2:])


def _halved(planes: torch.Tensor) -> torch.Tensor:
    """Means of 2×2 pixels; what is just between two numbers goes down and up in turn."""
    pairs = planes[..., 0::2, :] + planes[..., 1::2, :]
    sums = pairs[..., 0::2] + pairs[..., 1::2]
    turn = torch.arange(sums.shape[-1], device=sums.device) % 2 + 1
    return sums.add_(turn).div_(4).floor_()


def _doubled(planes: torch.Tensor) -> torch.Tensor:
    """Twice the resolution: weights 9, 3, 3 and 1 of the four nearest pixels, unless there are too few of them."""
    if planes.shape[-1] <= 2:
        return planes.repeat_interleave(2, 2).repeat_interleave(2, 3)
    around = F.pad(planes, (1, 1, 1, 1), mode="replicate")
    middle = 3 * around[..., 1:-1, :]
    rows = torch.stack([middle + around[..., :-2, :], middle + around[..., 2:, :]], 3).flatten(2, 3)
    middle = 3 * rows[..., 1:-1]
    both = torch.stack([middle + rows[..., :-2] + 8, middle + rows[..., 2:] + 7], 4).flatten(3, 4)
    return both.div_(16).floor_()


def _through_blocks(planes: list[torch.Tensor], quality: int) -> list[torch.Tensor]:
    """Transform planes (B, C, H, W) in blocks of 8×8, round the coefficients to their steps, and transform back."""
    shapes = []
    parts = []
    for plane in planes:
        height, width = plane.shape[2:]
        plane = F.pad(plane, (0, -width % 8, 0, -height % 8), mode="replicate") - 128
        split = plane.unflatten(3, (-1, 8)).unflatten(2, (-1, 8)).transpose(3, 4)
        shapes.append((split.shape, height, width))
        parts.append(split.flatten(1, 3))
    counts = tuple(part.shape[1] for part in parts)
    cosines, step = _matrices(planes[0].device)["cosines"], _steps(quality, counts, planes[0].device)
    found = _rounded(_rounded(torch.cat(parts, 1) @ cosines.T, 11).mT @ cosines.T, 15)  # eight times too large
    kept = found.abs().add_(4 * step).div_(8 * step).floor_().mul_(step).copysign_(found)
    values = _rounded(_rounded(kept @ cosines, 11).mT @ cosines, 18).add_(128).clamp_(0, 255)
    out = []
    for part, (shape, height, width) in zip(values.split(counts, 1), shapes, strict=True):
        out.append(part.view(shape).transpose(3, 4).flatten(4, 5).flatten(2, 3)[..., :height, :width])
    return out


def _rounded(values: torch.Tensor, bits: int) -> torch.Tensor:
    return values.add_(2 ** (bits - 1)).div_(2**bits).floor_()
