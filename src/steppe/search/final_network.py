"""What follows attempts to fine-tune: a soup of them, and a winner that learns the validation images, too."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save

from steppe import models
from steppe.config import RunConfig
from steppe.data import Dataset, as_learned, in_order
from steppe.errors import Interrupted, SteppeError
from steppe.evaluate import measure_accuracy, predict, suit_batch
from steppe.models.weights import average_states, read_weights, weights_in
from steppe.runs import OUT_OF_FOLD, Observer, Run, write_atomically
from steppe.search.finetune import FINAL_EPOCHS, FINAL_RATE, RECIPES, key_of, make_config, rank
from steppe.search.moments import note_moment
from steppe.search.probe_search import Candidate
from steppe.search.trial import Late, count_cost
from steppe.studies.subjects import load_model
from steppe.train import train
from steppe.train.soup import settle_statistics

if TYPE_CHECKING:
    from steppe.search.finetune_search import FineTuneSearch


class FinalNetwork:
    """Betters the best of the attempts that have been made.

    Args:
        tuning: the attempts.
    """

    def __init__(self, tuning: FineTuneSearch) -> None:
        """Go on from what is kept of the attempts."""
        self.tuning, self.search = tuning, tuning.search

    def make_soup(self) -> None:
        """Average attempts that began with the same probe, and the probe, as far as validation images gain by it.

        The greedy soup of Wortsman et al. 2022: the best first, the others in the order of their accuracy; each stays
        in if the average then answers more validation images right, or as many with a smaller loss.
        """
        search = self.search
        first = max(self.tuning.completed, key=rank, default=None)
        if first is None:
            return
        candidate = Candidate((first["backbone"],), first["image_size"])
        alike = [one for one in self.tuning.completed if (one["backbone"], one["image_size"]) == key_of(candidate)]
        alike.sort(key=rank, reverse=True)
        considered = [*(one["run"] for one in alike), self.tuning.start(candidate)]
        known = [one for one in self.tuning.kept("soups") if one["of"] == considered]
        if known or self.tuning.soup_s(candidate, len(considered)) > self.tuning.left_s(candidate):
            return
        chosen = self._choose_ingredients(candidate, considered, first)
        soup: dict[str, Any] = {"of": considered, "ingredients": chosen}
        if len(chosen) > 1:
            config = self._soup_config(candidate, chosen)
            with self.tuning.beside():
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
        self.tuning.keep("soups", soup)

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
        with self.tuning.beside():
            names = [f"run:{run}" for run in considered]
            states = [weights_in(read_weights(name, config.model.name), name) for name in names]
        chosen, best = [0], rank(first)
        for index in range(1, len(considered)):
            search.status(f"averaging fine-tuned networks, {index} of {len(considered) - 1}")
            if search.stop.is_set():
                raise Interrupted("stopped")
            mixed = average_states([states[number] for number in (*chosen, index)], "the attempts")
            model.load_state_dict(mixed)
            settle_statistics(model, dataset, search.wanted.seed, search.device)
            found = measure_accuracy(model, dataset.val, dataset, device=search.device)
            if (now := (found["accuracy"], -found["loss"])) > best:
                chosen, best = [*chosen, index], now
        return [considered[index] for index in chosen]

    def _normalised(self, candidate: Candidate, run: str) -> Dataset:
        """The images as a run normalised them."""
        return as_learned(self.search.resize(candidate.image_size), Run(self.search.folder / run).read("data.json"))

    def learn_validation_images(self) -> None:
        """Let the best network learn all images, once it has won and nothing is left to decide by the validation's.

        It goes on for a few epochs at a small rate. What it answered on the validation images before that is kept
        beside it, for calibration.
        """
        search, best = self.search, self.tuning.best
        if best is None or best["accuracy"] <= search.probe_accuracy:
            return
        candidate, recipe = Candidate((best["backbone"],), best["image_size"]), RECIPES[best["recipe"]]
        epoch_s = self.tuning.epoch_s(candidate, recipe)
        answers_s = self.tuning.forward_s(candidate) * len(search.dataset.val)
        seconds = min(self.tuning.left_s(candidate) - answers_s, FINAL_EPOCHS * epoch_s)
        known = next((one for one in self.tuning.kept("finals") if one["of"] == best["run"]), None)
        if known is None and seconds < epoch_s:
            return
        if known is None:
            known = {"of": best["run"], "seconds": seconds, "state": "begun"}
            self.tuning.keep("finals", known)
        if known["state"] != "begun":
            return
        config = make_config(
            recipe,
            model=search.configure(candidate).model.name,
            weights=f"run:{best['run']}",
            data={**search.wanted.to_json()["data"], "image_size": candidate.image_size, "learn_from_val": True},
            seconds=known["seconds"],
            seed=search.wanted.seed,
            precision=self.tuning.precision,
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
            with self.tuning.beside():
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
