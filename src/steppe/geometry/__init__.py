"""Where a model sits: the flatness of its minimum."""

from steppe.geometry.attention import attention_maps, attention_weights
from steppe.geometry.landscape import measure_between, measure_line, measure_square, random_directions
from steppe.geometry.noise import NoiseLoss, measure_noise_loss
from steppe.geometry.symmetry import measure_symmetry

__all__ = [
    "NoiseLoss",
    "attention_maps",
    "attention_weights",
    "measure_between",
    "measure_line",
    "measure_noise_loss",
    "measure_square",
    "measure_symmetry",
    "random_directions",
]
