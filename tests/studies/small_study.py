"""A study of two short runs, plain and SAM."""

from __future__ import annotations

from steppe.config import StudyConfig


def make_study(**changes) -> StudyConfig:
    """The study; `changes` replace its sections."""
    values = {
        "name": "s",
        "base": {"batch_size": 256, "model": {"name": "resnet_tiny"}, "budget": {"epochs": 1}},
        "axes": {"how": {"base": {}, "sam": {"minimizer": {"name": "sam"}}}},
        "measure": {"noise_draws": 2},
    }
    return StudyConfig.model_validate({**values, **changes})
