"""`study.json`: the question, which run is which cell, the threads of a run, and which runs failed and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from steppe.config import PlannedRun, StudyConfig
from steppe.runs import Run, locked, read_json, write_json
from steppe.studies.pipeline import has_measures


def open_folder(study: StudyConfig, planned: list[PlannedRun], out: Path, threads: int) -> int:
    """Write what the study is; return the threads of a run: as settled when the folder was made, else as given."""
    with locked(out, "study", wait_s=60):
        threads = known_threads(out) or threads
        write_json(out / "study.json", {**describe(study, planned), "threads": threads})
    return threads


def note_failures(study: StudyConfig, planned: list[PlannedRun], out: Path, failed: dict[str, str]) -> None:
    """Add why runs failed, here and in other processes, unless they are complete by now."""
    with locked(out, "study", wait_s=60):
        about = _read(out)
        there = about.get("failed")
        reasons = {**(there if isinstance(there, dict) else {}), **failed}
        reasons = {
            p.config.run_id: reasons[p.config.run_id]
            for p in planned
            if p.config.run_id in reasons and not is_complete(out, p, study)
        }
        write_json(out / "study.json", {**describe(study, planned), "threads": about.get("threads"), "failed": reasons})


def known_threads(out: Path) -> int | None:
    """Return how many threads each run of a study's folder computes with; None where that is not settled."""
    threads = _read(out).get("threads")
    return threads if isinstance(threads, int) and threads > 0 else None


def describe(study: StudyConfig, planned: list[PlannedRun]) -> dict[str, Any]:
    """Return what `study.json` says of a study and its runs."""
    runs = [{"run_id": p.config.run_id, "labels": p.labels, "seed": p.config.seed} for p in planned]
    about = {"name": study.name, "title": study.title, "question": study.question, "runs": runs}
    return {**about, "scale": study.default_scale} if study.default_scale else about


def is_complete(out: Path, planned: PlannedRun, study: StudyConfig) -> bool:
    """Return whether a planned run is finished and measured as the study asks."""
    path = out / planned.config.run_id
    return (path / "config.toml").exists() and has_measures(Run(path), study.measure)


def _read(out: Path) -> dict[str, Any]:
    path = out / "study.json"
    about = read_json(path) if path.is_file() else {}
    return about if isinstance(about, dict) else {}
