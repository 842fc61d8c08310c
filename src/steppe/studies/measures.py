"""Measures by name: what a claim or a published figure is compared with, read from a run folder.

Short names for what every run has; `config.KEY` for what it was asked to do; `metrics.N.KEY` for its N-th epoch, where
N may also be `first`, `last` or `mean`; and a dotted path into any JSON file that was added to the folder, such as
`geometry.noise_loss.mean` or `robustness.corruptions.mean`. In such a path `first_block`, `middle_block` and
`last_block` are what they say, so that networks of any depth can be compared.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from steppe.config import RunConfig, leaves
from steppe.errors import RunError, nearest
from steppe.runs import Run, find_result

Value = float | str

Own = Mapping[tuple[str, str], tuple[dict[str, Any], Mapping[str, Any]]]
"""(file, measure) -> the settings a study has it measured with, and the measure's defaults."""

SHORT: dict[str, str] = {
    "test_accuracy": "summary.test.accuracy",
    "test_accuracy_tta": "summary.test_tta.accuracy",
    "val_accuracy": "summary.val.accuracy",
    "train_accuracy": "summary.train.accuracy",
    "test_loss": "summary.test.loss",
    "train_loss": "summary.train.loss",
    "time_per_epoch_s": "summary.time_per_epoch_s",
    "compute_per_epoch_s": "cost.training_step.epoch_s",
    "time_s": "summary.time_s",
    "epochs": "summary.epochs",
    "steps": "summary.steps",
    "gradient_evaluations": "summary.gradient_evaluations",
    "peak_memory_mib": "summary.peak_memory_mib",
    "parameters": "cost.parameters",
    "trained_parameters": "cost.trained_parameters",
    "flops_per_image": "cost.flops_per_image",
    "noise_loss": "geometry.noise_loss.mean",
    "lambda_max": "geometry.lambda_max.parts.whole.lambda_max.value",
    "kappa": "geometry.ntk_initial.kappa",
    "weight_norm": "geometry.norms.weights.whole",
    "missing_rate": "geometry.missing_rate.rate",
    "corruption_accuracy": "robustness.corruptions.mean",
    "attacked_accuracy": "robustness.attacks.pgd",
}
"""Short name -> where it stands."""

_DERIVED: dict[str, tuple[str, str]] = {
    "accuracy_gap": ("train_accuracy", "test_accuracy"),
    "loss_gap": ("test_loss", "train_loss"),
    "noise_loss_increase": ("noise_loss", "geometry.noise_loss.clean"),
}
"""Name -> (from what, what is taken off)."""

FILES = ("summary", "cost", "geometry", "robustness", "calibration", "shift", "data", "env", "metrics", "config")
"""What a dotted path may begin with; others are files that a later measure adds."""

_COUNTED = ("parameters", "trained_parameters", "flops_per_image")


def measure_names() -> list[str]:
    """The short names."""
    return [*SHORT, *_DERIVED]


def is_exact(name: str) -> bool:
    """Whether a measure is no matter of chance: it follows from the configuration, so one seed is enough."""
    return name.removeprefix("cost.") in _COUNTED or name.startswith(("config.", "data."))


def is_share(name: str) -> bool:
    """Whether a measure is a share of images, which takes few values where there are few of them."""
    return "accuracy" in name or name.startswith("robustness.") or name == "missing_rate"


def check_name(name: str) -> str | None:
    """Why a name can be no measure, or None where it can."""
    known = measure_names()
    if name in known:
        return None
    first, _, rest = name.partition(".")
    if not rest:
        close = nearest(name, known)
        hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known)}, and dotted paths"
        return f"there is no measure {name!r}; {hint}"
    if first == "config" and rest not in _CONFIG_KEYS:
        close = nearest(rest, _CONFIG_KEYS)
        return f"a run's configuration has no key {rest!r}" + (f"; did you mean {close[0]!r}?" if close else "")
    if first == "metrics" and not (rest.partition(".")[0].isdigit() or rest.partition(".")[0] in _EPOCHS):
        return f"metrics are named by epoch, as metrics.1.val_accuracy or metrics.last.val_accuracy, not {name!r}"
    return None


def read_measure(run: Run, name: str, own: Own | None = None) -> Value | None:
    """Read a measure of a run; None where it is not there, or the run has not finished.

    Args:
        run: whose folder to look in.
        name: a short name or a dotted path.
        own: which settings count, where a folder has figures of several; by default those measured last.
    """
    if name in _DERIVED:
        minuend, subtrahend = (read_measure(run, part, own) for part in _DERIVED[name])
        known = isinstance(minuend, float) and isinstance(subtrahend, float)
        return minuend - subtrahend if known else None  # type: ignore[operator]
    first, _, rest = SHORT.get(name, name).partition(".")
    try:
        if run.read("summary.json").get("status") != "finished":
            return None
        if first == "config":
            return _plain(_dig(run.config.model_dump(), rest))
        if first == "metrics":
            return _of_epoch(run.metrics(), rest)
        return _plain(_dig(with_own(run.read(f"{first}.json"), first, own or {}), rest))
    except RunError:
        return None


def has_converged(run: Run, name: str, own: Own | None = None) -> bool:
    """Whether a measure of a run is one to rely on: an eigenvalue may not have converged.

    Args:
        run: whose folder to look in.
        name: as of `read_measure`.
        own: as of `read_measure`.
    """
    path = SHORT.get(name, name)
    beside = f"{path.removesuffix('.value')}.converged"
    return not path.endswith(".value") or read_measure(run, beside, own) != "false"


def with_own(results: Mapping[str, Any], file: str, own: Own) -> dict[str, Any]:
    """The results with those in front that have a study's own settings; a measure without such a one is left out.

    Args:
        results: what the file holds.
        file: its name without the ending.
        own: which settings count.
    """
    found = dict(results)
    for (place, key), (settings, defaults) in own.items():
        if place == file and key in results:
            found[key] = find_result(results, key, settings, defaults)
    return {key: value for key, value in found.items() if value is not None}


def _of_epoch(records: list[dict[str, Any]], path: str) -> Value | None:
    which, _, key = path.partition(".")
    values = [value for record in records if isinstance(value := _plain(_dig(record, key)), float)]
    if which.isdigit():
        return next((_plain(_dig(r, key)) for r in records if r.get("epoch") == int(which)), None)
    return _EPOCHS[which](values) if values and which in _EPOCHS else None


_EPOCHS: dict[str, Callable[[list[float]], float]] = {
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    "mean": statistics.fmean,
    "best": max,
    "lowest": min,
}
_CONFIG_KEYS = [key for key, _ in leaves(RunConfig)]


def _dig(value: Any, path: str) -> Any:
    for key in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(_BLOCKS[key](_numbered(value)) if key in _BLOCKS else key)
    return value


_BLOCKS: dict[str, Callable[[list[str]], str]] = {
    "first_block": lambda names: names[0] if names else "",
    "middle_block": lambda names: names[(len(names) - 1) // 2] if names else "",
    "last_block": lambda names: names[-1] if names else "",
}


def _numbered(parts: Mapping[str, Any]) -> list[str]:
    """The parts called block1, block2…, in the order of their numbers."""
    return sorted((name for name in parts if re.fullmatch(r"block\d+", name)), key=lambda name: int(name[5:]))


def _plain(value: Any) -> Value | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return float(value)
    return value if isinstance(value, str) else None
