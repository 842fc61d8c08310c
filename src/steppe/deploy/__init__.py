"""A trained network put to use: opened, calibrated, asked about new images, exported for other programs."""

from steppe.deploy.calibration import Calibration, fit_temperature, get_calibration
from steppe.deploy.export import FORMATS, Exported, export
from steppe.deploy.images import Picture, Skipped, find_pictures
from steppe.deploy.predicting import Prediction, look_at, predict_pictures
from steppe.deploy.trained import Trained, open_trained

__all__ = [
    "FORMATS",
    "Calibration",
    "Exported",
    "Picture",
    "Prediction",
    "Skipped",
    "Trained",
    "export",
    "find_pictures",
    "fit_temperature",
    "get_calibration",
    "look_at",
    "open_trained",
    "predict_pictures",
]
