"""The run that a search has chosen: it alone is shown the test images, once, when nothing is left to decide."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from steppe import models
from steppe.data import Dataset, as_learned, in_order, take_about
from steppe.evaluate import measure_accuracy, predict, suit_batch
from steppe.measuring import ignore, trained_loss
from steppe.runs import Run, write_answers
from steppe.search.mistakes import write_mistakes
from steppe.search.trial import VAL_EXAMPLES
from steppe.studies.groups import answer
from steppe.studies.subjects import Subject, load_model

TIMED = 64
"""Images whose forward passes are timed, in two batches or more, of which the first warms up."""


def count_images(dataset: Dataset) -> int:
    """How many images the evaluation of the chosen run takes, at the most."""
    return len(dataset.test) + len(dataset.val) + min(len(dataset.train), VAL_EXAMPLES)


def evaluate_chosen(
    run: Run, dataset: Dataset, device: torch.device, *, most: float = math.inf, tell: Callable[[int], None] = ignore
) -> None:
    """Add to a trial's summary what an ordinary run has: `test`, and `train` of about a thousand images.

    Where trials are compared by a share of the validation images, `val` stays what it was compared by, and `val_all`
    is of all. A run that has its test accuracy is left as it is.

    Args:
        run: a finished one.
        dataset: its data.
        device: where to compute.
        most: images that there is time for. The test images come first, about a thousand of them in any case.
        tell: takes the number of images done, now and then.
    """
    known = run.summary
    if "test" in known:
        return
    dataset = as_learned(dataset, run.read_or_empty("data.json"))
    seed = run.config.data.split_seed
    count = int(min(len(dataset.test), max(most, VAL_EXAMPLES)))
    shown = replace(dataset, test=take_about(dataset.test, count, seed))
    model = _load_quick(run, dataset, device)
    confidences: list[Tensor] = []
    hook = model.register_forward_hook(
        lambda module, args, logits: confidences.append(logits.float().softmax(1).amax(1))
    )
    said = answer(Subject(run.path, model, shown, trained_loss(run.config), device), tell=tell)
    hook.remove()
    hits, nll = said.hits.mean(), said.nll.astype(float).mean()
    found: dict[str, Any] = {"test": {"loss": float(nll), "accuracy": float(hits), "examples": len(said.nll)}}
    left = most - len(shown.test)
    for name, split in (
        ("val_all", dataset.val if known["val"] and known["val"]["examples"] < len(dataset.val) else None),
        ("train", take_about(dataset.train, VAL_EXAMPLES, seed)),
    ):
        if split is not None and name not in known and len(split) <= left:
            found[name] = measure_accuracy(model, split, dataset, device=device, batch_size=512, tell=tell)
            left -= len(split)
    with run.lock():
        if len(shown.test) == len(dataset.test):
            write_answers(run.path, said)
        write_mistakes(run, shown, said, torch.cat(confidences).cpu().numpy())
        run.write("summary.json", {**known, **found})


def time_forward(run: Run, dataset: Dataset, device: torch.device) -> float:
    """Seconds that a forward pass takes for an image, by some of the validation images."""
    model = _load_quick(run, dataset, device)
    split = dataset.val.take(torch.arange(min(len(dataset.val), TIMED)))
    size = suit_batch(TIMED // 2, dataset.image_size, device)
    ends, counts = [time.monotonic()], [0]
    for images, labels in in_order(split, dataset, batch_size=size, device=device):
        predict(model, [(images, labels)])[0].cpu()
        ends.append(time.monotonic())
        counts.append(counts[-1] + len(labels))
    first = 1 if len(ends) > 2 else 0
    return (ends[-1] - ends[first]) / (counts[-1] - counts[first])


def _load_quick(run: Run, dataset: Dataset, device: torch.device) -> nn.Module:
    """Load a network for answering alone."""
    side = dataset.image_size
    return models.place(models.fold_batchnorm(load_model(run, dataset), (dataset.channels, side)), device, side)
