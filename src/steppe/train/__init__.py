"""Training: the loop, schedules, checkpoints; it makes a run folder."""

from steppe.train.distributed import leads
from steppe.train.environment import available_cores, describe_environment, pick_device
from steppe.train.schedules import lr_factor
from steppe.train.session import train
from steppe.train.setup import build_minimizer, build_model

__all__ = [
    "available_cores",
    "build_minimizer",
    "build_model",
    "describe_environment",
    "leads",
    "lr_factor",
    "pick_device",
    "train",
]
