"""Sharpness-aware minimizers for any training loop: they need torch and nothing else.

`ASAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.5, model=model).step(closure)` makes a step; the closure runs
forward and backward and returns the loss. `docs/minimizers.md` says which method to choose.
"""

from .batch import Batch
from .captured import CapturedStep
from .cheap import AESAM, ESAM, MSAM, LookSAM
from .engine import Minimizer
from .methods import ASAM, FSAM, GSAM, SAM, SAMON, Base
from .muon import Muon
from .options import Kind
from .registry import METHODS, Method, create
from .schedules import Always, Every, GradientNorm, Last
from .statistics import RunningStatistics, reestimate_batchnorm

__all__ = [
    "AESAM",
    "ASAM",
    "ESAM",
    "FSAM",
    "GSAM",
    "METHODS",
    "MSAM",
    "SAM",
    "SAMON",
    "Always",
    "Base",
    "Batch",
    "CapturedStep",
    "Every",
    "GradientNorm",
    "Kind",
    "Last",
    "LookSAM",
    "Method",
    "Minimizer",
    "Muon",
    "RunningStatistics",
    "create",
    "reestimate_batchnorm",
]
