"""What the examples share: scikit-learn's 8×8 digits and a small network. Seconds on a CPU, nothing to download."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn


def load_data() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test images with their labels."""
    bunch = load_digits()
    x = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16.0
    y = torch.tensor(bunch.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    return (x[train], y[train]), (x[test], y[test])


def make_model() -> nn.Module:
    """Two convolutions with BatchNorm and a linear layer."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Share of right answers, in evaluation mode."""
    model.eval()
    right = (model(x).argmax(dim=1) == y).float().mean()
    model.train()
    return float(right)
