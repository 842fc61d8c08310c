"""The state of a search, and what moves it on: trials rung by rung, then the winner, then what is written down."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from steppe.config import MeasureConfig, RunConfig
from steppe.data import Dataset, Keeping
from steppe.errors import ConfigError, RunError
from steppe.runs import Run, read_json, write_json
from steppe.studies.clock import Clock, show_seconds
from steppe.studies.executor import Executor, Here, Job
from steppe.studies.front import Fitted, explain, tabulate, write_fronts, write_study
from steppe.studies.journal import (
    FACTOR,
    begin_trial,
    choose,
    interrupted_trials,
    is_complete,
    open_journal,
    to_promote,
)
from steppe.studies.pipeline import add_measures
from steppe.studies.space import (
    SCRATCH,
    Candidate,
    Space,
    Wanted,
    find_models,
    recommended,
    to_config,
)
from steppe.studies.trial import Outcome

if TYPE_CHECKING:
    import optuna

SEARCH_SHARE = 0.5
"""How much of the time is for trials."""

Notify = Callable[[str, RunConfig, Outcome | None], None]
"""Told "start", "final", and every outcome's state, with the run concerned."""


class Search:
    """The state of a search, and what moves it on."""

    def __init__(
        self,
        wanted: Wanted,
        budget_s: float,
        folder: Path,
        dataset: Dataset,
        device: torch.device,
        keeping: Keeping | None,
        notify: Notify,
        began: float,
        executor: Executor | None = None,
    ) -> None:
        self.wanted, self.folder, self.dataset = wanted, folder, dataset
        self.device, self.notify = device, notify
        self.about: dict[str, Any] = {**read_about(folder), **wanted.to_json()}
        if budget_s > self.about.get("budget_s", 0.0):  # a longer one than before: the search itself goes on
            self.about.pop("final", None)
            self.about.pop("best", None)
        self.over = "best" in self.about
        self.budget_s = float(self.about["budget_s"]) if self.over else budget_s
        self.about["budget_s"] = self.budget_s
        self.came_s = time.monotonic() - began
        self.clock = Clock(began, float(self.about.get("elapsed_s", 0.0)), self._keep_time, over=self.over)
        if "space" not in self.about:
            self._settle()
        self.space = Space.from_json(self.about["space"])
        self.first_s = float(self.about["first_s"])
        self.study = open_journal(folder)
        self.executor = executor or Here(self.study, dataset, folder, str(device), keeping)
        self.clock.beat(now=True)

    # -- what is tried ------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Choose the models, and how long the lowest rung is: a few epochs of the quickest model."""
        weights = self.wanted.weights
        modes = (SCRATCH, "frozen", "finetune") if weights else (SCRATCH,)
        candidates = find_models(
            self.dataset,
            self.device,
            names=self.wanted.models,
            weights=weights,
            modes=modes,
            enough=lambda: self.clock.elapsed_s > 0.25 * self.budget_s,
        )
        self.about["ready_s"] = round(self.clock.elapsed_s, 2)
        search_s = self._search_until_s - self.clock.elapsed_s
        if search_s < max(1.0, 0.1 * self.budget_s):
            spent = f"starting and reading took {self.clock.elapsed_s:.1f} s"
            what = f"a budget of {self.budget_s:g} s leaves no time to learn: {spent}"
            mend = f"give at least --budget {max(10, round(4 * self.clock.elapsed_s))}s"
            raise ConfigError(what, where="--budget", mend=mend)
        top_s = search_s / FACTOR
        kept = [c for c in candidates if 2 * c.epoch_s <= top_s] or candidates[:1]
        self.first_s = float(f"{min(max(4 * kept[0].epoch_s, search_s / 150), search_s / 24):.2g}")
        images = len(self.dataset.train)
        sizes = tuple(size for size in (32, 64, 128, 256) if size <= max(32, images // 8))
        space = Space(
            models=_in_given_order(kept, self.wanted.models),
            modes=modes,
            weights=weights,
            batch_sizes=sizes if self.device.type == "cpu" else (*sizes, *(512,) * (images >= 4096)),
            crop=self.dataset.image_size // 8,
        )
        self.about |= {"space": space.to_json(), "first_s": self.first_s}

    @property
    def _search_until_s(self) -> float:
        """When the trials end: after a share of what reading the data and looking at the models has left."""
        ready_s = float(self.about["ready_s"])
        return ready_s + SEARCH_SHARE * max(0.0, self.budget_s - self._reserve_s - ready_s)

    @property
    def _reserve_s(self) -> float:
        """For the tables, the page, and leaving, which takes its time where coming did."""
        return 1.0 + 0.02 * self.budget_s + 0.25 * self.came_s

    def _seconds_of(self, rung: int) -> float:
        return self.first_s * FACTOR**rung

    def _top_rung(self) -> int:
        rung = 0
        while self._seconds_of(rung + 1) <= (self._search_until_s - self.about["ready_s"]) / FACTOR:
            rung += 1
        return rung

    def try_out(self) -> None:
        """Run trials while their time lasts, as many at a time as there is room for."""
        if "final" in self.about:
            return
        running: dict[int, optuna.Trial] = {}
        again = interrupted_trials(self.study)
        while True:
            while len(running) < self.executor.slots and (trial := again.pop(0) if again else self._next_trial()):
                running[trial._trial_id] = trial
                self._begin(trial)
            if not running:
                return
            for job, outcome in self.executor.wait(self.clock.beat):
                assert job.trial is not None
                self._end(running.pop(job.trial), job, outcome)

    def _next_trial(self) -> optuna.Trial | None:
        """The next configuration and its rung, or None when its time would not suffice, or nothing works."""
        trials, known = self.study.get_trials(deepcopy=False), self._known()
        promoted = to_promote(trials, self._top_rung())
        rung = promoted.user_attrs["rung"] + 1 if promoted else 0
        end_s = self.clock.elapsed_s + self._wall_s(self._seconds_of(rung))
        if (known and end_s > self._search_until_s) or (len(known) >= 10 and not any(map(is_complete, known))):
            return None
        if not known and self.clock.elapsed_s > self._search_until_s:
            return None
        point = None if promoted else self._next_recommended()
        chosen = promoted or choose(self.study, self.space, self.wanted.seed, point)
        about: dict[str, Any] = {"rung": rung, "run": self._config(chosen.params, self._seconds_of(rung)).run_id}
        about |= ({"of": promoted.number} if promoted else {}) | ({"recommended": True} if point else {})
        return begin_trial(self.study, chosen, about)

    def _next_recommended(self) -> dict[str, Any] | None:
        """What is not left to the sampler yet."""
        before = sum("recommended" in t.user_attrs for t in self.study.get_trials(deepcopy=False))
        return next(iter(recommended(self.space)[before:]), None)

    def _known(self) -> list[optuna.trial.FrozenTrial]:
        return [t for t in self.study.get_trials(deepcopy=False) if t.state.is_finished() and "rung" in t.user_attrs]

    def _config(self, point: dict[str, Any], seconds: float) -> RunConfig:
        values = self.wanted.to_json()["data"]
        return to_config(point, self.space, data=values, seed=self.wanted.seed, seconds=seconds)

    def _begin(self, trial: optuna.Trial) -> None:
        rung = trial.user_attrs["rung"]
        config = self._config(trial.params, self._seconds_of(rung))
        self.notify("start", config, None)
        allowed_s = self.budget_s - self._reserve_s - self.clock.elapsed_s
        self.executor.submit(Job(config, allowed_s, trial._trial_id, rung))

    def _end(self, trial: optuna.Trial, job: Job, outcome: Outcome) -> None:
        """Tell Optuna how a trial ended, and keep what it cost beside its result."""
        import optuna

        if outcome.factor is not None:
            trial.set_user_attr("cost", [outcome.factor, outcome.fixed_s])
        states = {"complete": optuna.trial.TrialState.COMPLETE, "pruned": optuna.trial.TrialState.PRUNED}
        state = states.get(outcome.state, optuna.trial.TrialState.FAIL)
        self.study.tell(trial, outcome.score if state == optuna.trial.TrialState.COMPLETE else None, state)
        self.clock.beat(now=True)
        self.notify(outcome.state, job.config, outcome)

    def _costs(self, model: str | None = None) -> tuple[float, float] | None:
        """Of the slowest trial so far: seconds of the loop for each of training, and seconds outside of the loop."""
        found = [
            t.user_attrs["cost"] for t in self._known() if "cost" in t.user_attrs and model in (None, t.params["model"])
        ]
        return (max(f for f, _ in found), max(s for _, s in found)) if found else None

    def _wall_s(self, seconds: float, model: str | None = None) -> float:
        """How long a run of so many seconds of training takes altogether."""
        factor, fixed_s = self._costs(model) or self._costs() or (1.3, 0.5)
        return seconds * factor + fixed_s

    # -- the winner ---------------------------------------------------------------------------------------------

    def train_winner(self) -> None:
        """Train the best configuration with the time that is left; if there is too little, leave it at the trials."""
        final = self.about.get("final")
        if final and not self._can_go_on(final):
            final = None
        if not final:
            best = self._winner()
            if best is None:
                return
            seconds = self._final_s(best)
            if seconds < 0.5 * self._seconds_of(best.user_attrs["rung"]) or seconds < 0.5:
                return
            final = {"trial": best.number, "seconds": seconds}
            self.about["final"] = final
            self.clock.beat(now=True)
        config = self._config(self.study.get_trials(deepcopy=False)[final["trial"]].params, final["seconds"])
        if self._finished(config):
            return
        self.notify("final", config, None)
        allowed_s = self.budget_s * 1.02 - self.clock.elapsed_s - self._fixed_s(config.model.name)
        self.executor.submit(Job(config, allowed_s, captured=self._captured(final["seconds"])))
        for _, outcome in self.executor.wait(self.clock.beat):
            self.notify(outcome.state, config, outcome)

    def _winner(self) -> optuna.trial.FrozenTrial | None:
        """The best of the highest rung that any trial completed."""
        return max(filter(is_complete, self._known()), key=lambda t: (t.user_attrs["rung"], t.value), default=None)

    def _captured(self, seconds: float) -> bool:
        """Compiling pays in a long training; every trial would pay for it again."""
        return self.device.type == "cuda" and seconds >= 300

    def _fixed_s(self, model: str) -> float:
        return (self._costs(model) or (1.3, 1.0))[1]

    def _final_s(self, best: optuna.trial.FrozenTrial) -> float:
        """Seconds of training that fit into what is left, with what goes along with them."""
        model = best.params["model"]
        left = self.budget_s - self.clock.elapsed_s - self._reserve_s - 1.5 * self._fixed_s(model)
        left -= measure_s if (measure_s := self._measure_s(best.user_attrs["run"])) < 0.03 * self.budget_s else 0.0
        if self._captured(left):
            left -= 60.0
        factor, _ = self._costs(model) or (1.3, 1.0)
        return float(f"{max(0.0, left) / (1.03 * factor):.3g}")

    def _can_go_on(self, final: dict[str, Any]) -> bool:
        """Whether what a final run still needs fits into what is left, give or take two per cent."""
        trial = self.study.get_trials(deepcopy=False)[final["trial"]]
        config = self._config(trial.params, final["seconds"])
        if self._finished(config):
            return True
        records = Run(self.folder / config.run_id).metrics() if (self.folder / config.run_id).exists() else []
        to_go = final["seconds"] - (records[-1]["time_s"] if records else 0.0)
        needed = self._wall_s(to_go, config.model.name) + self._reserve_s
        return self.clock.elapsed_s + needed <= 1.02 * self.budget_s

    def _finished(self, config: RunConfig) -> bool:
        return (self.folder / config.run_id / "config.toml").exists() and Run(self.folder / config.run_id).finished

    # -- what is left -------------------------------------------------------------------------------------------

    def runs(self) -> list[Run]:
        """Every run of the folder."""
        return [Run(path.parent) for path in sorted(self.folder.glob("*/config.toml")) if not path.parent.is_symlink()]

    def conclude(self) -> Fitted:
        """Choose the best run, measure its flatness if there is time, and write everything down."""
        runs = self.runs()
        rows = tabulate(runs)
        if not rows:
            reasons = [run.read_or_empty("summary.json").get("reason") for run in runs]
            mend = next((str(r) for r in reasons if r), "give more time with --budget")
            raise RunError("no trial came to its end", where=str(self.folder), mend=mend)
        by_id = {run.id: run for run in runs}
        best = by_id[rows[0]["run"]]
        self._measure(best)
        write_fronts(rows, self.folder)
        tried = len({tuple(sorted(t.params.items())) for t in self._known()})
        answer = explain(rows, tried, show_seconds(self.budget_s))
        ordered = [by_id[row["run"]] for row in rows]
        ordered += [run for run in runs if run not in ordered]
        write_study(self.folder, ordered, self.wanted.data.name, answer, show_seconds(self.budget_s))
        self.about |= {"best": best.id, "answer": answer}
        self.clock.beat(now=True)
        return Fitted(self.folder, best, answer, ordered, self.clock, self.budget_s)

    def _measure(self, best: Run) -> None:
        """Flatness of the best run, where the time allows."""
        if self.clock.elapsed_s + self._measure_s(best.id) < self.budget_s - 0.7 * self._reserve_s:
            add_measures(best, self.dataset, MeasureConfig(), device=str(self.device))

    def _measure_s(self, run_id: str) -> float:
        """What flatness takes, about: a forward pass over some images for every draw, a third of a training step."""
        settings, count = MeasureConfig(), len(self.dataset.train)
        found = Run(self.folder / run_id).read_or_empty("summary.json").get("time_per_epoch_s", 0.0)
        return 0.4 * found / count * min(settings.noise_examples, count) * (settings.noise_draws + 1)

    def _keep_time(self, elapsed_s: float) -> None:
        """Keep the time."""
        write_json(self.folder / "fit.json", {**self.about, "elapsed_s": round(elapsed_s, 2)})


def read_about(folder: Path) -> dict[str, Any]:
    """What a folder says of its search; empty where there is none."""
    path = folder / "fit.json"
    about = read_json(path) if path.is_file() else {}
    return about if isinstance(about, dict) else {}


def _in_given_order(candidates: Sequence[Candidate], given: Sequence[str]) -> tuple[str, ...]:
    names = [candidate.name for candidate in candidates]
    return tuple(name for name in given if name in names) if given else tuple(names)
