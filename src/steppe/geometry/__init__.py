"""Where a model sits: the flatness of its minimum."""

from steppe.geometry.curvature import measure_curvature, measure_trace, top_eigenvectors
from steppe.geometry.losses import CROSS_ENTROPY, ClassLoss, trained_loss
from steppe.geometry.noise import NoiseLoss, measure_noise_loss
from steppe.geometry.norms import measure_activations, measure_gradient_norms, measure_missing_rate, weight_norms
from steppe.geometry.sharpness import measure_adaptive_sharpness, measure_sharpness
from steppe.geometry.spectrum import measure_spectrum
from steppe.geometry.tangent import measure_tangent_kernel

__all__ = [
    "CROSS_ENTROPY",
    "ClassLoss",
    "NoiseLoss",
    "measure_activations",
    "measure_adaptive_sharpness",
    "measure_curvature",
    "measure_gradient_norms",
    "measure_missing_rate",
    "measure_noise_loss",
    "measure_sharpness",
    "measure_spectrum",
    "measure_tangent_kernel",
    "measure_trace",
    "top_eigenvectors",
    "trained_loss",
    "weight_norms",
]
