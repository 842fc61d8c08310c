"""Probabilities that mean what they say: temperature scaling (Guo et al. 2017, arXiv:1706.04599, section 4.2).

A network's logits z are divided by one number T before the softmax, p = softmax(z / T). T is the one that gives the
validation images the least mean −log p(label). In β = 1/T that is a convex function, with the derivative
mean(Σ_c p_c z_c − z_label), whose root is found by Brent's method. No answer changes, only how sure it is.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from scipy.optimize import brentq
from torch import Tensor

from steppe import data
from steppe.data import DATASETS, Progress, find_named, in_order
from steppe.deploy.trained import Trained
from steppe.errors import ConfigError, DataError, RunError
from steppe.evaluate.scores import BINS, predict, score
from steppe.measuring import in_smaller_chunks
from steppe.plain_files import open_plain
from steppe.runs import OUT_OF_FOLD, Run
from steppe.studies.subjects import load_learned
from steppe.train.probe import read_out_of_fold

FILE = "calibration.json"
LEAST, MOST = 1e-3, 1e2
"""Temperatures are looked for in this range."""


@dataclass(frozen=True)
class Calibration:
    """How a network's logits become probabilities, and how well that does on the images it was fitted on."""

    temperature: float
    examples: int
    before: Mapping[str, float]
    """nll and ece at temperature 1."""
    after: Mapping[str, float]
    weights_sha256: str
    standard_error: float | None = None
    """Of the temperature, from how many validation images there are; see `temperature_error`."""
    why_not: str | None = None
    """Why no temperature could be fitted, in which case it is 1."""
    split: str = "val"

    @property
    def words(self) -> str:
        """What was found, in a line."""
        nll, ece = (f"{self.before[key]:.4f} → {self.after[key]:.4f}" for key in ("nll", "ece"))
        error = f" ± {self.standard_error:.2g}" if self.standard_error else ""
        return f"temperature {self.temperature:.3f}{error} from {self.examples} validation images: NLL {nll}, ECE {ece}"

    def as_json(self) -> dict[str, Any]:
        """What calibration.json holds."""
        return {
            "temperature": self.temperature,
            "standard_error": self.standard_error,
            "split": self.split,
            "examples": self.examples,
            "before": dict(self.before),
            "after": dict(self.after),
            "ece_bins": BINS,
            "weights_sha256": self.weights_sha256,
            "why_not": self.why_not,
        }


def read_calibration(about: Mapping[str, Any]) -> Calibration | None:
    """Read what `Calibration.as_json` gave; None where it is damaged.

    Args:
        about: the content of calibration.json.
    """
    try:
        found = Calibration(
            temperature=float(about["temperature"]),
            examples=int(about["examples"]),
            before={key: float(about["before"][key]) for key in ("nll", "ece")},
            after={key: float(about["after"][key]) for key in ("nll", "ece")},
            weights_sha256=str(about["weights_sha256"]),
            standard_error=None if about["standard_error"] is None else float(about["standard_error"]),
            why_not=None if about["why_not"] is None else str(about["why_not"]),
            split=str(about["split"]),
        )
    except (KeyError, TypeError, ValueError):
        return None
    return found if math.isfinite(found.temperature) and found.temperature > 0 else None


def fit_temperature(logits: Tensor, labels: Tensor) -> float | None:
    """The temperature of the least mean −log p(label); None where every answer is right, as it would be zero.

    Args:
        logits: (N, classes).
        labels: (N,).
    """
    z = logits.double().cpu()
    right = z.gather(1, labels.cpu()[:, None])[:, 0]
    if bool((right >= z.amax(1)).all()):
        return None

    def slope(log_beta: float) -> float:
        p = (z * math.exp(log_beta)).softmax(1)
        return float(((p * z).sum(1) - right).mean())

    low, high = -math.log(MOST), -math.log(LEAST)
    if slope(low) >= 0:
        return MOST
    if slope(high) <= 0:
        return LEAST
    return math.exp(-float(brentq(slope, low, high, xtol=1e-10)))


def temperature_error(logits: Tensor, temperature: float) -> float | None:
    """The standard error of a fitted temperature, T² / √(Σ over images of Var_p(z)); None where it is not finite.

    The sum is the Fisher information of β = 1/T: −log p has the second derivative Var_p(z) in it.

    Args:
        logits: (N, classes), on which it was fitted.
        temperature: what was found.
    """
    z = logits.double().cpu()
    p = (z / temperature).softmax(1)
    information = float(((p * z.square()).sum(1) - (p * z).sum(1).square()).sum())
    error = temperature**2 / math.sqrt(information) if information > 0 else math.inf
    return error if math.isfinite(error) else None


def calibrate(logits: Tensor, labels: Tensor, weights_sha256: str) -> Calibration:
    """Fit a temperature to answers on validation images and say what it does there.

    Args:
        logits: (N, classes).
        labels: (N,).
        weights_sha256: of the weights that gave them.
    """
    found = fit_temperature(logits, labels)
    before, after = (score(logits.double() / t, labels) for t in (1.0, found or 1.0))
    why_not = None
    if found is None:
        why_not = f"all {len(labels)} validation images are answered right, so they do not tell how sure to be"
    return Calibration(
        temperature=found or 1.0,
        examples=len(labels),
        before={key: before[key] for key in ("nll", "ece")},
        after={key: after[key] for key in ("nll", "ece")},
        weights_sha256=weights_sha256,
        standard_error=None if found is None else temperature_error(logits, found),
        why_not=why_not,
    )


def get_calibration(
    trained: Trained,
    *,
    data_root: str | Path | None = None,
    batch_size: int = 512,
    make: bool = True,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Calibration | str:
    """The calibration of a network: that of its folder, else fitted on its validation images and kept there.

    Args:
        trained: the network.
        data_root: where named data sets live.
        batch_size: images at a time; fewer where memory runs out.
        make: fit one where there is none; otherwise only a kept one is taken.
        progress: told how slow parts go.
        say: told what the user should know.

    Returns:
        The calibration, or why there is none, in words.
    """
    if trained.run is None:
        kept = (trained.exported or {}).get("calibration")
        found = read_calibration(kept) if isinstance(kept, dict) else None
        return _unless_impossible(found) if found else "it was exported without a calibration"
    digest = _sha256(trained.weights)
    found = read_calibration(trained.run.read_or_empty(FILE))
    if found is not None and found.weights_sha256 == digest:
        return _unless_impossible(found)
    if not make:
        return "the run has no calibration yet"
    if (trained.run.path / OUT_OF_FOLD).is_file():  # it has learned its validation images
        return _keep(calibrate(*read_out_of_fold(trained.run.path), digest), trained.run, say)
    if not trained.run.config.validates:
        return "it learned its validation images, so they do not tell how sure to be"
    dataset = _load(trained, data_root, progress)
    if isinstance(dataset, str):
        return dataset

    def answer(size: int) -> tuple[Tensor, Tensor]:
        def batches() -> Any:
            done = 0
            for images, labels in in_order(dataset.val, dataset, batch_size=size, device=trained.device):
                yield images, labels
                done += len(labels)
                if progress:
                    progress("calibrating", done, len(dataset.val))

        return predict(trained.model, batches())

    logits, labels = in_smaller_chunks(answer, batch_size)
    if not bool(torch.isfinite(logits).all()):
        return "its answers on the validation images are not finite numbers"
    return _keep(calibrate(logits, labels, digest), trained.run, say)


def _keep(found: Calibration, run: Run, say: Callable[[str], None]) -> Calibration | str:
    try:
        with run.lock():
            run.write(FILE, found.as_json())
    except RunError as error:
        say(f"the calibration could not be kept in the run folder: {error.what}")
    if found.why_not is None:
        say(f"calibrated: {found.words}")
    return _unless_impossible(found)


def _unless_impossible(found: Calibration) -> Calibration | str:
    return found if found.why_not is None else found.why_not


def _load(trained: Trained, data_root: str | Path | None, progress: Progress | None) -> data.Dataset | str:
    """Read the run's data, or say why they are not at hand; nothing is downloaded."""
    assert trained.run is not None
    config = trained.run.config.data
    root = data.data_root(data_root)
    if config.name in DATASETS and find_named(config.name, root) is None:
        return f"its validation images are needed, and {config.name} is not in {root}"
    try:
        dataset = load_learned(trained.run, root, progress)
    except (DataError, ConfigError) as error:
        return f"its validation images cannot be had: {error.what}"
    if not len(dataset.val):
        return "it has no validation images"
    return dataset


def _sha256(path: Path) -> str:
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
