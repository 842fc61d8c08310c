"""What a model's answers are worth: accuracy, per class, calibration, confusion.

Calibration: NLL = mean of -log p(label); Brier = mean over images of Σ_c (p_c - [c is the label])²; ECE (Guo et al.
2017, arXiv:1706.04599) = Σ over bins of confidence, (share of images in the bin) · |accuracy - mean confidence|.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from steppe.measuring import as_found

BINS = 15


@torch.no_grad()
def predict(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The logits (N, classes) and labels (N,) of all batches, on their device; the model is left as it was found."""
    with as_found(model):
        found = [(model(images).float(), labels) for images, labels in batches]
    return torch.cat([logits for logits, _ in found]), torch.cat([labels for _, labels in found])


def score(logits: Tensor, labels: Tensor, *, bins: int = BINS) -> dict[str, Any]:
    """All figures that follow from a model's answers.

    Args:
        logits: (N, classes).
        labels: (N,).
        bins: of the calibration error, of equal width.

    Returns:
        top1, top5 (None with five classes or fewer), per_class (None where a class has no image), nll, brier, ece,
        reliability (for each bin: count, accuracy, confidence) and confusion (rows are labels, columns answers).
    """
    logits = logits.double()
    classes = logits.shape[1]
    log_p = logits.log_softmax(1)
    p = log_p.exp()
    answers = logits.argmax(1)
    hits = answers == labels
    confusion = torch.bincount(labels * classes + answers, minlength=classes**2).view(classes, classes)
    counts = confusion.sum(1)
    shares = (confusion.diagonal().double() / counts.clamp_min(1)).tolist()
    wanted = torch.nn.functional.one_hot(labels, classes)
    ece, reliability = calibration_error(p.amax(1), hits, bins=bins)
    return {
        "top1": hits.double().mean().item(),
        "top5": _top(logits, labels, 5) if classes > 5 else None,
        "per_class": [share if count else None for share, count in zip(shares, counts.tolist(), strict=True)],
        "nll": -log_p.gather(1, labels[:, None]).mean().item(),
        "brier": (p - wanted).square().sum(1).mean().item(),
        "ece": ece,
        "ece_bins": bins,
        "reliability": reliability,
        "confusion": confusion.tolist(),
        "examples": len(labels),
    }


def calibration_error(
    confidence: Tensor, hits: Tensor, *, bins: int = BINS
) -> tuple[float, list[dict[str, float | int | None]]]:
    """The expected calibration error over bins (k/bins, (k+1)/bins] of confidence, and what each bin holds.

    Args:
        confidence: (N,), the probability of the answer.
        hits: (N,) of bool, whether the answer is right.
        bins: how many, of equal width.
    """
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1
    count = torch.bincount(place, minlength=bins)
    sure = torch.bincount(place, weights=confidence.double(), minlength=bins)
    right = torch.bincount(place, weights=hits.double(), minlength=bins)
    error = (right - sure).abs().sum().item() / len(confidence)
    rows: list[dict[str, float | int | None]] = [
        {"count": n, "accuracy": r / n if n else None, "confidence": s / n if n else None}
        for n, r, s in zip(count.tolist(), right.tolist(), sure.tolist(), strict=True)
    ]
    return error, rows


def _top(logits: Tensor, labels: Tensor, k: int) -> float:
    return (logits.topk(k, dim=1).indices == labels[:, None]).any(1).double().mean().item()
