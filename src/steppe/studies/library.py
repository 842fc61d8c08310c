"""A study that can be run: found, and what it asks for and claims looked at."""

from __future__ import annotations

from pathlib import Path

from steppe.config import StudyConfig, at_scale
from steppe.config.claims import parse_claim
from steppe.config.shipped import load_study
from steppe.errors import ConfigError
from steppe.studies.asked import check_asked
from steppe.studies.measures import check_name


def check_study(study: StudyConfig, path: Path) -> None:
    """Refuse measures and claims that name what is not there.

    Args:
        study: as it was read, with all of its scales.
        path: its file.
    """
    for scale in (*study.scale,) or (None,):
        check_asked(at_scale(study, scale).measure, str(path))
    for number, claim in enumerate(study.claims, 1):
        for measure in parse_claim(claim.holds).measures:
            if problem := check_name(measure.name):
                raise ConfigError(problem, where=f"{path}, claim {number} ({claim.text!r})")


def find_study(name_or_file: str) -> tuple[StudyConfig, Path]:
    """Read a study by its name, its file, or the folder of its file, with all of its scales."""
    study, path = load_study(name_or_file)
    check_study(study, path)
    return study, path
