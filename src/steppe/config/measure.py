"""What a study measures on every finished run, besides accuracy and cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from steppe.config.section import Section

Asked = dict[str, dict[str, Any] | Literal[False]]
"""Measure -> settings that differ from its defaults; False where a scale leaves it out."""


class MeasureConfig(Section):
    """What is measured on every finished run, besides accuracy and cost."""

    noise_sigma: float = Field(0.01, gt=0, description="standard deviation of the weight noise of the flatness figure")
    noise_draws: int = Field(20, gt=1, description="how many noises the flatness figure averages over")
    noise_examples: int = Field(1000, gt=0, description="how many training images it is measured on, at the most")
    step_s: float = Field(
        0.0, ge=0, description="for how many seconds a training step is timed by itself, as `steppe cost` does; 0: not"
    )
    test_variances: list[float] = Field([], description="2-D toys: also test at these variances of the noise")
    test_examples: int = Field(10_000, gt=0, description="2-D toys: on so many fresh points at each")
    geometry: Asked = Field(
        default_factory=dict, description="measures of `steppe geometry`: name -> settings that differ, or false"
    )
    robustness: Asked = Field(
        default_factory=dict, description="measures of `steppe evaluate`: name -> settings that differ, or false"
    )

    @field_validator("test_variances")
    @classmethod
    def _not_negative(cls, values: list[float]) -> list[float]:
        if any(v < 0 for v in values):
            raise ValueError("a variance is not negative")
        return values

    @field_validator("geometry", "robustness", mode="before")
    @classmethod
    def _tables_or_false(cls, values: Any) -> Any:
        for name, changes in values.items() if isinstance(values, Mapping) else ():
            if changes is not False and not isinstance(changes, Mapping):
                raise ValueError(f"{name} = {changes!r} is not a table of settings, such as {{}}, or false")
        return values

    @property
    def noise(self) -> dict[str, Any]:
        """The settings of the flatness figure alone."""
        return self.model_dump(mode="json", include={"noise_sigma", "noise_draws", "noise_examples"})

    @property
    def shift(self) -> dict[str, Any]:
        """The settings of the tests at other variances."""
        return self.model_dump(mode="json", include={"test_variances", "test_examples"})

    @property
    def asked(self) -> dict[str, dict[str, dict[str, Any]]]:
        """File without its ending -> measure -> settings, of the measures that are not made of every run anyway."""
        files = {"geometry": self.geometry, "robustness": self.robustness}
        return {
            file: {name: dict(changes) for name, changes in some.items() if changes is not False}
            for file, some in files.items()
        }
