"""The fine-tuning part of a search: which network at which image size, with which recipe, and for how long.

Fine-tuning begins only where it may be expected to beat the best probe. Every recipe gets a short time, and the best
one what is left. A search that is given more time goes on: with the best recipe so far for longer, or, given much more
time, with the network and image size that promise most then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from steppe import models
from steppe.config import use_data_root
from steppe.errors import Interrupted
from steppe.runs import Run
from steppe.search.final_network import FinalNetwork
from steppe.search.finetune import (
    FINAL_SHARE,
    LEAST_EPOCHS,
    RECIPES,
    Attempt,
    Recipe,
    expect_share,
    key_of,
    make_config,
    plan_attempts,
    rank,
)
from steppe.search.moments import note_moment
from steppe.search.probe_search import TIMED_SIZE, Candidate
from steppe.search.trial import run_trial
from steppe.train.soup import STATISTICS_IMAGES

if TYPE_CHECKING:
    from steppe.search.pretrained_search import PretrainedSearch

MUCH_MORE = 1.5
"""With this many times the seconds of all attempts so far, network and image size are chosen anew."""
LONGER = 1.05
"""An attempt with a recipe that has been tried gets at least this many times the longest time it had."""


class FineTuneSearch:
    """Attempts to fine-tune, kept in `about["tuning"]`; the recorded attempts alone decide the next one.

    Args:
        search: whose probes are to be beaten, and whose clock, folder and images count.
    """

    def __init__(self, search: PretrainedSearch) -> None:
        """Go on from what the search's folder says."""
        self.search = search

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """Attempts in the order in which they were planned; one that has ended has a `run` and an `accuracy`."""
        found: list[dict[str, Any]] = self.search.about.get("tuning", {}).get("attempts", [])
        return found

    @property
    def completed(self) -> list[dict[str, Any]]:
        """Attempts that trained to their end."""
        return [one for one in self.attempts if one.get("accuracy")]

    @property
    def judged(self) -> list[dict[str, Any]]:
        """Networks that the validation images can judge: attempts that trained to their end, and soups of them."""
        return [*self.completed, *(one for one in self.kept("soups") if one.get("run"))]

    @property
    def best(self) -> dict[str, Any] | None:
        """The network that answers most validation images right; among equals, with the smaller loss."""
        return max(self.judged, key=rank, default=None)

    @property
    def finals(self) -> list[str]:
        """Ids of networks that learned the validation images, too."""
        return [one["run"] for one in self.kept("finals") if one["state"] == "complete"]

    def final_of(self, run: str) -> str | None:
        """Return the id of what a network became by learning the validation images, too."""
        known = (one for one in self.kept("finals") if one["of"] == run and one["state"] == "complete")
        return next((str(one["run"]) for one in known), None)

    def kept(self, key: str) -> list[dict[str, Any]]:
        """Return what is noted of "soups" or "finals"."""
        found: list[dict[str, Any]] = self.search.about.get("tuning", {}).get(key, [])
        return found

    def keep(self, key: str, values: dict[str, Any]) -> None:
        """Note a soup or a final network in the search's folder."""
        self.search.about["tuning"].setdefault(key, []).append(values)
        self.search.clock.beat(now=True)

    @property
    def starts(self) -> list[str]:
        """Ids of the probes that attempts began with: they are compared with nothing."""
        found: list[str] = self.search.about.get("tuning", {}).get("starts", [])
        return found

    def run(self) -> None:
        """Make attempts while the budget lasts and they promise to beat the best probe, then better the best one."""
        if not self.search.budget.timed:
            return
        while values := self._next():
            self._make(values)
        final = FinalNetwork(self)
        final.make_soup()
        final.learn_validation_images()

    def _next(self) -> dict[str, Any] | None:
        """The first attempt that has not ended; where all have, plan more."""
        open_ones = [one for one in self.attempts if "run" not in one]
        if not open_ones and (planned := self._plan()):
            tuning = self.search.about.setdefault("tuning", {"attempts": [], "starts": []})
            open_ones = [asdict(one) for one in planned]
            tuning["attempts"] += open_ones
            self.search.clock.beat(now=True)
        return open_ones[0] if open_ones else None

    # -- what is worth its time ----------------------------------------------------------------------------------

    def _plan(self) -> list[Attempt]:
        """Plan the next attempts; none where they do not fit, or are not expected to beat the best probe."""
        spent_s = sum(one["seconds"] for one in self.attempts)
        last = self.attempts[-1] if self.attempts else None
        if last is not None:
            candidate = Candidate((last["backbone"],), last["image_size"])
            if self.left_s(candidate) < MUCH_MORE * spent_s:
                return self._go_on(candidate)
        chosen = self._choose()
        if chosen is None:
            return []
        planned = plan_attempts(self._for_attempts_s(chosen), lambda recipe: self.epoch_s(chosen, recipe))
        if self.best is not None and len(planned) == 1:
            planned = [Attempt(self.best["recipe"], planned[0].seconds)]
        return [Attempt(one.recipe, one.seconds, chosen.parts[0], chosen.image_size) for one in planned]

    def _go_on(self, candidate: Candidate) -> list[Attempt]:
        """Give the best recipe for this network and size all the time that is left, if that may beat the probe."""
        alike = [one for one in self.completed if (one["backbone"], one["image_size"]) == key_of(candidate)]
        probe, left_s = self.search.probes.best, self._for_attempts_s(candidate)
        if not alike or probe is None:
            return []
        best = max(alike, key=rank)
        longest_s = max(one["seconds"] for one in alike if one["recipe"] == best["recipe"])
        if left_s < max(1.0, LONGER * longest_s):
            return []
        expected = (1 - best["accuracy"]) * (best["seconds"] / left_s) ** 0.5
        return [Attempt(best["recipe"], left_s, *key_of(candidate))] if expected < 1 - probe.accuracy else []

    def _choose(self) -> Candidate | None:
        """The network and image size with the fewest expected errors; None where the best probe has fewer."""
        probes = self.search.probes
        if probes.best is None:
            return None
        options = [(self._expect_error(one), one) for one in probes.singles]
        error, chosen = min(options, key=lambda one: one[0])
        return chosen if error < 1 - probes.best.accuracy else None

    def _expect_error(self, candidate: Candidate) -> float:
        """Expect the error after all the time that is left, from the error of this network's probe at this size."""
        epochs = self._for_attempts_s(candidate) / self.epoch_s(candidate, RECIPES[0])
        return self.search.probes.expect_error(candidate) * expect_share(epochs) if epochs >= LEAST_EPOCHS else 1.0

    def left_s(self, candidate: Candidate) -> float:
        """Seconds of training that fit before the test, which may be that of the best probe."""
        search, best = self.search, self.search.probes.best
        assert best is not None
        test_s = max(search.probes.test_s(candidate), search.probes.test_s(best.candidate))
        left_s = search.budget.amount - search.reserve_s - search.clock.elapsed_s - test_s
        return 0.93 * left_s - 2.0

    def _for_attempts_s(self, candidate: Candidate) -> float:
        """Seconds for attempts: what soups and the validation images need is left."""
        return (1 - FINAL_SHARE) * self.left_s(candidate) - self.soup_s(candidate, 1 + len(RECIPES))

    def soup_s(self, candidate: Candidate, count: int) -> float:
        """About what choosing among so many networks takes, and making the soup."""
        dataset = self.search.dataset
        images = len(dataset.val) + 1.5 * min(STATISTICS_IMAGES, len(dataset.train))
        return self.forward_s(candidate) * (count + 1) * images

    def forward_s(self, candidate: Candidate) -> float:
        """Seconds for an image in float32."""
        return self.search.probes.rates[candidate.parts[0]].test_s * (candidate.image_size / TIMED_SIZE) ** 2

    def epoch_s(self, candidate: Candidate, recipe: Recipe) -> float:
        """About what an epoch takes: a training step is some three forward passes."""
        rate, dataset = self.search.probes.rates[candidate.parts[0]], self.search.dataset
        forward_s = rate.features_s if self.precision == "bfloat16" else rate.test_s
        gradients = 1 + float(recipe.minimizer.get("sharp_last", 1.0 if recipe.minimizer else 0.0))
        images = 3.3 * gradients * len(dataset.train) + 1.2 * len(dataset.val)
        return forward_s * (candidate.image_size / TIMED_SIZE) ** 2 * images

    @property
    def precision(self) -> str:
        """On a CPU a backward pass in bfloat16 takes two to four times as long as one in float32."""
        return "bfloat16" if self.search.device.type == "cuda" else "float32"

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Inside, named data and the runs of this search are found."""
        with use_data_root(self.search.data_root), models.runs_beside(self.search.folder.absolute()):
            yield

    # -- attempts -------------------------------------------------------------------------------------------------

    def start(self, candidate: Candidate) -> str:
        """Make the probe whose head fine-tuning begins with: one that has not learned the validation images."""
        config = self.search.configure(candidate)
        config = config.model_copy(update={"data": config.data.model_copy(update={"learn_from_val": False})})
        if config.run_id not in self.starts:
            self.search.about["tuning"]["starts"].append(config.run_id)
            self.search.clock.beat(now=True)
        return self.search.train_probe(config, candidate).id

    def _make(self, values: dict[str, Any]) -> None:
        """Train an attempt, or go on with it, and note how it ended."""
        search, attempt = self.search, Attempt(**values)
        candidate, recipe = Candidate((attempt.backbone,), attempt.image_size), RECIPES[attempt.recipe]
        start = self.start(candidate)
        config = make_config(
            recipe,
            model=search.configure(candidate).model.name,
            weights=f"run:{start}",
            data={**search.wanted.to_json()["data"], "image_size": candidate.image_size},
            seconds=attempt.seconds,
            seed=search.wanted.seed,
            precision=self.precision,
        )
        words = f"fine-tuning {candidate.words}, {recipe.name}"
        search.status(words)
        before_s = search.clock.elapsed_s
        left_s = search.budget.amount - search.reserve_s - search.probes.test_s(candidate) - before_s
        with self.beside():
            outcome = run_trial(
                config,
                search.resize(candidate.image_size),
                search.folder / config.run_id,
                allowed_s=min(1.1 * attempt.seconds + 10.0, left_s),
                device=str(search.device),
                captured=search.device.type == "cuda" and attempt.seconds >= 90,
                keeping=search.keeping,
                beat=lambda: search.status(
                    f"{words}, {search.clock.elapsed_s - before_s:.0f} of {attempt.seconds:.0f} s"
                ),
                stop=search.stop,
                val_examples=len(search.dataset.val),
            )
        values |= {"run": config.run_id, "accuracy": 0.0, "loss": 0.0}
        told = f"{outcome.state} {outcome.reason}".strip()
        if outcome.state == "complete":
            val = Run(search.folder / config.run_id).summary["val"]
            values |= {"accuracy": val["accuracy"], "loss": val["loss"], "words": f"fine-tuned {candidate.words}"}
            note_moment(
                search.about, search.clock.elapsed_s, "fine-tuning", values["words"], val["accuracy"], config.run_id
            )
            told = f"{val['accuracy']:.1%} of {len(search.dataset.val):,} validation images".replace("%", " %")
        search.clock.beat(now=True)
        search.observer.say(f"[{search.clock.elapsed_s:.0f} s] {words}: {told}")
        if search.stop.is_set():
            raise Interrupted("stopped")
