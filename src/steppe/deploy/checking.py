"""Whether an exported network answers as the one it was made from."""

from __future__ import annotations

import torch
from torch import Tensor

from steppe.deploy.trained import Trained
from steppe.errors import ConfigError

TOLERANCE = 1e-4
"""Logits may differ by so much, as a share of the largest of them where that is above 1."""


def sample_images(trained: Trained, count: int = 3) -> Tensor:
    """Random normalised images for the network, the same every time, on the CPU.

    Args:
        trained: the network.
        count: how many.
    """
    size = trained.images.image_size
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, trained.images.channels, size, size, generator=generator)


def compare(found: Tensor, trained: Trained, images: Tensor, program: str) -> float:
    """The largest difference between another program's logits and the network's own.

    Args:
        found: the other program's logits.
        trained: the network.
        images: what both were asked.
        program: its name, for the error.

    Raises:
        ConfigError: they differ by more than `TOLERANCE`.
    """
    with torch.no_grad():
        own = trained.model_on_cpu()(images).double()
    if found.shape != own.shape:
        raise ConfigError(f"{program} answers with shape {tuple(found.shape)} instead of {tuple(own.shape)}")
    difference = float((found.double() - own).abs().max())
    if not difference <= TOLERANCE * max(1.0, float(own.abs().max())):
        what = f"the exported network answers otherwise in {program}: its logits differ by {difference:.2g}"
        fix = "use another --format, and tell us: this should not happen"
        raise ConfigError(what, where=str(trained.folder), fix=fix)
    return difference
