"""Models: timm's, and the small-image ones timm lacks, behind one `build`."""

from steppe.models.build import build, load_weights, model_names
from steppe.models.small import SMALL_MODELS

__all__ = ["SMALL_MODELS", "build", "load_weights", "model_names"]
