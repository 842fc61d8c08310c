"""Changing the resolution of a batch: bilinear, with the triangle widened where pixels become fewer (antialias)."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def resize(images: torch.Tensor, size: int) -> torch.Tensor:
    """Bring a batch of square images to `size`×`size`, as floats on the images' own scale."""
    side = images.shape[-1]
    if side == size:
        return images.float()
    if images.device.type == "cpu":  # there, matrix products are several times faster than `interpolate`
        matrix = _weights(torch.zeros(()), torch.tensor(float(side)), side, size)
        return matrix @ images.float() @ matrix.T
    return F.interpolate(images.float(), size=(size, size), mode="bilinear", antialias=size < side, align_corners=False)


def resize_boxes(
    images: torch.Tensor, box: torch.Tensor, size: int, mirrored: torch.Tensor | None = None
) -> torch.Tensor:
    """Cut a box of its own out of every image and bring it to `size`×`size`: two matrix products, no loop.

    Along each axis, output pixel i weighs input pixel j by the triangle max(0, 1 - |j + ½ - c_i| / s), where
    c_i = start + (i + ½) · length / size and s = max(1, length / size), over the box's own pixels and summing to 1.

    Args:
        images: (B, C, H, W), square.
        box: (B, 4), top, left, height and width in whole pixels.
        size: side of the result.
        mirrored: (B,) of bool, which results to mirror.
    """
    corner, length = box.float().split(2, 1)
    rows, columns = _weights(corner.T, length.T, images.shape[-1], size)
    if mirrored is not None:
        columns = torch.where(mirrored[:, None, None], columns.flip(1), columns)
    return rows[:, None] @ images.float() @ columns.transpose(1, 2)[:, None]


def _weights(start: torch.Tensor, length: torch.Tensor, inputs: int, outputs: int) -> torch.Tensor:
    """The weights (…, outputs, inputs) of one axis for every start and length."""
    start, length = start[..., None, None], length[..., None, None]
    step = length / outputs
    centre = start + (torch.arange(outputs, device=start.device)[:, None] + 0.5) * step
    pixel = torch.arange(inputs, device=start.device) + 0.5
    weight = (1 - (pixel - centre).abs() / step.clamp_min(1)).clamp_min(0)
    weight = weight * ((pixel > start) & (pixel < start + length))
    return weight / weight.sum(-1, keepdim=True)
