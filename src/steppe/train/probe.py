"""A probe: a linear head on frozen pretrained features, solved as a logistic regression.

The features of every image are computed once. The penalty comes from cross-validation, which also tells how accurate
the head is on images it has not learned. So a probe may learn from the validation images, too
(`data.learn_from_val`): its validation figures are then those of cross-validation, and the answers on images that were
left out stay beside the weights, for calibration.
"""

from __future__ import annotations

import copy
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from steppe.config import RunConfig
from steppe.data import Dataset, Keeping, Split, take_about
from steppe.errors import RunError
from steppe.evaluate import Augmented, measure_accuracy
from steppe.models import fold_batchnorm, place
from steppe.plain_files import check_plain
from steppe.runs import OUT_OF_FOLD, Observer, Run, write_atomically
from steppe.train.checkpoint import save_weights
from steppe.train.ends import interrupted
from steppe.train.feature_cache import FeatureCache, find_head, make_extractors
from steppe.train.logistic import FOLDS, PENALTIES, CrossValidation, Head, cross_validate, fit_head
from steppe.train.setup import build_model


class Probe:
    """The making of one probe."""

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
        """Build the network; see `steppe.train.train` for the arguments."""
        self.run, self.config, self.dataset, self.device = run, config, dataset, device
        self.observer, self.stop, self.keeping = observer, stop, keeping or Keeping()
        self.validation_only = val_examples is not None
        self.val = take_about(dataset.val, val_examples or len(dataset.val), config.data.split_seed)
        self.model = build_model(config, dataset).eval()
        self.head = find_head(self.model, config.model.name)
        self.total = len(dataset.train) + len(self.val)
        self.total *= len(config.model.name.split("+")) * (2 if config.augment.flip else 1)
        self.done = 0

    def complete(self) -> None:
        """Compute features, solve for the head, then write the weights and the summary."""
        began = time.perf_counter()
        self.observer.start(self.run, 1.0, 0.0)
        extractors = make_extractors(
            self.model, self.config, self.device, self.dataset.channels, self.dataset.image_size
        )
        cache = FeatureCache(
            extractors,
            self.dataset,
            self.device,
            self.keeping.cache,
            workers=self.keeping.workers,
            tell=self._count,
            say=self.observer.say,
        )
        own, val = self._features(cache, self.dataset.train), self._features(cache, self.val)
        features_s = time.perf_counter() - began
        learned, labels = own, self.dataset.train.labels.to(self.device)
        learns_from_val = self.config.data.learn_from_val
        if learns_from_val:
            learned = [torch.cat([a, b]) for a, b in zip(own, val, strict=True)]
            labels = torch.cat([labels, self.val.labels.to(self.device)])
        found, head = self._solve(learned, labels, [one.width for one in extractors])
        self._put(head)
        seconds = time.perf_counter() - began
        judged = (found.logits, labels.cpu()) if learns_from_val else (head(val[0]).cpu(), self.val.labels)
        self._record(seconds, _score(head(own[0]).cpu(), self.dataset.train.labels), _score(*judged))
        if learns_from_val:
            answers = {"logits": found.logits.contiguous(), "labels": labels.cpu()}
            write_atomically(self.run.path / OUT_OF_FOLD, save(answers))
        about = {
            "penalty": found.penalty,
            "cross_validation": {
                "accuracy": found.accuracy,
                "loss": found.loss,
                "standard_error": found.error,
                "examples": len(found.logits),
                "folds": FOLDS,
            },
            "features_s": features_s,
            "solve_s": seconds - features_s,
        }
        self._finish(seconds, about)

    def _features(self, cache: FeatureCache, split: Split) -> list[Tensor]:
        """Return the features of a split, and where images are mirrored those of the mirrored ones."""
        views = (False, True) if self.config.augment.flip else (False,)
        return [cache.features(split, mirrored=view).to(self.device) for view in views]

    def _solve(self, views: list[Tensor], labels: Tensor, widths: list[int]) -> tuple[CrossValidation, Head]:
        """Choose the penalty on the images as they are, then learn them and their mirror images."""
        classes, given = len(self.dataset.classes), self.config.model.penalty
        penalties = PENALTIES if given is None else (given,)
        seed, pause = self.config.seed, self._stop_if_requested
        found = cross_validate(views[0], labels, classes, penalties=penalties, seed=seed, widths=widths, pause=pause)
        return found, fit_head(torch.cat(views), labels.repeat(len(views)), classes, found.penalty, widths=widths)

    @torch.no_grad()
    def _put(self, head: Head) -> None:
        self.head.weight.copy_(head.weight)
        self.head.bias.copy_(head.bias)

    def _count(self, images: int) -> None:
        self.done += images
        self.observer.step(min(1.0, self.done / self.total))
        self._stop_if_requested()

    def _stop_if_requested(self) -> None:
        if self.stop.is_set():
            raise interrupted(self.run, 0, self.done / self.total, 1.0)

    def _record(self, seconds: float, train: dict[str, Any], val: dict[str, Any]) -> None:
        self.val_found, self.train_found = val, train
        record = {
            "epoch": 1,
            "steps": 0,
            "gradient_evaluations": 0.0,
            "time_s": seconds,
            "lr": 0.0,
            "rho": None,
            "train_loss": train["loss"],
            "train_accuracy": train["accuracy"],
            "val_loss": val["loss"],
            "val_accuracy": val["accuracy"],
        }
        if not self.run.metrics():  # a kill may have come after it
            self.run.append_metrics(record)
        self.observer.epoch(record)

    def _finish(self, seconds: float, about: dict[str, Any]) -> None:
        found: dict[str, Any] = {"val": self.val_found, "train": self.train_found}
        if not self.validation_only:
            side = self.dataset.image_size
            folded = fold_batchnorm(copy.deepcopy(self.model), (self.dataset.channels, side))
            place(folded, self.device, side)
            total = len(self.dataset.test)

            def tell(done: int) -> None:
                self.observer.evaluate(done, total)
                self._stop_if_requested()

            found["test"] = measure_accuracy(folded, self.dataset.test, self.dataset, device=self.device, tell=tell)
            if views := self.config.test.tta:
                augmented = Augmented(folded, views)
                again = measure_accuracy(augmented, self.dataset.test, self.dataset, device=self.device)
                found["test_tta"] = {**again, "views": views}
        save_weights(self.run.weights, self.model.state_dict())
        summary = {
            "status": "finished",
            "config_sha256": self.run.config_sha256,
            "epochs": 1.0,
            "steps": 0,
            "gradient_evaluations": 0.0,
            "time_s": seconds,
            "time_per_epoch_s": about["features_s"],
            **found,
            "probe": about,
            "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        if self.device.type == "cuda":
            summary["peak_memory_mib"] = torch.cuda.max_memory_allocated(self.device) / 2**20
        self.run.write("summary.json", summary)


def _score(logits: Tensor, labels: Tensor) -> dict[str, Any]:
    loss = torch.nn.functional.cross_entropy(logits, labels).item()
    accuracy = (logits.argmax(1) == labels).float().mean().item()
    return {"loss": loss, "accuracy": accuracy, "examples": len(labels)}


def read_out_of_fold(folder: Path) -> tuple[Tensor, Tensor]:
    """Read logits and labels of all images a probe learned, each answered while it was left out.

    Args:
        folder: of the run; the validation images come last.

    Raises:
        RunError: they are not there, or damaged.
    """
    path = folder / OUT_OF_FOLD
    try:
        check_plain(path)
        found = load_file(path)
        return found["logits"], found["labels"]
    except (OSError, SafetensorError, KeyError) as error:
        raise RunError(f"the answers cannot be read: {error}", where=str(path), fix="make the run again") from None
