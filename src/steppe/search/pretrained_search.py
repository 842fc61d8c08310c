"""A search among pretrained networks, from the timing of each to the tested winner."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from steppe.config import MeasureConfig, Pretrained, RunConfig, use_data_root
from steppe.data import Dataset, Keeping, check_unchanged
from steppe.errors import ConfigError, DataError, Interrupted, RunError, SteppeError
from steppe.runs import Observer, Run
from steppe.search.budget import Budget, Clock, is_over, open_clock, show_seconds
from steppe.search.chosen import evaluate_chosen, time_forward
from steppe.search.finetune_search import FineTuneSearch
from steppe.search.moments import note_moment
from steppe.search.observer import SearchObserver
from steppe.search.pareto import Fitted, explain_pretrained, tabulate, write_fronts, write_study
from steppe.search.probe_search import Candidate, Found, ProbeSearch, Rate, time_networks
from steppe.search.space import Wanted
from steppe.search.trial import count_cost
from steppe.studies.pipeline import add_measures
from steppe.train import train
from steppe.train.probe import read_out_of_fold

PRETRAINED_KIND = "pretrained"
UNUSED_SHARE = 0.03
"""Where a larger share of the budget is not used, that is said."""


class PretrainedSearch:
    """The state of a search, and what moves it on."""

    def __init__(
        self,
        wanted: Wanted,
        budget: Budget,
        folder: Path,
        dataset: Dataset,
        device: torch.device,
        backbones: Sequence[Pretrained],
        observer: SearchObserver,
        began: float,
        *,
        about: dict[str, Any],
        data_root: str | None = None,
        keeping: Keeping | None = None,
    ) -> None:
        """Begin a search, or go on with one.

        Args:
            wanted: what for.
            budget: seconds for everything; or epochs, of which each candidate takes one.
            folder: of the search.
            dataset: the images, as they are kept.
            device: where to compute.
            backbones: networks with weights at hand, the best first.
            observer: told how it goes.
            began: `time.monotonic()` when the time began.
            about: content of `fit.json`; empty at the beginning.
            data_root: where named data sets, and weights beside them, live.
            keeping: how images are read.
        """
        self.wanted, self.budget, self.folder, self.device = wanted, budget, folder, device
        self.observer, self.data_root, self.keeping = observer, data_root, keeping
        self.dataset = dataset
        self.stop = threading.Event()
        self.about: dict[str, Any] = {**wanted.to_json(), **about, "kind": PRETRAINED_KIND}
        recorded = self.about.setdefault("recorded", dataset.describe())
        check_unchanged(recorded, dataset, what="the images have changed since the search began", where=str(folder))
        if not is_over(self.about, budget):
            self.about.pop("best", None)
            self.about[budget.key("budget")] = budget.amount
        self.clock: Clock = open_clock(folder, self.about, budget, began)
        self.clock.beat(now=True)
        with use_data_root(data_root):
            if "rates" not in self.about:
                rates = time_networks(backbones, dataset, device, say=observer.say)
                self.about["rates"] = {name: asdict(rate) for name, rate in rates.items()}
        rates = {name: Rate(**values) for name, values in self.about["rates"].items()}
        if not rates:
            raise ConfigError("none of the pretrained weights at hand can be used", fix="--weights none")
        size = self.about["data"].get("image_size")  # the user's; the settled one is where photographs are kept
        self.probes = ProbeSearch(backbones, rates, dataset, self.about, size, timed=budget.timed)
        self.tuning = FineTuneSearch(self)

    @property
    def over(self) -> bool:
        """Whether the search has given its answer, and is not asked to go on by a longer budget."""
        return is_over(self.about, self.budget)

    @property
    def reserve_s(self) -> float:
        """Seconds for tables, the page and leaving."""
        return 2.0 + 0.01 * self.budget.amount

    def run(self) -> None:
        """Spend the budget on what promises to be better, and say where nothing does."""
        self.try_out()
        self.tuning.run()
        left_s = self._unused_s()
        if self.budget.timed and left_s > UNUSED_SHARE * self.budget.amount:
            text = f"nothing more promises to be better; {show_seconds(round(left_s))} of {self.budget} are not needed"
            self.observer.say(f"[{self.clock.elapsed_s:.0f} s] {text}")

    def _unused_s(self) -> float:
        """Seconds that the test of the winner leaves."""
        best = self.probes.best
        test_s = self.probes.test_s(best.candidate) if best else 0.0
        return self.budget.amount - self.reserve_s - self.clock.elapsed_s - test_s

    def try_out(self) -> None:
        """Make candidates while the budget lasts and they promise to be better."""
        while candidate := self._next():
            self._make(candidate)

    def _next(self) -> Candidate | None:
        if self.budget.timed:
            return self.probes.next(self.clock.elapsed_s, self.budget.amount - self.reserve_s)
        if len(self.probes.found) >= self.budget.amount:
            return None
        return self.probes.next(0.0, math.inf)

    def _make(self, candidate: Candidate) -> None:
        """Make a candidate's run, or go on with it."""
        config = self.configure(candidate)
        try:
            run = self.train_probe(config, candidate)
        except SteppeError as error:
            if not self.probes.found or isinstance(error, (Interrupted, DataError, RunError)):
                raise
            self.about.setdefault("failed", []).append(candidate.to_json())
            self.clock.beat(now=True)
            self.observer.say(f"{candidate.words} is left out: {error.what}")
            return
        probe = run.summary["probe"]
        judged = probe["cross_validation"]
        found = Found(candidate, run.id, judged["accuracy"], judged["loss"], judged["standard_error"], probe["solve_s"])
        self.probes.keep(found)
        note_moment(self.about, self.clock.elapsed_s, "probe", candidate.words, found.accuracy, run.id)
        self.about.setdefault("first_s", round(self.clock.elapsed_s, 2))
        self.clock.beat(now=True)
        self.observer.say(f"[{self.clock.elapsed_s:.0f} s] {found.words}")
        if self.stop.is_set():
            raise Interrupted("stopped")

    def train_probe(self, config: RunConfig, candidate: Candidate) -> Run:
        """Make the run of a probe, or take it as it is."""
        with use_data_root(self.data_root):
            return train(
                config,
                self.resize(candidate.image_size),
                self.folder / config.run_id,
                device=str(self.device),
                observer=_Watch(self, f"features of {candidate.words}"),
                keeping=self.keeping,
                stop=self.stop,
                val_examples=max(1, len(self.dataset.val)),
            )

    def configure(self, candidate: Candidate) -> RunConfig:
        """Make the configuration of a candidate's run."""
        return self.probes.config(candidate, self.wanted.to_json()["data"], self.wanted.seed, self.device)

    def resize(self, size: int) -> Dataset:
        """Return the images as a network sees them that takes this size."""
        return replace(self.dataset, size=None if size == self.dataset.train.shape[-1] else size)

    # -- what is chosen -----------------------------------------------------------------------------------------

    def winner(self) -> tuple[Run, str, Candidate]:
        """Choose between the best probe and the best fine-tuned network by the very same validation images."""
        best = self.probes.best
        assert best is not None
        probe = Run(self.folder / best.run)
        tuned = self.tuning.best
        if tuned is None or tuned["accuracy"] <= self.probe_accuracy:
            count = len(self.dataset.train) + len(self.dataset.val)
            return probe, f"{best.words} by cross-validation on {count:,}", best.candidate
        shown = f"{tuned['accuracy']:.1%} ({tuned['words']}) on {len(self.dataset.val):,} validation"
        final = self.tuning.final_of(tuned["run"])
        shown += " images, then learned those, too, of all" if final else ""
        return Run(self.folder / (final or tuned["run"])), shown, Candidate((tuned["backbone"],), tuned["image_size"])

    @property
    def probe_accuracy(self) -> float:
        """That of the best probe on the validation images, by heads that left them out."""
        assert self.probes.best is not None
        logits, labels = read_out_of_fold(self.folder / self.probes.best.run)
        count = len(self.dataset.val)
        return (logits[-count:].argmax(1) == labels[-count:]).float().mean().item()

    # -- what is told -------------------------------------------------------------------------------------------

    def status(self, now: str) -> None:
        """Keep the time, and tell how far the search is."""
        self.clock.beat()
        best = self.probes.best
        self.observer.status(self.clock.elapsed_s, best.words if best else "", now)

    def runs(self) -> list[Run]:
        """Every finished run of this search, the best first; other folders beside them are none of it."""
        probes = sorted(self.probes.found, key=lambda one: (one.accuracy, -one.loss), reverse=True)
        tuned = [one["run"] for one in self.tuning.judged] + self.tuning.finals
        runs = [Run(self.folder / run) for run in (*(one.run for one in probes), *tuned)]
        chosen = self.winner()[0].id
        return sorted(runs, key=lambda run: run.id != chosen)

    def conclude(self, *, interrupted: bool = False) -> Fitted:
        """Test the best candidate and write everything down; an interrupted search is not tested yet."""
        best = self.probes.best
        if best is None:
            what = f"a budget of {self.budget} is too short for any of the networks at hand"
            raise RunError(what, where=str(self.folder), fix="give more time with --budget")
        runs = self.runs()
        chosen, words, candidate = self.winner()
        if not interrupted:
            self._test(chosen, candidate)
            with use_data_root(self.data_root):
                self._measure(chosen, candidate)
        rows = tabulate(runs)
        write_fronts(rows, self.folder)
        answer = explain_pretrained(chosen, words, self.dataset)
        write_study(self.folder, runs, self.wanted.data.name, answer, self.budget, starts=self.tuning.starts)
        self.about["answer"] = answer
        if not interrupted:
            self.about["best"] = chosen.id
        self.clock.beat(now=True)
        return Fitted(self.folder, chosen, answer, runs, self.clock, self.budget, float(len(runs)))

    def _test(self, run: Run, candidate: Candidate) -> None:
        """Show the winner the test images, as many as there is time for."""
        most = math.inf
        dataset = self.resize(candidate.image_size)
        if self.budget.timed and "test" not in run.summary:
            image_s = time_forward(run, dataset, self.device)
            most = (self.budget.amount - 0.7 * self.reserve_s - self.clock.elapsed_s) / image_s
        total = len(self.dataset.test)

        def tell(done: int) -> None:
            self.status(f"test photos, {done:,} of {total:,}")

        evaluate_chosen(run, dataset, self.device, most=most, tell=tell)

    def _measure(self, run: Run, candidate: Candidate) -> None:
        """Add cost and flatness, where there is time for them."""
        count_cost(run, self.resize(candidate.image_size))
        settings = MeasureConfig()
        images = min(settings.noise_examples, len(self.dataset.train)) * (settings.noise_draws + 1)
        needed_s = images * self.probes.test_s(candidate) / max(1, len(self.dataset.test))
        left_s = self.budget.amount - self.reserve_s - self.clock.elapsed_s if self.budget.timed else math.inf
        if needed_s < left_s:
            add_measures(run, self.resize(candidate.image_size), settings, device=str(self.device))


class _Watch(Observer):
    """Tells the search how far one of its runs is."""

    def __init__(self, search: PretrainedSearch, what: str) -> None:
        self.search, self.what = search, what

    def step(self, epochs: float) -> None:
        """Tell the share of the features that are computed."""
        self.search.status(f"{self.what}, {epochs:.0%}".replace("%", " %"))

    def say(self, text: str) -> None:
        """Pass on a note."""
        self.search.observer.say(f"note: {text}")
