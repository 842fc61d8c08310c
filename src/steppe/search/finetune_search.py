"""The fine-tuning part of a search: which network at which image size, with which recipe, and for how long.

Fine-tuning begins only where it may be expected to beat the best probe. Every recipe gets a short time, and the best
one what is left. A search that is given more time goes on: with the best recipe so far for longer, or, given much more
time, with the network and image size that promise most then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save

from steppe import models
from steppe.config import RunConfig, use_data_root
from steppe.data import Dataset, as_learned, in_order
from steppe.errors import Interrupted, SteppeError
from steppe.evaluate import measure_accuracy, predict, suit_batch
from steppe.models.weights import average_states, read_weights, weights_in
from steppe.runs import OUT_OF_FOLD, Observer, Run, write_atomically
from steppe.search.finetune import (
    FINAL_EPOCHS,
    FINAL_RATE,
    FINAL_SHARE,
    LEAST_EPOCHS,
    RECIPES,
    Attempt,
    Recipe,
    expect_share,
    make_config,
    plan_attempts,
)
from steppe.search.moments import note_moment
from steppe.search.probe_search import TIMED_SIZE, Candidate
from steppe.search.trial import Late, count_cost, run_trial
from steppe.studies.subjects import load_model
from steppe.train import train
from steppe.train.soup import STATISTICS_IMAGES, settle_statistics

if TYPE_CHECKING:
    from steppe.search.pretrained_search import PretrainedSearch

MUCH_MORE = 1.5
"""With this many times the seconds of all attempts so far, network and image size are chosen anew."""
LONGER = 1.05
"""An attempt with a recipe that has been tried gets at least this many times the longest time it had."""


class FineTuneSearch:
    """Attempts to fine-tune, kept in `about["tuning"]`; what is there makes the next choice alone.

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
        return [*self.completed, *(one for one in self._kept("soups") if one.get("run"))]

    @property
    def best(self) -> dict[str, Any] | None:
        """The network that answers most validation images right; among equals, with the smaller loss."""
        return max(self.judged, key=_rank, default=None)

    @property
    def finals(self) -> list[str]:
        """Ids of networks that learned the validation images, too."""
        return [one["run"] for one in self._kept("finals") if one["state"] == "complete"]

    def final_of(self, run: str) -> str | None:
        """Return the id of what a network became by learning the validation images, too."""
        known = (one for one in self._kept("finals") if one["of"] == run and one["state"] == "complete")
        return next((str(one["run"]) for one in known), None)

    def _kept(self, key: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.search.about.get("tuning", {}).get(key, [])
        return found

    def _keep(self, key: str, values: dict[str, Any]) -> None:
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
        self._make_soup()
        self._learn_validation_images()

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
        alike = [one for one in self.completed if (one["backbone"], one["image_size"]) == _key(candidate)]
        probe, left_s = self.search.probes.best, self._for_attempts_s(candidate)
        if not alike or probe is None:
            return []
        best = max(alike, key=_rank)
        longest_s = max(one["seconds"] for one in alike if one["recipe"] == best["recipe"])
        if left_s < max(1.0, LONGER * longest_s):
            return []
        expected = (1 - best["accuracy"]) * (best["seconds"] / left_s) ** 0.5
        return [Attempt(best["recipe"], left_s, *_key(candidate))] if expected < 1 - probe.accuracy else []

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
        return (1 - FINAL_SHARE) * self.left_s(candidate) - self._soup_s(candidate, 1 + len(RECIPES))

    def _soup_s(self, candidate: Candidate, count: int) -> float:
        """About what choosing among so many networks takes, and making the soup."""
        dataset = self.search.dataset
        images = len(dataset.val) + 1.5 * min(STATISTICS_IMAGES, len(dataset.train))
        return self._forward_s(candidate) * (count + 1) * images

    def _forward_s(self, candidate: Candidate) -> float:
        """Seconds for an image in float32."""
        return self.search.probes.rates[candidate.parts[0]].test_s * (candidate.image_size / TIMED_SIZE) ** 2

    def epoch_s(self, candidate: Candidate, recipe: Recipe) -> float:
        """About what an epoch takes: a training step is some three forward passes."""
        rate, dataset = self.search.probes.rates[candidate.parts[0]], self.search.dataset
        forward_s = rate.features_s if self._precision == "bfloat16" else rate.test_s
        gradients = 1 + float(recipe.minimizer.get("sharp_last", 1.0 if recipe.minimizer else 0.0))
        images = 3.3 * gradients * len(dataset.train) + 1.2 * len(dataset.val)
        return forward_s * (candidate.image_size / TIMED_SIZE) ** 2 * images

    @property
    def _precision(self) -> str:
        """On a CPU a backward pass in bfloat16 takes two to four times as long as one in float32."""
        return "bfloat16" if self.search.device.type == "cuda" else "float32"

    # -- attempts -------------------------------------------------------------------------------------------------

    def _start(self, candidate: Candidate) -> str:
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
        start = self._start(candidate)
        config = make_config(
            recipe,
            model=search.configure(candidate).model.name,
            weights=f"run:{start}",
            data={**search.wanted.to_json()["data"], "image_size": candidate.image_size},
            seconds=attempt.seconds,
            seed=search.wanted.seed,
            precision=self._precision,
        )
        words = f"fine-tuning {candidate.words}, {recipe.name}"
        search.status(words)
        before_s = search.clock.elapsed_s
        left_s = search.budget.amount - search.reserve_s - search.probes.test_s(candidate) - before_s
        with self._beside():
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

    # -- bettering the best one -----------------------------------------------------------------------------------

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """Inside, named data and the runs of this search are found."""
        with use_data_root(self.search.data_root), models.runs_beside(self.search.folder.absolute()):
            yield

    def _make_soup(self) -> None:
        """Average attempts that began with the same probe, and the probe, as far as validation images gain by it.

        The greedy soup of Wortsman et al. 2022: the best first, the others in the order of their accuracy; each stays
        in if the average then answers more validation images right, or as many with a smaller loss.
        """
        search = self.search
        first = max(self.completed, key=_rank, default=None)
        if first is None:
            return
        candidate = Candidate((first["backbone"],), first["image_size"])
        alike = [one for one in self.completed if (one["backbone"], one["image_size"]) == _key(candidate)]
        alike.sort(key=_rank, reverse=True)
        considered = [*(one["run"] for one in alike), self._start(candidate)]
        known = [one for one in self._kept("soups") if one["of"] == considered]
        if known or self._soup_s(candidate, len(considered)) > self.left_s(candidate):
            return
        chosen = self._choose_ingredients(candidate, considered, first)
        soup: dict[str, Any] = {"of": considered, "ingredients": chosen}
        if len(chosen) > 1:
            config = self._soup_config(candidate, chosen)
            with self._beside():
                run = train(
                    config,
                    search.resize(candidate.image_size),
                    search.folder / config.run_id,
                    device=str(search.device),
                    keeping=search.keeping,
                    stop=search.stop,
                    val_examples=len(search.dataset.val),
                )
                count_cost(run, search.resize(candidate.image_size))
            val = run.summary["val"]
            soup |= {key: first[key] for key in ("recipe", "backbone", "image_size")}
            soup |= {"run": run.id, "accuracy": val["accuracy"], "loss": val["loss"]}
            soup |= {"words": f"average of {len(chosen)} fine-tuned {candidate.words}"}
            note_moment(search.about, search.clock.elapsed_s, "soup", soup["words"], val["accuracy"], run.id)
            told = f"{val['accuracy']:.1%} of {len(search.dataset.val):,} validation images".replace("%", " %")
            search.observer.say(f"[{search.clock.elapsed_s:.0f} s] average of {len(chosen)} networks: {told}")
        self._keep("soups", soup)

    def _soup_config(self, candidate: Candidate, chosen: list[str]) -> RunConfig:
        like = self.search.configure(candidate)
        weights = "soup:" + ",".join(f"run:{run}" for run in chosen)
        model = like.model.model_copy(update={"weights": weights, "mode": "soup"})
        data = like.data.model_copy(update={"learn_from_val": False})
        return like.model_copy(update={"model": model, "data": data, "precision": "float32"})

    def _choose_ingredients(self, candidate: Candidate, considered: list[str], first: dict[str, Any]) -> list[str]:
        search, side = self.search, candidate.image_size
        dataset = self._normalised(candidate, considered[0])
        config = self._soup_config(candidate, considered)
        model = models.build(
            config.model, image_size=side, channels=dataset.channels, classes=len(dataset.classes), load=False
        )
        model = models.place(model.eval(), search.device, side)
        with self._beside():
            names = [f"run:{run}" for run in considered]
            states = [weights_in(read_weights(name, config.model.name), name) for name in names]
        chosen, best = [0], _rank(first)
        for index in range(1, len(considered)):
            search.status(f"averaging fine-tuned networks, {index} of {len(considered) - 1}")
            if search.stop.is_set():
                raise Interrupted("stopped")
            mixed = average_states([states[number] for number in (*chosen, index)], "the attempts")
            model.load_state_dict(mixed)
            settle_statistics(model, dataset, search.wanted.seed, search.device)
            found = measure_accuracy(model, dataset.val, dataset, device=search.device)
            if (rank := (found["accuracy"], -found["loss"])) > best:
                chosen, best = [*chosen, index], rank
        return [considered[index] for index in chosen]

    def _normalised(self, candidate: Candidate, run: str) -> Dataset:
        """The images as a run normalised them."""
        return as_learned(self.search.resize(candidate.image_size), Run(self.search.folder / run).read("data.json"))

    def _learn_validation_images(self) -> None:
        """Let the best network learn all images, once it has won and nothing is left to decide by the validation's.

        It goes on for a few epochs at a small rate. What it answered on the validation images before that is kept
        beside it, for calibration.
        """
        search, best = self.search, self.best
        if best is None or best["accuracy"] <= search.probe_accuracy:
            return
        candidate, recipe = Candidate((best["backbone"],), best["image_size"]), RECIPES[best["recipe"]]
        epoch_s = self.epoch_s(candidate, recipe)
        seconds = min(self.left_s(candidate) - self._forward_s(candidate) * len(search.dataset.val), 3 * epoch_s)
        known = next((one for one in self._kept("finals") if one["of"] == best["run"]), None)
        if known is None and seconds < epoch_s:
            return
        if known is None:
            known = {"of": best["run"], "seconds": min(seconds, FINAL_EPOCHS * epoch_s), "state": "begun"}
            self._keep("finals", known)
        if known["state"] != "begun":
            return
        config = make_config(
            recipe,
            model=search.configure(candidate).model.name,
            weights=f"run:{best['run']}",
            data={**search.wanted.to_json()["data"], "image_size": candidate.image_size, "learn_from_val": True},
            seconds=known["seconds"],
            seed=search.wanted.seed,
            precision=self._precision,
            rate=FINAL_RATE,
        )
        words = f"learning the validation images, too, with {best['words']}"
        known |= {"run": config.run_id, "state": self._make_final(config, candidate, best["run"], words)}
        search.clock.beat(now=True)
        search.observer.say(f"[{search.clock.elapsed_s:.0f} s] {words}: {known['state']}")

    def _make_final(self, config: RunConfig, candidate: Candidate, before: str, words: str) -> str:
        """Train a network that learns all images; say how that ended."""
        search, dataset = self.search, self.search.resize(candidate.image_size)
        left_s = search.budget.amount - search.reserve_s - search.probes.test_s(candidate) - search.clock.elapsed_s
        watch = _Deadline(time.monotonic() + left_s, lambda: search.status(words))
        folder = search.folder / config.run_id
        try:
            with self._beside():
                run = train(
                    config,
                    dataset,
                    folder,
                    device=str(search.device),
                    captured=False,
                    observer=watch,
                    keeping=search.keeping,
                    stop=search.stop,
                    val_examples=0,
                )
                count_cost(run, dataset)
        except Late as error:
            return error.what
        except Interrupted:
            raise
        except SteppeError as error:
            return f"failed: {error.what}"
        logits, labels = self._answer(candidate, before)
        write_atomically(folder / OUT_OF_FOLD, save({"logits": logits, "labels": labels}))
        return "complete"

    def _answer(self, candidate: Candidate, run: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Answer the validation images by a network of this search."""
        dataset = self._normalised(candidate, run)
        model = load_model(Run(self.search.folder / run), dataset)
        model = models.place(model.eval(), self.search.device, candidate.image_size)
        size = suit_batch(256, candidate.image_size, self.search.device)
        found = predict(model, in_order(dataset.val, dataset, batch_size=size, device=self.search.device))
        return found[0].float().cpu().contiguous(), found[1].cpu()


class _Deadline(Observer):
    """Ends a training whose time is over."""

    def __init__(self, deadline: float, beat: Callable[[], None]) -> None:
        self.deadline, self.beat = deadline, beat

    def step(self, epochs: float) -> None:
        """Look at the clock after a step."""
        self.beat()
        if time.monotonic() > self.deadline:
            raise Late("stopped: the time of the search is over")


def _key(candidate: Candidate) -> tuple[str, int]:
    return candidate.parts[0], candidate.image_size


def _rank(attempt: dict[str, Any]) -> tuple[float, float]:
    return attempt["accuracy"], -attempt["loss"]
