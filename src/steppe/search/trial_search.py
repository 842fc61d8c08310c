"""The state of a search, and what moves it on: trials rung by rung, then the winner, then what is written down."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from steppe.config import MeasureConfig, RunConfig
from steppe.data import Dataset, Keeping, check_unchanged
from steppe.errors import ConfigError, RunError
from steppe.jobs import ENDS, Event, Executor, Here, Job
from steppe.runs import Run
from steppe.runs.answers import ANSWERS
from steppe.search.account import SEARCH_SHARE, Account
from steppe.search.budget import Budget, is_over, open_clock
from steppe.search.chosen import count_images, evaluate_chosen, time_forward
from steppe.search.journal import (
    FACTOR,
    begin_trial,
    choose,
    interrupted_trials,
    is_complete,
    open_journal,
    to_promote,
)
from steppe.search.moments import note_moment
from steppe.search.observer import SearchObserver
from steppe.search.pareto import Fitted, explain, tabulate, write_fronts, write_study
from steppe.search.space import (
    Candidate,
    Space,
    Wanted,
    describe,
    find_models,
    recommended,
    to_config,
)
from steppe.search.trial import Outcome, TrialSettings, make_trial
from steppe.studies.pipeline import add_measures

if TYPE_CHECKING:
    import optuna

EVALUATE_SHARE = 0.2
"""How much of the budget may be kept for the test images: if that is not enough, the winner is tested on some."""
LEAST_PASSES, LEAST_STEPS = 4, 60
"""A trial of the lowest rung sees every image so often, and makes so many steps: after fewer nothing can be told."""
LEAST_EPOCHS = 10
"""A budget of fewer leaves nothing to choose from."""


class Search:
    """The state of a search, and what moves it on."""

    def __init__(
        self,
        wanted: Wanted,
        budget: Budget,
        folder: Path,
        dataset: Dataset,
        device: torch.device,
        keeping: Keeping | None,
        observer: SearchObserver,
        began: float,
        executor: Executor | None = None,
        about: dict[str, Any] | None = None,
        data_root: str | None = None,
    ) -> None:
        self.wanted, self.folder, self.dataset = wanted, folder, dataset
        self.device, self.observer = device, observer
        self.about: dict[str, Any] = {**wanted.to_json(), **(about or {}), "kind": "scratch"}
        recorded = self.about.setdefault("recorded", dataset.describe())
        check_unchanged(recorded, dataset, what="the images have changed since the search began", where=str(folder))
        self.over = is_over(self.about, budget)
        before = float(self.about.get(budget.key("budget"), 0.0))
        earlier = None
        if budget.amount > before:  # a longer one: the search itself goes on
            earlier = self.about.pop("final", None)
            self.about.pop("best", None)
        self.budget = Budget(before, budget.unit) if self.over else budget
        self.about[budget.key("budget")] = self.budget.amount
        self.clock = open_clock(folder, self.about, self.budget, began)
        self.clock.beat(now=True)
        came_s = time.monotonic() - began
        self.account = Account(self.budget, self.clock, self.about, self._trials, len(dataset.train), came_s)
        if "space" not in self.about:
            try:
                self._settle()
            except ConfigError:  # nothing has begun: a longer budget shall find its time whole
                (folder / "fit.json").unlink(missing_ok=True)
                raise
        self.space = Space.from_json(self.about["space"])
        self.study = open_journal(folder)
        if earlier and not budget.timed:
            self.about["finals_epochs"] = self.about.get("finals_epochs", 0.0) + self._epochs_of_final(earlier)
        self.executor = executor or Here(dataset)
        self._data_root, self._keeping = data_root, keeping or Keeping()
        self._began: dict[str, float] = {}
        self.clock.beat(now=True)
        self._timed: dict[str, float] = {}

    # -- what is tried ------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Choose the models, and how long the lowest rung is: a few epochs of the quickest model."""
        timed = self.budget.timed
        candidates = find_models(
            self.dataset,
            self.device,
            names=self.wanted.models,
            enough=self._saw_enough,
            timed=timed,
        )
        self.account.note_ready()
        self._check_budget()
        length = self.account.for_trials
        kept = [c for c in candidates if 2 * c.epoch_s <= length / FACTOR] or candidates[:1]
        epoch = kept[0].epoch_s if timed else 1.0
        steps_s = LEAST_STEPS * epoch / max(1, self.account.steps(64))
        first = min(max(LEAST_PASSES * epoch, steps_s, length / 150), length / FACTOR)
        first = float(f"{first if timed else max(1.0, first):.2g}")
        images = len(self.dataset.train)
        sizes = tuple(size for size in (32, 64, 128, 256) if size <= max(32, images // 8))
        space = Space(
            models=_in_given_order(kept, self.wanted.models),
            batch_sizes=sizes if self.device.type == "cpu" else (*sizes, *(512,) * (images >= 4096)),
            crop=self.dataset.image_size // 8,
        )
        self.about |= {"space": space.to_json(), self.budget.key("lowest_rung"): first}

    def _saw_enough(self, found: Sequence[Candidate]) -> bool:
        """Whether to time no more models: a quarter of the time is over, or they have become too slow to be kept.

        They come with the cheap ones first, unless somebody named them.
        """
        self.clock.beat()
        if not self.budget.timed:
            return False
        spent, amount = self.clock.elapsed_s, self.budget.amount
        longest = SEARCH_SHARE * (amount - self.account.reserve - spent) / FACTOR
        slow = len(found) > 2 and all(2 * candidate.epoch_s > longest for candidate in found[-2:])
        return spent > 0.25 * amount or (slow and not self.wanted.models)

    def _check_budget(self) -> None:
        """Refuse a budget that leaves too little for trials."""
        length = self.account.for_trials
        what, least = "", f"{LEAST_EPOCHS}epochs"
        if not self.budget.timed and self.budget.amount < LEAST_EPOCHS:
            what = f"a budget of {self.budget} leaves nothing to choose from"
        elif self.budget.timed and length < max(1.0, 0.1 * self.budget.amount):
            spent = f"starting and reading took {self.clock.elapsed_s:.1f} s"
            what = f"a budget of {self.budget.amount:g} s leaves no time to learn: {spent}"
            least = f"{max(10, round(4 * self.clock.elapsed_s))}s"
        if what:
            raise ConfigError(what, where="--budget", fix=f"give at least --budget {least}")

    def try_out(self) -> None:
        """Run trials while their part of the budget lasts, as many at a time as there is room for."""
        if "final" in self.about:
            return
        can_begin = self._has_room(self.budget.amount - self.account.reserve)
        if not self._trials():  # what it took until somebody could begin is no trial's cost
            self.account.note_ready()
            self._check_budget()
        if not can_begin:
            return
        running: dict[int, optuna.Trial] = {}
        again = interrupted_trials(self.study)
        while True:
            while self._has_room(self.account.search_until):
                trial = again.pop(0) if again else self._next_trial()
                if trial is None:
                    break
                running[trial._trial_id] = trial
                self._begin(trial)
            if not running:
                return
            for event in self._ends():
                self._end(running.pop(event.job.settings.trial), event.job, self._outcome(event))

    def _has_room(self, spent_at_most: float) -> bool:
        """Whether another run can be begun, now or before so much is spent."""
        return self.executor.has_room(self.clock.beat, self.account.allowed_s(spent_at_most))

    def _next_trial(self) -> optuna.Trial | None:
        """The next configuration and its rung, or None when the budget would not suffice, or nothing works."""
        account, known = self.account, self._known()
        promoted = to_promote(self._trials(), account.top_rung())
        rung = promoted.user_attrs["rung"] + 1 if promoted else 0
        end = account.spent + account.cost(account.length_of(rung))
        if (known and end > account.search_until) or (len(known) >= 10 and not any(map(is_complete, known))):
            return None
        if not known and account.spent > account.search_until:
            return None
        point = None if promoted else self._next_recommended()
        chosen = promoted or choose(self.study, self.space, self.wanted.seed, point)
        about: dict[str, Any] = {"rung": rung, "run": self._config(chosen.params, account.length_of(rung)).run_id}
        about |= ({"of": promoted.number} if promoted else {}) | ({"recommended": True} if point else {})
        return begin_trial(self.study, chosen, about)

    def _next_recommended(self) -> dict[str, Any] | None:
        """What is not left to the sampler yet."""
        before = sum("recommended" in t.user_attrs for t in self._trials())
        return next(iter(recommended(self.space)[before:]), None)

    def _trials(self) -> list[optuna.trial.FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def _known(self) -> list[optuna.trial.FrozenTrial]:
        return [t for t in self._trials() if t.state.is_finished() and "rung" in t.user_attrs]

    def _config(self, point: dict[str, Any], length: float) -> RunConfig:
        values = self.wanted.to_json()["data"]
        budget = {"seconds": length}
        if not self.budget.timed:
            budget = {"gradient_evaluations": max(2, int(length * self.account.steps(point["batch_size"])))}
        return to_config(point, self.space, data=values, seed=self.wanted.seed, budget=budget)

    def _begin(self, trial: optuna.Trial) -> None:
        rung = trial.user_attrs["rung"]
        config = self._config(trial.params, self.account.length_of(rung))
        self._tell_start(config)
        allowed_s = self.account.allowed_s(self.budget.amount - self.account.reserve)
        study = self.study if isinstance(self.executor, Here) else None
        self._submit(config, allowed_s, TrialSettings(self.wanted.data, trial._trial_id, rung, study=study))

    def _submit(self, config: RunConfig, allowed_s: float, settings: TrialSettings) -> None:
        place = str(self.device), self._data_root, self._keeping
        self._began[config.run_id] = time.monotonic()
        self.executor.submit(Job(config, self.folder / config.run_id, make_trial, settings, *place, allowed_s))

    def _ends(self) -> list[Event]:
        """Wait a moment for jobs that end."""
        return [event for event in self.executor.wait(self.clock.beat) if event.name in ENDS]

    def _outcome(self, event: Event) -> Outcome:
        """Return how a job ended; what handing it out took is a fixed cost of it."""
        wall_s = time.monotonic() - self._began[event.job.folder.name]
        if event.name != "done":
            late = event.name == "stopped" or wall_s > event.job.allowed_s
            return Outcome("late" if late else "failed", None, wall_s, reason=str(event.details or ""))
        outcome: Outcome = event.details
        if outcome.factor is None:
            return outcome
        return replace(outcome, wall_s=wall_s, fixed_s=outcome.fixed_s + max(0.0, wall_s - outcome.wall_s))

    def _end(self, trial: optuna.Trial, job: Job, outcome: Outcome) -> None:
        """Tell Optuna how a trial ended, and keep what it cost beside its result."""
        import optuna

        if outcome.factor is not None:
            trial.set_user_attr("cost", [outcome.factor, outcome.fixed_s])
        trial.set_user_attr("epochs", self.account.to_epochs(job.config, outcome.gradients))
        trial.set_user_attr("val_accuracy", outcome.val_accuracy)
        if outcome.state == "complete":
            self.about.setdefault("first_s", round(self.clock.elapsed_s, 2))
        states = {"complete": optuna.trial.TrialState.COMPLETE, "pruned": optuna.trial.TrialState.PRUNED}
        state = states.get(outcome.state, optuna.trial.TrialState.FAIL)
        self.study.tell(trial, outcome.score if state == optuna.trial.TrialState.COMPLETE else None, state)
        self._tell_end(job.config, outcome)
        self.clock.beat(now=True)

    # -- the winner ---------------------------------------------------------------------------------------------

    def train_winner(self) -> None:
        """Train the best configuration with what is left; if that is too little, leave it at the trials."""
        final = self.about.get("final")
        if final and self._finished(self._config_of_final(final)):
            return
        if not self._has_room(self.budget.amount - self.account.reserve):
            return
        if final and not self._can_go_on(final):
            final = None
        if not final:
            best = self._winner()
            if best is None:
                return
            length = self._final_length(best)
            if length < 0.5 * self.account.length_of(best.user_attrs["rung"]) or length < 0.5:
                return
            final = {"trial": best.number, self.budget.unit: length}
            self.about["final"] = final
            self.clock.beat(now=True)
        config = self._config_of_final(final)
        self.about["finals"] = sorted({*self.about.get("finals", ()), config.run_id})
        self.clock.beat(now=True)
        if self._finished(config):
            return
        self._tell_start(config, final=True)
        after_s = self._fixed_s(config.model.name) + self._evaluate_s(self._trials()[final["trial"]])
        allowed_s = self.account.allowed_s(1.02 * self.budget.amount - after_s)
        captured = self._captured(final[self.budget.unit])
        self._submit(config, allowed_s, TrialSettings(self.wanted.data, captured=captured))
        self.executor.dismiss()
        while not (ended := self._ends()):
            pass
        self._tell_end(config, self._outcome(ended[0]))

    def _winner(self) -> optuna.trial.FrozenTrial | None:
        """The best of the highest rung that any trial completed."""
        return max(filter(is_complete, self._known()), key=lambda t: (t.user_attrs["rung"], t.value), default=None)

    def _config_of_final(self, final: dict[str, Any]) -> RunConfig:
        return self._config(self._trials()[final["trial"]].params, final[self.budget.unit])

    def _epochs_of_final(self, final: dict[str, Any]) -> float:
        folder = self.folder / self._config_of_final(final).run_id
        return self.account.epochs_of(Run(folder)) if (folder / "config.toml").exists() else 0.0

    def _captured(self, length: float) -> bool:
        """Compiling pays in a long training; every trial would pay for it again."""
        return self.device.type == "cuda" and (length >= 300 or not self.budget.timed)

    def _fixed_s(self, model: str) -> float:
        return (self.account.costs(model) or (1.3, 1.0))[1]

    def _final_length(self, best: optuna.trial.FrozenTrial) -> float:
        """Seconds of training that fit into what is left, with what goes along with them; or the epochs left."""
        if not self.budget.timed:
            return self.budget.amount - self.account.spent
        model = best.params["model"]
        left = self.budget.amount - self.account.spent - self.account.reserve - 1.5 * self._fixed_s(model)
        left -= self._evaluate_s(best)
        measure_s = self._measure_s(best.user_attrs["run"])
        left -= measure_s if measure_s < 0.03 * self.budget.amount else 0.0
        if self._captured(left):
            left -= 60.0
        factor, _ = self.account.costs(model) or (1.3, 1.0)
        return float(f"{max(0.0, left) / (1.03 * factor):.3g}")

    def _can_go_on(self, final: dict[str, Any]) -> bool:
        """Whether what a final run still needs fits into what is left, give or take two per cent."""
        config = self._config_of_final(final)
        if not self.budget.timed:
            return True
        records = Run(self.folder / config.run_id).metrics() if (self.folder / config.run_id).exists() else []
        to_go = final["seconds"] - (records[-1]["time_s"] if records else 0.0)
        needed = self.account.cost(to_go, config.model.name) + self.account.reserve
        needed += self._evaluate_s(self._trials()[final["trial"]])
        return self.account.spent + needed <= 1.02 * self.budget.amount

    def _finished(self, config: RunConfig) -> bool:
        return (self.folder / config.run_id / "config.toml").exists() and Run(self.folder / config.run_id).finished

    # -- what is told -------------------------------------------------------------------------------------------

    def _tell_start(self, config: RunConfig, *, final: bool = False) -> None:
        words = _name(config)
        if final:
            words = f"the winner, {words}"
            self.observer.say(f"training {words}")
        self.observer.status(self.clock.elapsed_s, self._best_words(), f"training {words}")

    def _tell_end(self, config: RunConfig, outcome: Outcome) -> None:
        count = len(self._known())
        score = "" if outcome.val_accuracy is None else f", {outcome.val_accuracy:.1%} validation"
        if outcome.state == "complete" and outcome.val_accuracy is not None:
            words, run = _name(config), config.run_id
            note_moment(self.about, self.clock.elapsed_s, "trial", words, outcome.val_accuracy, run)
        how = {"complete": "", "pruned": ": given up", "late": ": out of time", "failed": f": {outcome.reason}"}
        self.observer.say(f"[{count}] {_name(config)}{how[outcome.state]}{score}")

    def _best_words(self) -> str:
        best = self._winner()
        value = best.user_attrs.get("val_accuracy") if best else None
        return "" if best is None or value is None else f"{value:.1%} ({best.params['model']})"

    # -- what is left -------------------------------------------------------------------------------------------

    def runs(self) -> list[Run]:
        """Every run that this search has begun, by its own record; other folders beside them are none of it."""
        ids = {t.user_attrs["run"] for t in self._trials() if "run" in t.user_attrs} | set(self.about.get("finals", ()))
        return [Run(self.folder / one) for one in sorted(ids) if (self.folder / one / "config.toml").is_file()]

    def conclude(self) -> Fitted:
        """Choose the best run, test it, measure its flatness if there is time, and write everything down."""
        runs = self.runs()
        rows = tabulate(runs)
        if not rows:
            reasons = [run.read_or_empty("summary.json").get("reason") for run in runs]
            fix = next((str(r) for r in reasons if r), "give more time with --budget")
            raise RunError("no trial came to its end", where=str(self.folder), fix=fix)
        by_id = {run.id: run for run in runs}
        best = by_id[rows[0]["run"]]
        self._evaluate(best)
        self._measure(best)
        rows = tabulate(runs)
        write_fronts(rows, self.folder)
        tried = len({tuple(sorted(t.params.items())) for t in self._known()})
        answer = explain(best, rows, tried, self.budget)
        ordered = [by_id[row["run"]] for row in rows]
        ordered += [run for run in runs if run not in ordered]
        write_study(self.folder, ordered, self.wanted.data.name, answer, self.budget)
        self.about |= {"best": best.id, "answer": answer}
        self.clock.beat(now=True)
        final = self.about.get("final")
        spent = self.account.spent
        if final and not self.budget.timed:
            spent += self._epochs_of_final(final)
        return Fitted(self.folder, best, answer, ordered, self.clock, self.budget, spent)

    def _evaluate(self, best: Run) -> None:
        """Show it the test images, as many as there is time for; no run before it has seen any."""
        most = math.inf
        if self.budget.timed and "test" not in best.summary:
            left_s = self.budget.amount - 0.5 * self.account.reserve - self.account.spent
            most = left_s / self._forward_s(best.id)
        evaluate_chosen(best, self.dataset, self.device, most=most, tell=lambda done: self.clock.beat())

    def _measure(self, best: Run) -> None:
        """Flatness of the best run, where the time allows."""
        until_s = self.budget.amount - 0.7 * self.account.reserve
        if self.budget.timed:
            answered = (best.path / ANSWERS).is_file()  # if not, there was no time even for all test images
            if not answered or self.account.spent + self._measure_s(best.id) >= until_s:
                return
        add_measures(best, self.dataset, MeasureConfig(), device=str(self.device))

    def _evaluate_s(self, best: optuna.trial.FrozenTrial) -> float:
        """What is kept for the evaluation of the winner; no more, however many test images there are."""
        if not self.budget.timed:
            return 0.0
        needed = 1.2 * count_images(self.dataset) * self._forward_s(best.user_attrs["run"])
        return min(needed, EVALUATE_SHARE * self.budget.amount)

    def _measure_s(self, run_id: str) -> float:
        """What measuring flatness takes: forward passes over some images for every noise."""
        settings, count = MeasureConfig(), len(self.dataset.train)
        return 1.2 * min(settings.noise_examples, count) * (settings.noise_draws + 1) * self._forward_s(run_id)

    def _forward_s(self, run_id: str) -> float:
        """Seconds for an image; timed once in a session."""
        if run_id not in self._timed:
            self._timed[run_id] = time_forward(Run(self.folder / run_id), self.dataset, self.device)
        return self._timed[run_id]


def _name(config: RunConfig) -> str:
    words = describe(config)
    length = f"{words['seconds']} s" if "seconds" in words else f"{words['gradients']} gradients"
    return f"{words['model']} · {words['training']} · {length}"


def _in_given_order(candidates: Sequence[Candidate], given: Sequence[str]) -> tuple[str, ...]:
    names = [candidate.name for candidate in candidates]
    return tuple(name for name in given if name in names) if given else tuple(names)
