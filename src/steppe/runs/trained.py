"""Where a trained network lies: a run folder, an exported folder, or the best run of a search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from steppe.errors import RunError
from steppe.runs.files import read_json
from steppe.runs.folder import Run


def find_trained(path: str | Path) -> Path:
    """Return the folder that holds a network and its weights; of a search's folder, that of its best run.

    Args:
        path: a run folder, a folder that `steppe export` made, or one that `steppe fit` made.

    Raises:
        RunError: there is no such folder, or it has no weights.
    """
    path = Path(path)
    try:
        is_folder = path.is_dir()
    except (OSError, ValueError):  # a name too long, a null character
        is_folder = False
    if not is_folder:
        fix = "check the path; `steppe train` and `steppe fit` make such folders"
        raise RunError("there is no such run folder", where=str(path)[:200], fix=fix)
    if read_export(path) is not None:
        return path
    if (path / "fit.json").is_file() and not (path / "config.toml").is_file():
        path = _best_of_search(path)
    run = Run(path)
    if not run.weights.is_file():
        raise without_weights(run)
    return path


def read_export(path: Path) -> dict[str, Any] | None:
    """What config.json of an exported folder says of the network; None where there is none of ours."""
    if not (path / "config.json").is_file() or (path / "config.toml").is_file():
        return None
    found = read_json(path / "config.json")
    about = found.get("steppe") if isinstance(found, dict) else None
    return about if isinstance(about, dict) else None


def without_weights(run: Run) -> RunError:
    """Say why a run has no weights, and what to do about it."""
    summary, command = run.read_or_empty("summary.json"), f"steppe train {run.path / 'config.toml'} -o {run.path}"
    if summary.get("status") == "failed":
        reason = str(summary.get("reason") or "no reason was recorded").splitlines()[0]
        fix = "train it otherwise, into another folder: with a smaller learning rate if it diverged"
        return RunError(f"this run has no weights: it failed ({reason})", where=str(run.path), fix=fix)
    if summary.get("status") == "finished":
        fix = f"bring {run.weights.name} back from where the run was made, or make it again: {command}"
        return RunError("this run has no weights: their file is gone", where=str(run.path), fix=fix)
    return RunError(
        "this run has no weights: it is not finished", where=str(run.path), fix=f"train it to its end: {command}"
    )


def _best_of_search(folder: Path) -> Path:
    about = read_json(folder / "fit.json")
    best = about.get("best") if isinstance(about, dict) else None
    if not isinstance(best, str) or best != Path(best).name:
        fix = "let it come to its end: give the same `steppe fit` again"
        raise RunError("this search has no best run yet", where=str(folder), fix=fix)
    return folder / best
