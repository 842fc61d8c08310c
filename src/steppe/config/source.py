"""What a run is begun from: images, or a TOML file with its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steppe.config.recipes import load_recipe
from steppe.config.run import RunConfig
from steppe.config.toml import load_run_config, merge, parse, read_toml
from steppe.errors import ConfigError


def read_source(
    source: str | Path | None, overrides: Mapping[str, Any], *, where: str, recipe: str | Path | None = None
) -> RunConfig:
    """Make a run's configuration of a recipe, a TOML file or the name of some data, and of what is laid over it.

    Args:
        source: a TOML file; a data set, a folder of images or a .npz file; or None, for `overrides` alone.
        overrides: nested like the file.
        where: who asks, for errors.
        recipe: a name of `steppe recipes` or a recipe's file; source and overrides are laid over it.

    Raises:
        ConfigError: a file is missing or not right, data are named twice or not at all, or two files are given.
    """
    if source is not None and is_toml(source):
        if recipe is not None:
            what = f"a recipe and a configuration are given: {str(recipe)!r} and {str(source)!r}"
            raise ConfigError(what, where=where, fix="give one of them, and flags for what differs")
        if "recipe" in read_toml(source):
            return parse(RunConfig, merge(load_recipe(source).values, overrides), where=str(source))
        return load_run_config(source, overrides)
    if source is not None:
        named = overrides.get("data", {}).get("name")
        if named is not None:
            what = f"the data are named twice: {str(source)!r} and {named!r}"
            raise ConfigError(what, where=where, fix="leave one of them out")
        overrides = merge({"data": {"name": str(source)}}, overrides)
    if recipe is None:
        return parse(RunConfig, overrides, where=where)
    begun = load_recipe(recipe)
    if begun.data is None and "name" not in overrides.get("data", {}):
        fix = f"name your images: steppe train FOLDER --recipe {begun.name}"
        raise ConfigError(f"the recipe {begun.name!r} has no data of its own", where=where, fix=fix)
    return parse(RunConfig, merge(begun.values, overrides), where=f"recipe {begun.name} and {where}")


def is_toml(source: str | Path) -> bool:
    """Say whether a TOML file is meant, and not data: by its suffix, or because it is a file and no .npz."""
    path = Path(source)
    try:
        return path.suffix.lower() == ".toml" or (path.suffix.lower() != ".npz" and path.is_file())
    except (OSError, ValueError):  # a name too long, a null character
        return False
