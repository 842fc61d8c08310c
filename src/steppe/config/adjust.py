"""Changes of the cells that have certain labels: what a product of axes alone cannot say.

[[adjust]]
at = { model = ["ViT-S", "ViT-B"], training = "SAM" }
minimizer = { rho = 0.2 }
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, Field, field_validator

from steppe.config.section import Section
from steppe.config.toml import merge


class AdjustConfig(Section):
    """What changes in the cells that fit `at`; keys beside it are a run's, and `seeds`."""

    model_config = ConfigDict(extra="allow")

    at: dict[str, list[str]] = Field(min_length=1, description="axis -> label, or list of labels")

    @field_validator("at", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {axis: [labels] if isinstance(labels, str) else labels for axis, labels in value.items()}
        return value

    def fits(self, labels: Mapping[str, str]) -> bool:
        """Whether a cell is meant."""
        return all(labels.get(axis) in wanted for axis, wanted in self.at.items())

    @property
    def change(self) -> dict[str, Any]:
        """What is laid over the cell."""
        return dict(self.model_extra or {})


def adjust(values: dict[str, Any], labels: Mapping[str, str], changes: list[AdjustConfig]) -> dict[str, Any]:
    """Lay over a cell's values what its labels ask for; the last one wins."""
    for one in changes:
        if one.fits(labels):
            values = merge(values, one.change)
    return values
