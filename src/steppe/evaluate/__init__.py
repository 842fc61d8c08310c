"""How well a model does: accuracy; calibration, corruptions and attacks find their place here."""

from steppe.evaluate.accuracy import Accuracy, measure_accuracy

__all__ = ["Accuracy", "measure_accuracy"]
