"""What a training took, from its records, and what that costs in money."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any


def training_speed(records: Sequence[dict[str, Any]], batch_size: int, compile_s: float = 0.0) -> dict[str, Any]:
    """Seconds an epoch and images a second, with warm-up and compiling apart.

    The first epoch also pays for whatever is done once (caches, the choice of kernels), so it is told apart: the
    whole others' median is the time of an epoch, and what the first took beyond it is the warm-up. Seconds are those of
    training steps; evaluation is not in them, nor is compiling.

    Args:
        records: the run's metrics, one an epoch, from the first.
        batch_size: images in a step.
        compile_s: seconds spent on compiling.
    """
    ends = [(0, 0.0), *((int(record.get("steps", 0)), float(record.get("time_s", 0.0))) for record in records)]
    epochs = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(ends) if b[0] > a[0] and b[1] > a[1]]
    if not epochs:
        return {"time_per_epoch_s": None, "images_per_s": None, "warmup_s": None, "compile_s": compile_s}
    longest = max(steps for steps, _ in epochs)
    whole = [[seconds for steps, seconds in some if steps == longest] for some in (epochs[1:], epochs)]
    per_epoch = statistics.median(whole[0] or whole[1])  # a budget may end inside the last epoch
    first_steps, first_s = epochs[0]
    warmup = max(0.0, first_s - per_epoch * first_steps / longest) if len(epochs) > 1 else None
    return {
        "time_per_epoch_s": per_epoch,
        "images_per_s": longest * batch_size / per_epoch,
        "warmup_s": warmup,
        "compile_s": compile_s,
    }


def price_of(seconds: float | None, per_hour: float) -> float | None:
    """What so many seconds cost."""
    return None if seconds is None else seconds / 3600 * per_hour
