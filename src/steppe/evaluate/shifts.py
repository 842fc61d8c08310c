"""How a model bears up on images it was not trained for: the corruption table, and ImageNet's V2, R and ReaL."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from steppe.data import CORRUPTIONS, Dataset, Variant, corrupted_in_order, find_corrupted, in_order, read_corrupted
from steppe.data.corruptions import EXTRA
from steppe.errors import MeasureError, unknown_name
from steppe.evaluate.scores import predict
from steppe.measuring import ignore, sample

SEVERITIES = (1, 2, 3, 4, 5)


def measure_corruptions(
    model: nn.Module,
    dataset: Dataset,
    *,
    device: torch.device,
    batch_size: int = 1024,
    examples: int | None = None,
    names: Sequence[str] = CORRUPTIONS,
    root: Path | None = None,
    known: dict[str, Any] | None = None,
    keep: Callable[[dict[str, Any]], None] = ignore,
    tell: Callable[[int, int], None] = ignore,
) -> dict[str, Any]:
    """Measure the accuracy under every corruption at every severity: 19 × 5 by default.

    Args:
        model: on `device`; left as it was found.
        dataset: whose test set is corrupted.
        device: where images are corrupted and the model computes.
        batch_size: images at a time.
        examples: how many test images, the same for every model; all by default. Fewer means that published
            files, which hold the whole test set, are not used.
        names: which corruptions.
        root: the data root; a published folder there (CIFAR-10-C, ImageNet-C …) is preferred.
        known: rows of the table that were measured before.
        keep: takes the rows measured so far, after each corruption.
        tell: takes how many corruptions at a severity are done, and of how many.

    Returns:
        table (corruption -> five accuracies), source ("published" or "made here" for each), the mean of each
        corruption, `mean` over all, and `mean_15` over those that count for the published mean, if all were measured.
    """
    if not names:
        raise MeasureError("no corruption is named", fix=f"choose from: {', '.join(CORRUPTIONS)}")
    for name in names:
        if name not in CORRUPTIONS:
            raise unknown_name("corruption", name, CORRUPTIONS)
    if dataset.test.shape[-1] < 4:
        raise MeasureError(f"{dataset.name!r} holds points, not pictures: there is nothing to corrupt")
    whole = examples is None or examples >= len(dataset.test)
    split = dataset.test if whole else dataset.test.take(sample(len(dataset.test), examples or 0).sort().values)
    place = root if whole else None
    published = place is not None and find_corrupted(dataset, place) is not None
    rows: dict[str, Any] = {name: row for name, row in (known or {}).items() if name in names}
    total = len(names) * len(SEVERITIES)
    for name in names:
        if name not in rows:
            found: list[float] = []
            for severity in SEVERITIES:
                found.append(_accuracy(model, dataset, split, name, severity, batch_size, device, place))
                tell(len(rows) * len(SEVERITIES) + len(found), total)
            there = published and place is not None and read_corrupted(dataset, place, name, 1) is not None
            rows[name] = {"accuracy": found, "source": "published" if there else "made here"}
            keep(rows)
    means = {name: statistics.fmean(rows[name]["accuracy"]) for name in names}
    counted = [means[name] for name in CORRUPTIONS if name not in EXTRA and name in means]
    return {
        "table": {name: rows[name]["accuracy"] for name in names},
        "source": {name: rows[name]["source"] for name in names},
        "means": means,
        "mean": statistics.fmean(means.values()),
        "mean_15": statistics.fmean(counted) if len(counted) == len(CORRUPTIONS) - len(EXTRA) else None,
        "examples": len(split),
    }


def _accuracy(
    model: nn.Module,
    dataset: Dataset,
    split: Any,
    name: str,
    severity: int,
    batch_size: int,
    device: torch.device,
    root: Path | None,
) -> float:
    batches = corrupted_in_order(split, dataset, name, severity, batch_size=batch_size, device=device, root=root)
    logits, labels = predict(model, batches)
    return (logits.argmax(1) == labels).double().mean().item()


@torch.no_grad()
def measure_variant(
    model: nn.Module, variant: Variant, dataset: Dataset, *, device: torch.device, batch_size: int = 256
) -> dict[str, Any]:
    """Measure the top-1 accuracy on another test set of the same classes.

    Args:
        model: on `device`; left as it was found.
        variant: what `load_variant` gave: ImageNet V2, R or ReaL.
        dataset: what the model was trained on, for its statistics.
        device: where to compute.
        batch_size: images at a time.
    """
    logits, labels = predict(model, in_order(variant.split, dataset, batch_size=batch_size, device=device))
    if variant.allowed is not None:
        barred = torch.ones(logits.shape[1], dtype=torch.bool, device=logits.device)
        barred[list(variant.allowed)] = False
        logits = logits.masked_fill(barred, -torch.inf)
    answers = logits.argmax(1)
    if variant.answers is None:
        hits = answers == labels
    else:
        right = variant.answers.to(answers.device)
        hits = right.gather(1, answers[:, None])[:, 0][right.any(1)]
    if not len(hits):
        raise MeasureError("no image of this test set has a right answer")
    return {"top1": hits.double().mean().item(), "examples": len(hits)}
