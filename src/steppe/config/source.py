"""What a run is begun from: images, or a TOML file with its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steppe.config.run import RunConfig
from steppe.config.toml import load_run_config, merge, parse
from steppe.errors import ConfigError


def read_source(source: str | Path | None, overrides: Mapping[str, Any], *, where: str) -> RunConfig:
    """Make a run's configuration of a TOML file or the name of some data, and of what is laid over it.

    Args:
        source: a TOML file; a data set, a folder of images or a .npz file; or None, for `overrides` alone.
        overrides: nested like the file.
        where: who asks, for errors.

    Raises:
        ConfigError: the file is missing or not right, or data are named twice.
    """
    if source is not None and is_toml(source):
        return load_run_config(source, overrides)
    if source is not None:
        named = overrides.get("data", {}).get("name")
        if named is not None:
            what = f"the data are named twice: {str(source)!r} and {named!r}"
            raise ConfigError(what, where=where, mend="leave one of them out")
        overrides = merge({"data": {"name": str(source)}}, overrides)
    return parse(RunConfig, overrides, where=where)


def is_toml(source: str | Path) -> bool:
    """Say whether a TOML file is meant, and not data: by its suffix, or because it is a file and no .npz."""
    path = Path(source)
    try:
        return path.suffix.lower() == ".toml" or (path.suffix.lower() != ".npz" and path.is_file())
    except (OSError, ValueError):  # a name too long, a null character
        return False
