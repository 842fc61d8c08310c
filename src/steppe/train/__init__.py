"""Training: the loop, schedules, checkpoints; it makes a run folder."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from steppe.train.distributed import leads
from steppe.train.environment import available_cores, describe_environment, pick_device
from steppe.train.schedules import lr_factor
from steppe.train.session import train
from steppe.train.setup import build_minimizer, build_model


class _CallableRoom(ModuleType):
    """Lets `steppe.train(...)` train: once this package is imported, that name means it and no longer the function."""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        """Call the function `steppe.train`."""
        return import_module("steppe.api").train(*arguments, **settings)


sys.modules[__name__].__class__ = _CallableRoom

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
