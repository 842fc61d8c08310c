"""The studies that come with steppe, found by name; a study of one's own is found by its file."""

from __future__ import annotations

from pathlib import Path

from steppe.config import StudyConfig, at_scale, load_study_config
from steppe.config.claims import parse_claim
from steppe.config.shipped import list_studies
from steppe.errors import ConfigError, unknown_name
from steppe.studies.asked import check_asked
from steppe.studies.measures import check_name


def find_study(name_or_file: str) -> tuple[StudyConfig, Path]:
    """Read a study by its name, its file, or the folder of its file, with all of its scales."""
    path = Path(name_or_file)
    if path.is_dir() and (path / "study.toml").is_file():
        path = path / "study.toml"
    elif path.suffix != ".toml" and not path.is_file():
        known = list_studies()
        if name_or_file not in known:
            raise unknown_name("study", name_or_file, known, see="steppe study list")
        path = known[name_or_file]
    study = load_study_config(path)
    for scale in (*study.scale,) or (None,):
        check_asked(at_scale(study, scale).measure, str(path))
    for number, claim in enumerate(study.claims, 1):
        for measure in parse_claim(claim.holds).measures:
            if problem := check_name(measure.name):
                raise ConfigError(problem, where=f"{path}, claim {number} ({claim.text!r})")
    return study, path
