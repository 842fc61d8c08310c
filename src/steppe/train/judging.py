"""How a training is judged: by its validation images after every epoch, by every split once, at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from steppe.data import Split
from steppe.evaluate import Augmented, measure_accuracy, measure_batches, suit_batch
from steppe.measuring import ignore
from steppe.train import contrastive

if TYPE_CHECKING:
    from steppe.train.loop import Training


def measure(training: Training, split: Split, tell: Callable[[int], None] = ignore, *, views: str | None = None) -> Any:
    """Measure loss and accuracy on a split, of the weights that are in place.

    Args:
        training: between two steps.
        split: the images.
        tell: takes the number of images done.
        views: of each image, a name of `steppe.evaluate.VIEWS`, whose mean answer counts.
    """
    model = Augmented(training.model, views) if views else training.model
    size, device = min(1024, 8 * training.config.batch_size), training.device
    with autocast(training):
        if training.features and not views:
            size = suit_batch(size, training.dataset.image_size, device)
            return measure_batches(training.features.head, training.features.of(split, size), tell)
        where: dict[str, Any] = {"device": device, "batch_size": size, "workers": training.keeping.workers}
        return training.ranks.measure(
            split, lambda part: measure_accuracy(model, part, training.dataset, tell=tell, **where)
        )


def measure_contrast(training: Training) -> Any:
    """The contrastive loss on the validation images."""
    temperature, size = training.config.objective.temperature, training.config.batch_size
    assert temperature is not None
    with autocast(training):
        loss = contrastive.measure_contrast(
            training.model,
            training.val,
            training.dataset,
            device=training.device,
            batch_size=size,
            temperature=temperature,
        )
    return {"loss": loss, "accuracy": None}


def measure_splits(training: Training) -> dict[str, Any]:
    """The final evaluation. Ctrl-C is met after a batch; among several processes, after a split.

    A brief one repeats what the last epoch found. Where the run learned the validation images, `val` is None.
    """
    if training.brief:
        if not training.config.validates:
            return {"val": None}
        last = training.run.metrics()[-1]
        return {"val": {**{k: last[f"val_{k}"] for k in ("loss", "accuracy")}, "examples": len(training.val)}}
    dataset, ranks, stop = training.dataset, training.ranks, training.stop
    splits = {"train": dataset.train, "val": dataset.val, "test": dataset.test}
    total, before = sum(map(len, splits.values())), 0
    found: dict[str, Any] = {}

    def tell(done: int) -> None:
        training.observer.evaluate(before + done, total)
        if ranks.count == 1 and stop.is_set():
            training.raise_interrupted()

    for name, split in splits.items():
        if name == "val" and not training.config.validates:
            found[name] = None
            continue
        if ranks.any(stop.is_set()):
            training.raise_interrupted()
        found[name] = measure(training, split, tell)
        before += len(split)
    if views := training.config.test.tta:
        found["test_tta"] = {**measure(training, dataset.test, views=views), "views": views}
    return found


def autocast(training: Training) -> torch.autocast:
    """The precision of the run."""
    return torch.autocast(training.device.type, torch.bfloat16, enabled=training.config.precision == "bfloat16")
