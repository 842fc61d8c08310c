"""Top-1 accuracy and mean cross-entropy of a model on a split."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steppe.data import Dataset, Split, in_order
from steppe.measuring import ignore

CACHED_PIXELS = 2**16
"""Pixels of a batch whose activations stay in a CPU's cache, about: 64 images of 32 px."""
LEAST_IMAGES = 8
"""So many at a time in any case: at 224 px EfficientNet-Lite0 takes 10 ms an image with 8, and 18 with 32."""


def suit_batch(batch_size: int, side: int, device: torch.device) -> int:
    """Images to answer at a time: on a CPU no more than its cache is good for, which may take a third of the time.

    Args:
        batch_size: the most.
        side: of an image, in pixels.
        device: where to compute.
    """
    return min(batch_size, max(LEAST_IMAGES, CACHED_PIXELS // side**2)) if device.type == "cpu" else batch_size


class Accuracy(TypedDict):
    """What `measure_accuracy` finds."""

    loss: float
    accuracy: float
    examples: int


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
        batch_size: images at a time, at the most.
        workers: processes that read images which are not in memory.
        tell: takes the number of images done, after each batch.
    """
    size = suit_batch(batch_size, dataset.image_size, device)
    return measure_batches(model, in_order(split, dataset, batch_size=size, device=device, workers=workers), tell)


@torch.no_grad()
def measure_batches(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], tell: Callable[[int], None] = ignore
) -> Accuracy:
    """Measure a model in evaluation mode on batches from anywhere; it is left in the mode it was found in.

    Args:
        model: on the batches' device.
        batches: what it sees, with the labels.
        tell: takes the number of examples done, after each batch.
    """
    training = model.training
    model.eval()
    loss, correct, done = torch.zeros((), dtype=torch.float64), 0, 0
    try:
        for inputs, labels in batches:
            logits = model(inputs).float()
            loss += F.cross_entropy(logits, labels, reduction="sum").double().cpu()
            correct += int((logits.argmax(1) == labels).sum())
            done += len(labels)
            tell(done)
    finally:
        model.train(training)
    return {"loss": loss.item() / done, "accuracy": correct / done, "examples": done}
