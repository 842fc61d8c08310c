"""Where a model sits: the flatness of its minimum."""

from steppe.geometry.attention import attention_maps, attention_weights
from steppe.geometry.curvature import measure_curvature, measure_trace, top_eigenvectors
from steppe.geometry.landscape import measure_between, measure_line, measure_square, random_directions
from steppe.geometry.noise import NoiseLoss, measure_noise_loss
from steppe.geometry.norms import measure_activations, measure_gradient_norms, measure_missing_rate, weight_norms
from steppe.geometry.sharpness import measure_adaptive_sharpness, measure_sharpness
from steppe.geometry.spectrum import measure_spectrum
from steppe.geometry.symmetry import measure_symmetry
from steppe.geometry.tangent import measure_tangent_kernel
from steppe.measuring import CROSS_ENTROPY, ClassLoss, trained_loss

__all__ = [
    "CROSS_ENTROPY",
    "ClassLoss",
    "NoiseLoss",
    "attention_maps",
    "attention_weights",
    "measure_activations",
    "measure_adaptive_sharpness",
    "measure_between",
    "measure_curvature",
    "measure_gradient_norms",
    "measure_line",
    "measure_missing_rate",
    "measure_noise_loss",
    "measure_sharpness",
    "measure_spectrum",
    "measure_square",
    "measure_symmetry",
    "measure_tangent_kernel",
    "measure_trace",
    "random_directions",
    "top_eigenvectors",
    "trained_loss",
    "weight_norms",
]
