"""The studies that come with steppe, found by name; a study of one's own is found by its file."""

from __future__ import annotations

from pathlib import Path

from steppe.config.spelling import spell
from steppe.config.study import StudyConfig, load_study_config
from steppe.errors import unknown_name


def studies_folder() -> Path:
    """Where the shipped studies are: inside an installed package, or beside `src` in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "studies" / "shipped"
    return inside if inside.is_dir() else package.parents[1] / "studies"


def list_studies() -> dict[str, Path]:
    """Name -> study.toml of every shipped study."""
    return {path.parent.name: path for path in sorted(studies_folder().glob("*/study.toml"))}


def load_study(name_or_file: str) -> tuple[StudyConfig, Path]:
    """Read a study by its name, its file, or the folder of its file, with all of its scales.

    What it measures and claims is not looked at: `steppe.studies.find_study` does that, and takes seconds to import.
    """
    path = Path(name_or_file)
    if path.is_dir() and (path / "study.toml").is_file():
        path = path / "study.toml"
    elif path.suffix != ".toml" and not path.is_file():
        known = list_studies()
        name = spell(name_or_file, known)
        if name not in known:
            raise unknown_name("study", name, known, see="steppe study list")
        path = known[name]
    return load_study_config(path), path
