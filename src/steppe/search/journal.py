"""Optuna's part in a search: its journal in the folder, its sampler and pruner, and who goes up a rung."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steppe.config import derive_seed
from steppe.errors import ConfigError, RunError
from steppe.plain_files import check_plain, open_plain
from steppe.search.space import Space, suggest

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
        complete = sorted(filter(is_complete, there), key=lambda t: t.value or 0.0, reverse=True)
        for trial in complete[: len(there) // FACTOR]:
            if trial.number not in gone:
                return trial
    return None


def is_complete(trial: optuna.trial.FrozenTrial) -> bool:
    """Whether a trial came to its end. One that was given up did not, though its last score is its value to Optuna."""
    return trial.state.name == "COMPLETE"


def choose(study: optuna.Study, space: Space, seed: int, point: dict[str, Any] | None) -> optuna.trial.FrozenTrial:
    """Choose what the next trial is made of; nothing is written.

    The choice follows from the trials before this one alone: a search that is killed here chooses the same again.

    Args:
        study: the search's.
        space: what is chosen from.
        seed: of the search.
        point: what to take instead of asking the sampler.
    """
    import optuna

    known = study.get_trials(deepcopy=False)
    own = derive_seed(seed, "trial", len(known)) % 2**32
    sampler = optuna.samplers.TPESampler(seed=own, n_startup_trials=8, constant_liar=True)
    scratch = optuna.create_study(direction="maximize", sampler=sampler)
    scratch.add_trials(known)  # those under way, too: the sampler proposes something else than they are
    if point:
        scratch.enqueue_trial(point)
    suggest(scratch.ask(), space)
    return scratch.get_trials(deepcopy=False)[-1]


def begin_trial(study: optuna.Study, chosen: optuna.trial.FrozenTrial, about: dict[str, Any]) -> optuna.Trial:
    """Write a trial into the journal, by a single line: a kill leaves all of it or nothing.

    Args:
        study: the search's.
        chosen: what it is made of.
        about: what else is known of it.
    """
    import optuna

    running = optuna.trial.TrialState.RUNNING
    values: dict[str, Any] = {"params": chosen.params, "distributions": chosen.distributions}
    study.add_trial(optuna.trial.create_trial(state=running, **values, user_attrs=about))
    return optuna.Trial(study, study.get_trials(deepcopy=False)[-1]._trial_id)


def interrupted_trials(study: optuna.Study) -> list[optuna.Trial]:
    """Those that were running when an earlier session ended."""
    import optuna

    running = study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.RUNNING])
    return [optuna.Trial(study, trial._trial_id) for trial in running if "run" in trial.user_attrs]


def open_journal(folder: Path) -> optuna.Study:
    """Open Optuna's journal, or begin it; for the one process that holds the folder's lock."""
    for stale in folder.glob("optuna.journal*.lock*"):  # of a killed session
        stale.unlink(missing_ok=True)
    _drop_torn_line(folder / "optuna.journal")
    return join_journal(folder)


def join_journal(folder: Path) -> optuna.Study:
    """Open a journal that others may be writing."""
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalStorage

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = str(folder / "optuna.journal")
    try:
        if os.path.lexists(path):
            check_plain(path)
        storage = JournalStorage(JournalFileBackend(path, lock_obj=JournalFileOpenLock(path)))
        study = optuna.create_study(storage=storage, study_name="fit", direction="maximize", load_if_exists=True)
        study.get_trials(deepcopy=False)
    except Exception as error:  # Optuna trusts its journal: a damaged line raises whatever it happens to mean
        fix = "put the file back, or begin another search with --out: finished runs stay where they are"
        what = f"the search's journal cannot be read: {type(error).__name__}: {str(error)[:200]}"
        raise RunError(what, where=path, fix=fix) from None
    study.pruner = optuna.pruners.PercentilePruner(60.0, n_startup_trials=4, n_min_trials=3)
    return study


def import_optuna() -> None:
    """Say which extra is missing, if it is."""
    try:
        import optuna  # noqa: F401
    except ImportError:
        fix = "pip install optuna"
        raise ConfigError("steppe fit needs the package optuna, which is not installed", fix=fix) from None


def _drop_torn_line(path: Path) -> None:
    """Cut off what a killed session left of an unfinished last line: Optuna would refuse the whole journal."""
    if path.is_file():
        with open_plain(path) as file:
            whole = file.read().rfind(b"\n") + 1
        os.truncate(path, whole)
