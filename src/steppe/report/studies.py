"""The studies a report is about: runs are labelled, named and judged within their study, not across all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from steppe.errors import RunError
from steppe.report.record import Record, read_records, with_unique_ids
from steppe.report.rows import Row, summarise_records
from steppe.runs import Run, read_json

_LOOSE = "no study"


@dataclass(frozen=True)
class StudyRuns:
    """The runs of a study, or all that are no study's."""

    records: list[Record]
    about: Mapping[str, Any] = field(default_factory=dict)
    """the content of `study.json`"""
    comparison: Mapping[str, Any] = field(default_factory=dict)
    """the content of `compare.json`"""

    @property
    def name(self) -> str:
        """The study's name, which its rows carry."""
        found = self.text("name") or self.comparison.get("study")
        return found if isinstance(found, str) and found else _LOOSE

    def plans(self, record: Record) -> bool:
        """Return whether a run is one of the study's own, as far as `study.json` says."""
        planned = self.about.get("runs")
        if not isinstance(planned, list):
            return True
        return record.config.run_id in {str(run.get("run_id")) for run in planned if isinstance(run, Mapping)}

    def text(self, key: str) -> str:
        """Return a text of `study.json`; empty where it has none."""
        value = self.about.get(key)
        return value if isinstance(value, str) else ""


def read_studies(
    runs: Sequence[Run], folders: Sequence[Path], tell: Callable[[str], None] = lambda line: None
) -> list[StudyRuns]:
    """Read runs, grouped by study.

    Args:
        runs: what was found in the folders.
        folders: those that the report is about; a run belongs to the nearest folder above it, not above these, that
            holds a study's `study.json` or `compare.json`.
        tell: takes a line about each file that cannot be read.
    """
    tops = [folder.resolve() for folder in folders]
    groups: dict[Path | None, list[Run]] = {folder: [] for folder in tops if _is_study(folder)}
    for run in runs:
        groups.setdefault(_study_of(run.path.resolve(), tops), []).append(run)
    parts = []
    for folder, own in sorted(groups.items(), key=lambda group: group[0] is None):  # what is no study's comes last
        if runs and not own:
            continue
        about, comparison = ({}, {}) if folder is None else (_read(folder / f"{n}.json", tell) for n in _FILES)
        starts = about.get("starts")
        own = [run for run in own if not isinstance(starts, list) or run.id not in starts]
        parts.append(StudyRuns(read_records(own), about, comparison))
    ids = iter(with_unique_ids([record for part in parts for record in part.records]))
    return [replace(part, records=[next(ids) for _ in part.records]) for part in parts]


def summarise_studies(parts: Sequence[StudyRuns]) -> list[Row]:
    """Summarise runs that differ only in their seed as one row, labelled by their study."""
    several = len(parts) > 1
    return [
        replace(row, study=part.name) if several else row
        for part in parts
        for row in summarise_records(part.records, part.about)
    ]


_FILES = ("study", "compare")


def _is_study(folder: Path) -> bool:
    return any((folder / f"{name}.json").is_file() for name in _FILES)


def _study_of(run: Path, tops: Sequence[Path]) -> Path | None:
    for folder in run.parents:
        if not any(folder == top or top in folder.parents for top in tops):
            return None
        if _is_study(folder):
            return folder
    return None


def _read(path: Path, tell: Callable[[str], None]) -> dict[str, Any]:
    try:
        found = read_json(path) if path.is_file() else {}
    except RunError as error:
        tell(f"{error.where}: {error.what}")
        return {}
    if not isinstance(found, dict):
        tell(f"{path}: this should hold a JSON object")
        return {}
    return found
