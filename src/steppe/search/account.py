"""What a search has spent of its budget, what it may still spend, and what a run of it takes, by what others took."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from steppe.config import RunConfig
from steppe.runs import Run
from steppe.search.budget import Budget, Clock
from steppe.search.journal import FACTOR

if TYPE_CHECKING:
    import optuna

SEARCH_SHARE = 0.5
"""How much of the budget is for trials."""

Trials = Callable[[], "Sequence[optuna.trial.FrozenTrial]"]


class Account:
    """The budget of a search, of seconds or of epochs.

    Args:
        budget: what there is.
        clock: of all sessions.
        about: what the search's folder says of it: how long the lowest rung is, when it was ready, earlier winners.
        trials: gives those of the journal.
        train_count: training images.
        came_s: what this session took to come here.
    """

    def __init__(
        self, budget: Budget, clock: Clock, about: dict[str, Any], trials: Trials, train_count: int, came_s: float
    ) -> None:
        """Keep them."""
        self.budget, self.clock, self.about, self.trials = budget, clock, about, trials
        self.train_count, self.came_s = train_count, came_s

    @property
    def spent(self) -> float:
        """Of the budget, so far: the seconds of all sessions; or the epochs of all trials, of one under way in full."""
        if self.budget.timed:
            return self.clock.elapsed_s
        trials = [t for t in self.trials() if "rung" in t.user_attrs]
        spent = sum(float(t.user_attrs.get("epochs", self.length_of(t.user_attrs["rung"]))) for t in trials)
        return spent + float(self.about.get("finals_epochs", 0.0))

    @property
    def search_until(self) -> float:
        """When the trials end: after a share of what reading the data and looking at the models has left."""
        return self.ready + SEARCH_SHARE * max(0.0, self.budget.amount - self.reserve - self.ready)

    @property
    def for_trials(self) -> float:
        """What all trials together may spend."""
        return self.search_until - self.ready

    @property
    def ready(self) -> float:
        """What was spent before the first trial."""
        return float(self.about["ready_s"]) if self.budget.timed else 0.0

    @property
    def reserve(self) -> float:
        """For the tables, the page, and leaving, which takes its time where coming did."""
        return 1.0 + 0.02 * self.budget.amount + 0.25 * self.came_s if self.budget.timed else 0.0

    def note_ready(self) -> None:
        """What was spent until now is no trial's cost."""
        self.about["ready_s"] = round(self.clock.elapsed_s, 2)

    def allowed_s(self, spent_at_most: float) -> float:
        """Seconds until so much is spent; without end where seconds do not count."""
        return spent_at_most - self.spent if self.budget.timed else math.inf

    def length_of(self, rung: int) -> float:
        """The budget of a trial."""
        return float(self.about[self.budget.key("lowest_rung")]) * FACTOR**rung

    def top_rung(self) -> int:
        """The highest rung whose trials are not too long for the part that is for trials."""
        rung = 0
        while self.length_of(rung + 1) <= self.for_trials / FACTOR:
            rung += 1
        return rung

    # -- what a run takes ---------------------------------------------------------------------------------------

    def costs(self, model: str | None = None) -> tuple[float, float] | None:
        """Of the slowest trial so far: seconds of the loop for each of training, and seconds outside of the loop."""
        ended = [t for t in self.trials() if t.state.is_finished() and "cost" in t.user_attrs]
        found = [t.user_attrs["cost"] for t in ended if model in (None, t.params["model"])]
        return (max(f for f, _ in found), max(s for _, s in found)) if found else None

    def cost(self, length: float, model: str | None = None) -> float:
        """What a run of so many seconds, or epochs, of training takes of the budget altogether."""
        factor, fixed_s = self.costs(model) or self.costs() or (1.3, 0.5)
        return length * factor + fixed_s if self.budget.timed else length

    def steps(self, batch_size: int) -> int:
        """Steps in an epoch."""
        return self.train_count // min(batch_size, self.train_count)

    def to_epochs(self, config: RunConfig, gradients: float) -> float:
        """Gradients of a run as epochs."""
        return gradients / self.steps(config.batch_size)

    def epochs_of(self, run: Run) -> float:
        """The epochs of gradients that a run has had."""
        records = run.metrics()
        return self.to_epochs(run.config, records[-1]["gradient_evaluations"]) if records else 0.0
