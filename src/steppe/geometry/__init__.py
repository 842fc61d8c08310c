"""Where a model sits: the flatness of its minimum."""

from steppe.geometry.noise import NoiseLoss, measure_noise_loss

__all__ = ["NoiseLoss", "measure_noise_loss"]
