"""Top-1 accuracy and mean cross-entropy of a model on a split."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

import torch
import torch.nn.functional as F
from torch import nn

from steppe.data import Dataset, Split, in_order
from steppe.measuring import ignore


class Accuracy(TypedDict):
    """What `measure_accuracy` finds."""

    loss: float
    accuracy: float
    examples: int


@torch.no_grad()
def measure_accuracy(
    model: nn.Module,
    split: Split,
    dataset: Dataset,
    *,
    device: torch.device,
    batch_size: int = 1024,
    workers: int = 0,
    tell: Callable[[int], None] = ignore,
) -> Accuracy:
    """Measure a model in evaluation mode; it is left in the mode it was found in.

    Args:
        model: on `device`.
        split: the images to measure on.
        dataset: whose statistics normalise them.
        device: where to compute.
        batch_size: images at a time.
        workers: processes that read images which are not in memory.
        tell: takes the number of images done, after each batch.
    """
    training = model.training
    model.eval()
    loss, correct, done = torch.zeros((), dtype=torch.float64), 0, 0
    try:
        for images, labels in in_order(split, dataset, batch_size=batch_size, device=device, workers=workers):
            logits = model(images).float()
            loss += F.cross_entropy(logits, labels, reduction="sum").double().cpu()
            correct += int((logits.argmax(1) == labels).sum())
            done += len(labels)
            tell(done)
    finally:
        model.train(training)
    return {"loss": loss.item() / len(split), "accuracy": correct / len(split), "examples": len(split)}
