"""The state of a training as a checkpoint holds it, and a training set to such a state.

Everything random is a function of (seed, step), so weights, the minimizer's state and a few counters are all of it.
Tensors are whole in a checkpoint, whatever the processes hold, so that another number of processes can go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from steppe.errors import RunError
from steppe.train import distributed
from steppe.train.setup import match_layout

if TYPE_CHECKING:
    from steppe.train.loop import Training

MOST_THREADS = 4096


def state_of(training: Training) -> dict[str, Any]:
    """What a checkpoint keeps of a training.

    Args:
        training: between two steps.
    """
    average = training.average
    minimizer = training.minimizer.state_dict()
    if training.ranks.sharded:
        own = training.minimizer.parameters
        averages = minimizer["averages"].items()
        minimizer["averages"] = {name: distributed.whole_vector(vector, own) for name, vector in averages}
    return {
        "config_hash": training.config.hash,
        "model": training.model.state_dict(),
        "minimizer": minimizer,
        "stage": training.index,
        "began": training.began,
        "steps": training.steps,
        "records": training.records,
        "tally": training.tally.state_dict(),
        "time_s": training.clock.total_s,
        "evaluate_s": training.evaluate_s,
        "threads": torch.get_num_threads(),
        "best_val": training.best_val,
        "stale_epochs": training.stale_epochs,
        "average": average.state_dict() if average else None,
    }


def put_state(training: Training, tree: dict[str, Any]) -> None:
    """Set a training to the state of a checkpoint.

    Args:
        training: as it was built, before its first step.
        tree: from `state_of`.

    Raises:
        RunError: the checkpoint belongs to another configuration.
    """
    if tree["config_hash"] != training.config.hash:
        raise RunError("the checkpoint belongs to another configuration")
    _check_counters(training, tree)
    for index in range(1, tree["stage"] + 1):
        training.enter(index)
    like = training.model.state_dict()
    weights = {name: distributed.shard_like(value, like.get(name)) for name, value in tree["model"].items()}
    training.model.load_state_dict(weights)
    saved, own = tree["minimizer"], training.minimizer.parameters
    if training.ranks.sharded:
        averages = saved["averages"].items()
        saved["averages"] = {name: distributed.local_vector(vector, own) for name, vector in averages}
    training.minimizer.load_state_dict(saved)
    match_layout(training.minimizer)
    training.steps, training.began, training.records = tree["steps"], tree["began"], tree["records"]
    training.tally.load_state_dict(tree["tally"])
    training.clock.total_s, training.evaluate_s = tree["time_s"], tree["evaluate_s"]
    if training.device.type == "cpu":
        torch.set_num_threads(tree["threads"])  # sums, and so the last digits, depend on their number
    training.best_val, training.stale_epochs = tree["best_val"], tree["stale_epochs"]
    if training.average:
        training.average.load_state_dict(tree["average"])


def _check_counters(training: Training, tree: dict[str, Any]) -> None:
    """Counters that are none would be found out in the middle of the training."""
    counters = {key: tree[key] for key in ("stage", "began", "steps", "records", "threads", "stale_epochs")}
    counters |= {f"tally.{key}": tree["tally"][key] for key in ("steps", "seen")}
    numbers = {key: tree[key] for key in ("time_s", "evaluate_s", "best_val")}
    wrong = [key for key, value in counters.items() if not isinstance(value, int) or value < 0]
    wrong += [key for key, value in numbers.items() if not isinstance(value, int | float)]
    if not wrong:
        fits = {
            "stage": tree["stage"] < len(training.stages),
            "threads": 0 < tree["threads"] <= MOST_THREADS,
            "began": tree["began"] <= tree["steps"],
        }
        wrong = [key for key, fit in fits.items() if not fit]
    if wrong:
        raise RunError(f"its {wrong[0]} cannot be right")
