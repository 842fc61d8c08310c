"""JPEG compression of batches, by Pillow on the CPU."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image


def compress(images: torch.Tensor, quality: int) -> torch.Tensor:
    """Encode images as JPEG and decode them again, one at a time on the CPU.

    Args:
        images: uint8, (B, C, H, W) of one or three channels, on any device.
        quality: 1 to 100.
    """
    pixels = images.permute(0, 2, 3, 1).cpu().numpy()
    decoded = np.empty_like(pixels, order="C")
    for image, out in zip(pixels, decoded, strict=True):
        buffer = io.BytesIO()
        Image.fromarray(image.squeeze(2) if image.shape[2] == 1 else image).save(buffer, "JPEG", quality=quality)
        with Image.open(buffer) as opened:
            out[:] = np.asarray(opened).reshape(image.shape)
    return torch.from_numpy(decoded).permute(0, 3, 1, 2).contiguous().to(images.device)
