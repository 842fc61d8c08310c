"""Losses to measure on: the one a model was trained with, or cross-entropy.

A loss takes logits and targets and gives one number an example, so that a mean over any cut of the data into chunks
is exact. Any function of that kind will do; its name goes into the settings of a figure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from steppe.config import RunConfig

Loss = Callable[[Tensor, Tensor], Tensor]
"""(logits of (B, classes), targets of (B,)) -> the loss of each example, (B,)."""


@dataclass(frozen=True)
class ClassLoss:
    """Cross-entropy, or the sum of a sigmoid's over the classes, with or without smoothed labels."""

    sigmoid: bool = False
    label_smoothing: float = 0.0

    @property
    def name(self) -> str:
        """What the settings of a figure call it."""
        kind = "sigmoid" if self.sigmoid else "cross-entropy"
        return f"{kind}, label smoothing {self.label_smoothing:g}" if self.label_smoothing else kind

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of each example, in float32 or, for float64 logits, in float64.

        Args:
            logits: (B, classes).
            targets: labels (B,), or probabilities (B, classes).
        """
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if not self.sigmoid:
            targets = targets if targets.ndim == 1 else targets.to(logits.dtype)
            return F.cross_entropy(logits, targets, reduction="none", label_smoothing=self.label_smoothing)
        classes = logits.shape[1]
        wanted = F.one_hot(targets, classes) if targets.ndim == 1 else targets
        wanted = wanted.to(logits.dtype) * (1 - self.label_smoothing) + self.label_smoothing / classes
        return F.binary_cross_entropy_with_logits(logits, wanted, reduction="none").sum(1)


CROSS_ENTROPY = ClassLoss()


def trained_loss(config: RunConfig) -> ClassLoss:
    """The loss a run was trained with, on plain labels.

    Args:
        config: the run's; its `sigmoid_loss` and `label_smoothing` are read.
    """
    return ClassLoss(sigmoid=config.sigmoid_loss, label_smoothing=config.label_smoothing)


def loss_name(loss: Loss) -> str:
    """What to call a loss in the settings of a figure."""
    return str(getattr(loss, "name", None) or getattr(loss, "__name__", None) or type(loss).__name__)
