"""Training: the loop, schedules, checkpoints; it makes a run folder."""

from steppe.train.environment import describe_environment, pick_device
from steppe.train.loop import build_minimizer, build_model, train
from steppe.train.schedules import lr_factor

__all__ = [
    "build_minimizer",
    "build_model",
    "describe_environment",
    "lr_factor",
    "pick_device",
    "train",
]
