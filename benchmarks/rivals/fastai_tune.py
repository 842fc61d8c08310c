"""Rival: fastai's `vision_learner(...).fine_tune` with timm's network, as its book and its quick start do it.

It runs in an environment of its own, where fastai is installed.
"""

from __future__ import annotations

import random
import time
from typing import Any

import torch
import torch.nn.functional as F
from common import MOST_EPOCHS, Task
from fastai.vision.all import (
    Callback,
    CategoryBlock,
    DataBlock,
    DataLoaders,
    ImageBlock,
    Normalize,
    Resize,
    aug_transforms,
    get_image_files,
    parent_label,
    set_seed,
    vision_learner,
)

LEAST_EPOCHS = 3
"""One of the head alone and two of everything; with fewer a smaller size is chosen."""
BATCH = 64


class FirstEpoch(Callback):
    """Notes when the first epoch was over."""

    def __init__(self, task: Task) -> None:
        """Nothing is over yet."""
        self.task, self.over_s = task, 0.0

    def after_train(self) -> None:
        """Note the time, once."""
        self.over_s = self.over_s or self.task.spent_s


def read(task: Task, files: list[Any], name: str, size: int) -> DataLoaders:
    """Make loaders of all these files; one of them is the validation set, which decides nothing."""
    about = task.about(name)
    block = DataBlock(
        blocks=(ImageBlock, CategoryBlock),
        get_y=parent_label,
        splitter=lambda items: (list(range(len(items))), [0]),
        item_tfms=Resize(size),
        batch_tfms=[*aug_transforms(size=size, min_scale=0.75), Normalize.from_stats(about["mean"], about["std"])],
    )
    return block.dataloaders(files, bs=BATCH, num_workers=task.workers, device=task.device)


def time_image(network: torch.nn.Module, loaders: DataLoaders) -> float:
    """Seconds of training for an image, its reading included, by a few batches after the first."""
    network.train()
    ends = []
    for _, (x, y) in zip(range(3), loaders.train, strict=False):
        F.cross_entropy(network(x.as_subclass(torch.Tensor)), y.as_subclass(torch.Tensor)).backward()
        if x.device.type == "cuda":
            torch.cuda.synchronize()
        ends.append(time.perf_counter())
    return (ends[-1] - ends[0]) / (len(ends) - 1) / BATCH


def main() -> None:
    task = Task(__doc__)
    set_seed(task.seed)

    def step(network: torch.nn.Module, images: torch.Tensor) -> None:
        network.train()(images).sum().backward()

    files = get_image_files(task.data / "train")
    name, size = task.choose(LEAST_EPOCHS * len(files), step)
    loaders = read(task, files, name, size)
    classes = len(loaders.vocab)
    epoch_s = len(files) * time_image(task.build(name, classes), loaders)
    fit = max(0.0, task.left_s / epoch_s)
    if fit < 1:  # as many of them as there is time for
        loaders = read(task, random.sample(list(files), max(2 * BATCH, int(fit * len(files)))), name, size)
    first = FirstEpoch(task)
    learner = vision_learner(loaders, lambda pretrained: task.build(name, classes), cbs=first, n_out=classes)
    if task.device.type == "cuda":
        learner = learner.to_fp16()
    epochs = max(1, min(MOST_EPOCHS, int(fit)))
    with learner.no_bar(), learner.no_logging():
        if epochs > 1:
            learner.fine_tune(epochs - 1)
        else:
            learner.fit_one_cycle(1, 2e-3)
        seconds = task.spent_s
        test = loaders.test_dl(get_image_files(task.data / "test"), with_labels=True)
        answers, labels = learner.get_preds(dl=test)
    accuracy = (answers.argmax(1) == labels).float().mean().item()
    how = f"{name} at {size} px, {min(fit, 1) if epochs == 1 else epochs:.2g} epochs"
    task.report(accuracy, len(labels), seconds, first.over_s, how)


if __name__ == "__main__":
    main()
