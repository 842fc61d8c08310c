"""Optuna's part in a search: its journal in the folder, its sampler and pruner, and who goes up a rung."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from steppe.errors import ConfigError, RunError

if TYPE_CHECKING:
    import optuna

FACTOR = 3
"""How much longer each rung is than the one below, and which part of a rung goes up: a third."""


def to_promote(trials: Sequence[optuna.trial.FrozenTrial], top: int) -> optuna.trial.FrozenTrial | None:
    """The best trial of the highest rung that is among the best third of its rung and has not gone up yet.

    Args:
        trials: all of them; one that is still running has gone up, too.
        top: the highest rung.
    """
    gone = {t.user_attrs.get("of") for t in trials}
    ended = [t for t in trials if t.state.is_finished() and "rung" in t.user_attrs]
    for rung in reversed(range(top)):
        there = [t for t in ended if t.user_attrs["rung"] == rung]
        complete = sorted((t for t in there if t.value is not None), key=lambda t: t.value or 0.0, reverse=True)
        for trial in complete[: len(there) // FACTOR]:
            if trial.number not in gone:
                return trial
    return None


def open_journal(folder: Path, seed: int) -> optuna.Study:
    """Open Optuna's journal, or begin it; for the one process that holds the folder's lock."""
    for stale in folder.glob("optuna.journal*.lock*"):  # of a killed session
        stale.unlink(missing_ok=True)
    _drop_torn_line(folder / "optuna.journal")
    return join_journal(folder, seed)


def join_journal(folder: Path, seed: int) -> optuna.Study:
    """Open a journal that others may be writing. The sampler goes on to other numbers in every session."""
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalStorage

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = str(folder / "optuna.journal")
    try:
        storage = JournalStorage(JournalFileBackend(path, lock_obj=JournalFileOpenLock(path)))
        study = optuna.create_study(storage=storage, study_name="fit", direction="maximize", load_if_exists=True)
        known = len(study.get_trials(deepcopy=False))
    except Exception as error:  # Optuna trusts its journal: a damaged line raises whatever it happens to mean
        mend = "put the file back, or begin another search with --out: finished runs stay where they are"
        what = f"the search's journal cannot be read: {type(error).__name__}: {str(error)[:200]}"
        raise RunError(what, where=path, mend=mend) from None
    study.sampler = optuna.samplers.TPESampler(seed=seed + 1000 * known, n_startup_trials=8)
    study.pruner = optuna.pruners.PercentilePruner(60.0, n_startup_trials=4, n_min_trials=3)
    return study


def import_optuna() -> None:
    """Say which extra is missing, if it is."""
    try:
        import optuna  # noqa: F401
    except ImportError:
        mend = "pip install 'steppe[search]'"
        raise ConfigError("steppe fit needs the package optuna, which is not installed", mend=mend) from None


def _drop_torn_line(path: Path) -> None:
    """Cut off what a killed session left of an unfinished last line: Optuna would refuse the whole journal."""
    if path.is_file():
        with open(path, "rb+") as file:
            whole = file.read().rfind(b"\n") + 1
            file.truncate(whole)
