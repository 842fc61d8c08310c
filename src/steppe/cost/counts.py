"""What a model is made of: parameters and floating-point operations."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def count_parameters(model: nn.Module, *, trained: bool = False) -> int:
    """Count the parameters, or only those that are trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trained)


@torch.no_grad()
def count_flops(model: nn.Module, image_shape: tuple[int, int, int]) -> int:
    """Count the operations of one image's forward pass; a multiply-add is two.

    Fused attention on the CPU is invisible to torch's counter, so the plain matrix products stand in for it.

    Args:
        model: on any device; left in the mode it was found in.
        image_shape: (channels, height, width).
    """
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    try:
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, *image_shape, device=device))
    finally:
        model.train(training)
    return int(counter.get_total_flops())
