"""How well a model does: accuracy, calibration, corruptions, attacks."""

from steppe.evaluate.accuracy import Accuracy, measure_accuracy, measure_batches, suit_batch
from steppe.evaluate.attacks import Pixels, fgsm, measure_attacks, pgd
from steppe.evaluate.augmented import VIEWS, Augmented
from steppe.evaluate.scores import predict, score
from steppe.evaluate.shifts import measure_corruptions, measure_variant

__all__ = [
    "VIEWS",
    "Accuracy",
    "Augmented",
    "Pixels",
    "fgsm",
    "measure_accuracy",
    "measure_attacks",
    "measure_batches",
    "measure_corruptions",
    "measure_variant",
    "pgd",
    "predict",
    "score",
    "suit_batch",
]
