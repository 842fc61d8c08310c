"""Where the studies are that come with steppe."""

from __future__ import annotations

from pathlib import Path


def studies_folder() -> Path:
    """Where the shipped studies are: inside an installed package, or beside `src` in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "studies" / "shipped"
    return inside if inside.is_dir() else package.parents[1] / "studies"


def list_studies() -> dict[str, Path]:
    """Name -> study.toml of every shipped study."""
    return {path.parent.name: path for path in sorted(studies_folder().glob("*/study.toml"))}
