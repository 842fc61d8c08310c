"""`steppe fit`: the best model within a given time.

Photographs are learned by pretrained networks where weights are at hand: see `probe_search`. Other images are learned
from scratch. The time is then divided: a part for trials, the rest for training the winner. Trials have budgets of
seconds that grow by a factor from rung to rung (asynchronous successive halving, Li et al. 2020): a new configuration
begins on the lowest rung, and the best third of a rung is trained again, from fresh weights and along its whole
schedule, with three times the seconds. New configurations come from Optuna's TPE, after a few recommended ones; its
percentile pruner gives up a trial that falls behind the others of its rung. Only validation images decide. A budget of
epochs is divided in the same way, and no clock has a part in anything that is decided.

Everything is kept in the folder: Optuna's journal, a run folder for each trial, and `fit.json` with the time spent so
far. So a search that was stopped or killed goes on, with the run it was at.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from steppe import data
from steppe.config import DataConfig, Pretrained, parse
from steppe.data import Keeping
from steppe.errors import ConfigError, Interrupted, RunError
from steppe.jobs import RayWorkers
from steppe.runs import holds_others, locked
from steppe.search.backbones import find_backbones, holds_photographs
from steppe.search.budget import Budget, Clock, is_over, open_clock, read_about
from steppe.search.journal import import_optuna
from steppe.search.observer import SearchObserver
from steppe.search.pareto import Fitted, tabulate, write_fronts
from steppe.search.pretrained_search import PRETRAINED_KIND, PretrainedSearch
from steppe.search.probe_search import IMAGE_SIZES, LEAST_SIZE, suits_pretrained
from steppe.search.space import Wanted
from steppe.search.trial_search import Search
from steppe.train import available_cores, pick_device

START_S = 10.0
"""What Ray takes at the least to start and to have a worker ready."""

__all__ = ["Budget", "Fitted", "Wanted", "fit"]


def fit(
    wanted: Wanted,
    budget: float | Budget,
    out: str | Path,
    *,
    data_root: str | Path | None = None,
    device: str | None = None,
    keeping: Keeping | None = None,
    progress: data.Progress | None = None,
    observer: SearchObserver | None = None,
    began: float | None = None,
    on_ray: bool = False,
    address: str | None = None,
) -> Fitted:
    """Search for the best model within a budget, or go on with a search.

    Args:
        wanted: what for.
        budget: seconds for everything: reading, compiling, training, evaluating, in all sessions together. Or
            `Budget(200, "epochs")`: no clock has a part in such a search; on a CPU it always ends in the same result.
        out: the search's folder.
        data_root: where named data sets live.
        device: by default the GPU where there is one.
        keeping: where the images are kept, and how they are read.
        progress: told how a slow reading of the data goes.
        observer: told how the search goes.
        began: `time.monotonic()` when the time began; by default now.
        on_ray: run the trials as tasks of a Ray cluster, several at a time.
        address: of that cluster; by default $RAY_ADDRESS, else one on this machine that ends with the search.

    Raises:
        ConfigError: the budget is too short for anything, weights were named that do not suit the images, or Optuna is
            not installed.
        RunError: the folder belongs to something else.
        Interrupted: Ctrl-C or SIGTERM; everything is kept.
    """
    began = time.monotonic() if began is None else began
    place = pick_device(device)
    folder = Path(out)
    budget = budget if isinstance(budget, Budget) else Budget(budget)
    observer = observer or SearchObserver()
    _check_folder(wanted, budget, folder)
    with ExitStack() as opened:
        about = read_about(folder)
        if about:
            opened.enter_context(locked(folder, "search"))
            about = read_about(folder)
            progress = _count_reading(folder, about, budget, began, progress)
        photographs = holds_photographs(wanted.data.name, data_root)
        pretrained = about.get("kind", PRETRAINED_KIND) == PRETRAINED_KIND
        backbones: list[Pretrained] = []
        named = wanted.weights not in ("auto", "none")
        if pretrained and (photographs or named):  # before reading: at which size photographs are kept depends on it
            backbones = find_backbones(wanted, data_root, say=observer.say, progress=progress)
        if "settled" in about:
            config = parse(DataConfig, about["settled"], where=str(folder / "fit.json"))
        else:
            config = _settle_sizes(wanted.data, photographs, bool(backbones), place, observer)
        dataset = data.load(config, data_root, progress, keeping=keeping)
        if pretrained and not (photographs or named) and suits_pretrained(dataset):
            backbones = find_backbones(wanted, data_root, say=observer.say, progress=progress)
        if named and not suits_pretrained(dataset):
            what = (
                f"pretrained weights need colour photographs of at least {LEAST_SIZE} px, unlike {wanted.data.name!r}"
            )
            raise ConfigError(what, where="--weights", fix="--weights none trains from scratch")
        if not about:  # data that cannot be read shall leave no folder
            opened.enter_context(locked(folder, "search"))
            about = read_about(folder)
        about |= {**wanted.to_json(), "settled": config.model_dump(mode="json", exclude_defaults=True)}
        about["settled"] |= {"name": config.name}
        if backbones and suits_pretrained(dataset):
            root = str(data_root) if data_root else None
            search = PretrainedSearch(
                replace(wanted, data=config),
                budget,
                folder,
                dataset,
                place,
                backbones,
                observer,
                began,
                about=about,
                data_root=root,
                keeping=keeping,
            )
            return _run_pretrained(search)
        import_optuna()
        executor, running = None, opened.enter_context(ExitStack())
        root = str(Path(data_root).absolute()) if data_root else None
        if on_ray and _has_work(budget, about, began):
            images = config, root, keeping or Keeping()
            executor = RayWorkers(folder, 1, available_cores(), address=address, device=device, images=images)
            running.enter_context(executor)
            opened.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)  # so that what is timed and forecast here holds there
        settled = replace(wanted, data=config)
        trials = Search(settled, budget, folder, dataset, place, keeping, observer, began, executor, about, root)
        try:
            if not trials.over:
                trials.try_out()
                trials.train_winner()
            running.close()  # what follows may have the workers' processors
            return trials.conclude()
        except (Interrupted, KeyboardInterrupt):
            trials.clock.beat(now=True)
            write_fronts(tabulate(trials.runs()), folder)
            raise _stopped(trials.clock, budget, folder) from None


def _run_pretrained(search: PretrainedSearch) -> Fitted:
    try:
        if not search.over:
            search.run()
        return search.conclude()
    except (Interrupted, KeyboardInterrupt):
        best = ""
        if search.probes.best:
            fitted = search.conclude(interrupted=True)
            best = f"the best so far, {search.probes.best.words}, is {fitted.best.path}"
        search.clock.beat(now=True)
        raise _stopped(search.clock, search.budget, search.folder, best) from None


def _stopped(clock: Clock, budget: Budget, folder: Path, best: str = "") -> Interrupted:
    what = f"stopped after {clock.elapsed_s:.0f} s"
    if budget.timed:
        what = f"stopped with {max(0.0, budget.amount - clock.elapsed_s):.0f} s of the budget left"
    what += f"; {best or 'nothing is lost'}"
    return Interrupted(what, where=str(folder), fix="run the same command again to go on from here")


def _settle_sizes(
    config: DataConfig, photographs: bool, pretrained: bool, device: torch.device, observer: SearchObserver
) -> DataConfig:
    """Say at which size photographs are kept, where the user gave none; sets of one small size keep theirs."""
    if config.image_size is not None or not photographs:
        return config
    if pretrained:
        return config.model_copy(update={"image_size": 224, "stored_size": max(IMAGE_SIZES)})
    size = 64 if device.type == "cpu" else 128
    observer.say(f"training from scratch at {size} px; --image-size takes another")
    return config.model_copy(update={"image_size": size})


def _count_reading(
    folder: Path, about: dict[str, Any], budget: Budget, began: float, progress: data.Progress | None
) -> data.Progress:
    """Count the time of a search that goes on while its images are read, too: a session may be killed in it."""
    clock = open_clock(folder, about, budget, began)
    clock.beat(now=True)

    def read(what: str, done: int, total: int) -> None:
        clock.beat()
        if progress:
            progress(what, done, total)

    return read


def _has_work(budget: Budget, about: dict[str, Any], began: float) -> bool:
    """Whether workers would have anything to do: not where a search is over, or its time is before they are ready."""
    if is_over(about, budget):
        return False
    spent_s = float(about.get("elapsed_s", 0.0)) + time.monotonic() - began
    return not budget.timed or spent_s + START_S < budget.amount


def _check_folder(wanted: Wanted, budget: Budget, folder: Path) -> None:
    """A search has a folder of its own, and goes on with what it began with."""
    about = read_about(folder)
    fix = "choose another folder with --out"
    if not about:
        if holds_others(folder):
            raise RunError("the folder is not empty and holds no steppe search", where=str(folder), fix=fix)
        return
    other = Budget(0, "epochs" if budget.timed else "seconds")
    if other.key("budget") in about:
        what = f"this folder belongs to a search with a budget of {other.unit}, not of {budget.unit}"
        raise RunError(what, where=str(folder), fix=fix)
    for key, value in wanted.to_json().items():
        if about.get(key) != value:
            what = f"this folder belongs to a search with another {key}: {about.get(key)!r} there, {value!r} here"
            raise RunError(what, where=str(folder), fix=fix)
