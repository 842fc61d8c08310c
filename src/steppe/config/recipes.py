"""Recipes: files with the configuration of a run, and what it reaches where that was measured.

A recipe is a run's TOML with a table `[recipe]` about it. `based_on` names another recipe, over whose configuration
the rest of the file is laid; so a SAM variant says only what differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from steppe.config.run import RunConfig
from steppe.config.section import Section
from steppe.config.spelling import spell
from steppe.config.toml import merge, parse, read_toml
from steppe.errors import ConfigError, unknown_name

MOST_BASES = 4
"""A recipe may be based on one that is itself based on another, so many times."""


class RecipeConfig(Section):
    """The table `[recipe]`: what the recipe is for, and what was measured."""

    title: str = Field(min_length=1, description="one line for `steppe recipes`")
    ideas: str = Field("", description="whose ideas the recipe uses")
    based_on: str | None = Field(None, min_length=1, description="the recipe that this one changes")
    accuracy: float | None = Field(None, ge=0, le=100, description="test accuracy in %, mean over the runs")
    std: float | None = Field(None, ge=0, description="standard deviation of the accuracy over the runs, in points")
    accuracy_tta: float | None = Field(None, ge=0, le=100, description="the same with test-time augmentation")
    runs: int | None = Field(None, gt=0, description="how many runs were measured")
    seconds: float | None = Field(None, gt=0, description="seconds of training, mean over the runs")
    machine: str | None = Field(None, min_length=1, description="where the runs were made")

    @model_validator(mode="after")
    def _figures_stand_together(self) -> Self:
        together = {key: getattr(self, key) for key in ("accuracy", "runs", "seconds", "machine")}
        missing = [key for key, value in together.items() if value is None]
        if missing and len(missing) < len(together):
            raise ValueError(f"an accuracy needs runs, seconds and machine beside it; missing: {', '.join(missing)}")
        if self.accuracy is None and (self.std is not None or self.accuracy_tta is not None):
            raise ValueError("std and accuracy_tta stand beside an accuracy; give it too")
        return self


@dataclass(frozen=True)
class Recipe:
    """A recipe as it was read.

    Args:
        name: of the file, without its ending.
        about: the table `[recipe]`.
        values: the configuration, nested as in the file, with that of the recipe it is based on beneath.
        path: the file.
    """

    name: str
    about: RecipeConfig
    values: Mapping[str, Any]
    path: Path

    @property
    def config(self) -> RunConfig:
        """The run that the recipe makes when nothing is changed."""
        return parse(RunConfig, self.values, where=str(self.path))

    @property
    def data(self) -> str | None:
        """The data set the recipe is for; None where the user brings the images."""
        data = self.values.get("data")
        return data.get("name") if isinstance(data, Mapping) else None


def recipes_folder() -> Path:
    """Return the folder of the shipped recipes: inside an installed package, or beside `src` in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "recipes"
    return inside if inside.is_dir() else package.parents[1] / "recipes"


def list_recipes() -> dict[str, Path]:
    """Return the file of every shipped recipe by its name."""
    return {path.stem: path for path in sorted(recipes_folder().glob("*.toml"))}


def load_recipe(name_or_file: str | Path, *, depth: int = 0) -> Recipe:
    """Read a recipe, and those that it is based on.

    Args:
        name_or_file: a name of `steppe recipes`, or a TOML file.
        depth: how many recipes are based on this one already.

    Raises:
        ConfigError: there is no such recipe, or the file is not right.
    """
    path = Path(name_or_file)
    if path.suffix != ".toml":
        known = list_recipes()
        name = spell(str(name_or_file), known)
        if name not in known:
            raise unknown_name("recipe", name, known, see="steppe recipes")
        path = known[name]
    values = read_toml(path)
    if "recipe" not in values:
        fix = "add [recipe] with a title, or give the file without --recipe"
        raise ConfigError("the file has no table [recipe]", where=str(path), fix=fix)
    about = parse(RecipeConfig, {"recipe": values.pop("recipe")}["recipe"], where=f"{path}, recipe")
    if about.based_on is not None:
        if depth >= MOST_BASES:
            raise ConfigError(f"more than {MOST_BASES} recipes are based on each other", where=str(path))
        values = merge(load_recipe(_beside(about.based_on, path), depth=depth + 1).values, values)
    recipe = Recipe(path.stem, about, values, path)
    _ = recipe.config
    return recipe


def begin_from_recipe(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the key `recipe` of a configuration by what that recipe says; the other keys are laid over it.

    Args:
        values: nested as in a file; returned as they are where no recipe is named.
    """
    rest = dict(values)
    name = rest.pop("recipe", None)
    if name is None:
        return rest
    if not isinstance(name, str):
        raise ConfigError(f"recipe = {name!r} is not a name of `steppe recipes`", where="recipe")
    return merge(load_recipe(name).values, rest)


def _beside(name: str, path: Path) -> str:
    """The file of a recipe that stands beside the one that names it; else the name, for the shipped ones."""
    beside = path.parent / f"{name}.toml"
    return str(beside) if beside.is_file() else name
