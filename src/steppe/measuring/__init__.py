"""What every measure shares: its settings, the loss it is taken on, memory that runs out, a model left as it was."""

from steppe.measuring.losses import CROSS_ENTROPY, ClassLoss, Loss, loss_name, trained_loss
from steppe.measuring.memory import in_smaller_chunks
from steppe.measuring.state import (
    Batches,
    BatchNormMode,
    Precision,
    as_found,
    check_batches,
    check_finite,
    count_examples,
    finite,
    numerics,
)
from steppe.measuring.table import Measure, Settings, change_settings, choose, ignore, sample
from steppe.measuring.values import Range, Text

__all__ = [
    "CROSS_ENTROPY",
    "BatchNormMode",
    "Batches",
    "ClassLoss",
    "Loss",
    "Measure",
    "Precision",
    "Range",
    "Settings",
    "Text",
    "as_found",
    "change_settings",
    "check_batches",
    "check_finite",
    "choose",
    "count_examples",
    "finite",
    "ignore",
    "in_smaller_chunks",
    "loss_name",
    "numerics",
    "sample",
    "trained_loss",
]
