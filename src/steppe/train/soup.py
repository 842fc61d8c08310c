"""A soup: the average of the weights of several runs that began alike, as one network.

Wortsman et al. 2022, "Model soups: averaging weights of multiple fine-tuned models improves accuracy without increasing
inference time" (arXiv:2203.05482). BatchNorm's statistics belong to weights, so they are taken anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor, nn

from steppe.config import RunConfig
from steppe.data import Dataset, Keeping, in_order, take_about
from steppe.evaluate import measure_accuracy, suit_batch
from steppe.minimizers import reestimate_batchnorm
from steppe.models import place
from steppe.runs import Observer, Run
from steppe.train.checkpoint import save_weights
from steppe.train.ends import interrupted
from steppe.train.setup import build_model

STATISTICS_IMAGES = 1024
"""Training images that BatchNorm's statistics are taken from."""


def settle_statistics(model: nn.Module, dataset: Dataset, seed: int, device: torch.device) -> None:
    """Take BatchNorm's statistics anew from training images as they are, in place.

    Args:
        model: on `device`.
        dataset: whose training images are taken.
        seed: chooses them.
        device: where to compute.
    """
    some = take_about(dataset.train, STATISTICS_IMAGES, seed)
    size = suit_batch(64, dataset.image_size, device)

    def batches() -> Iterator[Tensor]:
        for images, labels in in_order(some, dataset, batch_size=size, device=device):
            if len(labels) > 1:  # of one image there is no deviation
                yield images

    with torch.no_grad():
        reestimate_batchnorm(model, batches())


class Soup:
    """The making of one soup."""

    def __init__(
        self,
        run: Run,
        config: RunConfig,
        dataset: Dataset,
        device: torch.device,
        observer: Observer,
        stop: threading.Event,
        keeping: Keeping | None = None,
        val_examples: int | None = None,
    ) -> None:
        """Build the network with the averaged weights; see `steppe.train.train` for the arguments."""
        self.run, self.config, self.dataset, self.device = run, config, dataset, device
        self.observer, self.stop, self.keeping = observer, stop, keeping or Keeping()
        self.validation_only = val_examples is not None
        self.val = take_about(dataset.val, val_examples or len(dataset.val), config.data.split_seed)
        self.model = place(build_model(config, dataset).eval(), device, dataset.image_size)

    def complete(self) -> None:
        """Take BatchNorm's statistics, judge the network, then write its weights and the summary."""
        began = time.perf_counter()
        self.observer.start(self.run, 1.0, 0.0)
        settle_statistics(self.model, self.dataset, self.config.seed, self.device)
        seconds = time.perf_counter() - began
        some = take_about(self.dataset.train, STATISTICS_IMAGES, self.config.seed)
        found: dict[str, Any] = {"val": self._measure(self.val), "train": self._measure(some)}
        if not self.validation_only:
            found["test"] = self._measure(self.dataset.test)
        record = {
            "epoch": 1,
            "steps": 0,
            "gradient_evaluations": 0.0,
            "time_s": seconds,
            "lr": 0.0,
            "rho": None,
            **{f"{split}_{key}": found[split][key] for split in ("train", "val") for key in ("loss", "accuracy")},
        }
        if not self.run.metrics():  # a kill may have come after it
            self.run.append_metrics(record)
        self.observer.epoch(record)
        save_weights(self.run.weights, self.model.state_dict())
        summary = {
            "status": "finished",
            "config_sha256": self.run.config_sha256,
            "epochs": 1.0,
            "steps": 0,
            "gradient_evaluations": 0.0,
            "time_s": seconds,
            "time_per_epoch_s": seconds,
            **found,
            "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self.run.write("summary.json", summary)

    def _measure(self, images: Any) -> dict[str, Any]:
        found = measure_accuracy(
            self.model, images, self.dataset, device=self.device, workers=self.keeping.workers, tell=self._count
        )
        return {**found, "examples": len(images)}

    def _count(self, images: int) -> None:
        self.observer.step(0.5)
        if self.stop.is_set():
            raise interrupted(self.run, 0, 0.0, 1.0)
