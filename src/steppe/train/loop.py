"""The training loop: from a configuration to a run folder, through crashes, Ctrl-C and a loss that turns NaN.

Everything random is a function of (seed, step), never of what was drawn before, so the state of a run is its
weights, its optimizer and a few counters. Kill it at any moment, run it again, and the weights come out the same.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import torch
from torch import nn

from steppe.config import RunConfig, derive_seed
from steppe.cost import training_speed
from steppe.data import Dataset, Keeping, Loader, take_about
from steppe.errors import RunError
from steppe.minimizers import Minimizer, reestimate_batchnorm
from steppe.minimizers.vectors import local
from steppe.models import place
from steppe.models.build import PHOTO_SIDE
from steppe.runs import Observer, Run
from steppe.train import distributed
from steppe.train.averaging import WeightAverage, choose_policy
from steppe.train.budget import check_budget, next_cost, spent_share, total_epochs
from steppe.train.checkpoint import load_checkpoint, save_checkpoint, save_weights
from steppe.train.contrastive import plan_stages, put_classifier, put_projection
from steppe.train.distributed import Ranks
from steppe.train.ends import diverged, interrupted
from steppe.train.features import Features, find_body
from steppe.train.judging import autocast, measure, measure_contrast, measure_splits
from steppe.train.objectives import make_objective
from steppe.train.resumption import put_state, state_of
from steppe.train.schedules import lr_factor, radius_factor
from steppe.train.setup import build_minimizer, build_model
from steppe.train.steps import CompiledStep, EagerStep
from steppe.train.tally import Clock, Tally


class Training:
    """The state of one run, and what moves it on."""

    def __init__(
        self,
        run: Run,
        config: RunConfig,
        dataset: Dataset,
        device: torch.device,
        observer: Observer,
        stop: threading.Event,
        captured: bool,
        keeping: Keeping | None = None,
        ranks: Ranks | None = None,
        parts: int = 1,
        val_examples: int | None = None,
    ) -> None:
        """Build everything, and go on from the checkpoint where there is one."""
        if not config.validates:
            dataset = dataset.learn_from_val()
        self.run, self.config, self.dataset, self.device = run, config, dataset, device
        self.ranks = ranks or Ranks()
        self.observer, self.stop = observer, stop
        self.keeping = keeping or Keeping()
        self.brief = val_examples is not None
        self.val = take_about(dataset.val, val_examples or len(dataset.val), config.data.split_seed)
        self.loader = Loader(
            dataset,
            batch_size=config.batch_size,
            augment=config.augment,
            seed=config.seed,
            device=device,
            workers=self.keeping.workers,
            resident=self.keeping.resident if dataset.train.in_memory else None,
            channels_last=device.type == "cuda" or dataset.image_size >= PHOTO_SIDE,
            rank=self.ranks.rank,
            ranks=self.ranks.count,
        )
        distributed.check(config, self.ranks, self.loader.batch_size)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        model = build_model(config, dataset)
        self.model = model.to(device) if self.ranks.sharded else place(model, device, dataset.image_size)
        self.network = self.ranks.wrap(self.model, device)
        self.stages = plan_stages(config)
        self.classifier: nn.Linear | None = None
        self.captured, self.parts = captured, parts
        self.steps = self.records = 0
        self.compile_s = self.evaluate_s = self.saved_at = self.save_s = 0.0
        self.tally, self.clock = Tally(device), Clock(device)
        self.enter(0)
        if run.checkpoint.exists():
            self._restore()
        else:
            check_budget(config, [(stage.name, stage.end) for stage in self.stages], self.minimizer)
        self._prepare_step()

    # -- the stages ---------------------------------------------------------------------------------------------

    def enter(self, index: int) -> None:
        """Begin a stage: bring the model into its form, and make what trains it."""
        self.index, self.stage, self.began = index, self.stages[index], self.steps
        config = self.stage.config
        if config.objective.name == "contrastive":
            self.classifier = put_projection(self.model, config)
        elif self.classifier is not None:
            put_classifier(self.model, self.classifier)
        spent = self.minimizer.gradient_evaluations if index else 0.0
        self.share = 0.0
        self.minimizer: Minimizer = build_minimizer(config, self.network, lambda: self.share)
        self.minimizer.gradient_evaluations = spent
        self.objective = make_objective(config, self.loader, self.dataset)
        self.radius = "sigma" if config.minimizer.name == "lesam" else "rho"
        keys = ("lr", self.radius)
        self.peaks = [{key: float(group[key]) for key in keys} for group in self.minimizer.param_groups]
        policy = choose_policy(config)
        self.average = WeightAverage(self.model, policy) if policy else None
        self.best_val, self.stale_epochs = math.inf, 0

    def _prepare_step(self) -> None:
        network, config = self.network.train(), self.stage.config
        self.step: EagerStep | CompiledStep
        self.features = self._find_features()
        if self.features:
            network, self.objective = self.features.head, replace(self.objective, batch=self.features.batch)
        if self.captured:
            inputs = self.objective.batch(0, 0)
            parts = self.parts * (config.accumulate or 1)
            self.step = CompiledStep(network, self.minimizer, self.objective, config, inputs, parts=parts)
        else:
            self.step = EagerStep(network, self.minimizer, self.objective, config, self.observer.say)

    def _find_features(self) -> Features | None:
        """Where the head alone learns: what it sees of the images."""
        place = divmod(self.steps, len(self.loader))
        body = find_body(self.model, self.stage.config, lambda: self.loader.batch(*place)[0])
        if body is None or self.ranks.count > 1:
            return None
        first = self.began // len(self.loader)
        return Features(body, self.loader, self.dataset, self.val, first, self._stop_if_asked)

    def _stop_if_asked(self) -> None:
        """While features are computed again: keep the state, if steps have been made since, and end."""
        if self.stop.is_set():
            if self.clock.began is not None:  # else weights may be averaged, and the last step's are kept
                self._save()
            self.raise_interrupted()

    def _next_stage(self) -> None:
        """Keep the weights that count of the stage that is over, and begin the next."""
        with self._evaluated():
            kept = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.model.load_state_dict(kept)
        self.compile_s += self.step.compile_s
        self.enter(self.index + 1)
        self._prepare_step()

    def complete(self) -> None:
        """Spend what is left of the budget, then write the weights and the summary."""
        self.observer.start(self.run, self._total_epochs(), self.steps / len(self.loader))
        while True:
            while not self._over():
                self._train_epoch()
            if self.index == len(self.stages) - 1:
                break
            self._next_stage()
        self._finish()

    # -- one epoch ----------------------------------------------------------------------------------------------

    def _train_epoch(self) -> None:
        self.model.train()
        self.clock.start()
        while True:
            self._train_step()
            self.observer.step(self.steps / len(self.loader))
            if self.device.type == "cpu":
                self._check_finite()
            if self.steps % len(self.loader) == 0 or self._over():
                break
            if self.ranks.any(self.stop.is_set()):
                self.clock.stop()
                self._check_weights()
                self._save()
                self.raise_interrupted()
        self.clock.stop()
        self._check_finite()
        if self.average:
            self.average.after_epoch(self._stage_share())
        self._record_epoch()
        over, stopping = self._over(), self.ranks.any(self.stop.is_set())
        if self.ranks.any(over or stopping or self._save_is_due()):
            self._save()
        if stopping and not (over and self.index == len(self.stages) - 1):
            self.raise_interrupted()

    def _train_step(self) -> None:
        epoch, index = divmod(self.steps, len(self.loader))
        self._set_rates()
        again_s = self.features.again_s if self.features else 0.0
        inputs = self.objective.batch(epoch, index)
        if self.features:  # what was computed before a kill has been counted
            self.clock.leave_out(self.features.again_s - again_s)
        own = (self.ranks.rank,) if self.ranks.rank else ()
        torch.manual_seed(derive_seed(self.config.seed, "step", self.steps, *own))
        if self.ranks.sharded:
            self.ranks.share_buffers(self.model)
        compiled_s = self.step.compile_s
        loss, hits, seen = self.step(*inputs)
        self.clock.leave_out(self.step.compile_s - compiled_s)  # compiling is told apart
        if self.average:
            self.average.after_step(self.share)
        count = self.ranks.count
        self.tally.add(self.steps, self.ranks.sum(loss) / count, self.ranks.sum(hits), seen * count)
        self.steps += 1

    def _set_rates(self) -> None:
        share = self._stage_share()
        factor = lr_factor(self.config.schedule, share)
        radius = radius_factor(self.stage.config.minimizer, share)
        optimizer = self.stage.config.optimizer
        assert optimizer.lr is not None
        self.lr = optimizer.lr * factor
        for group, peak in zip(self.minimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak["lr"] * factor
            if radius is not None:
                group[self.radius] = peak[self.radius] * radius

    def _record_epoch(self) -> None:
        classifies = self.stage.config.objective.name != "contrastive"
        with self._timed_evaluation():
            val = self._validate(classifies)
        train_loss, train_accuracy = self.tally.take()
        group = self.minimizer.param_groups[0]
        record = {
            "epoch": self.records + 1,
            **({"stage": self.stage.name} if self.stage.name else {}),
            **self.spent(),
            "lr": self.lr,
            "rho": float(group["rho"]) if self.stage.config.minimizer.name != "base" else None,
            "train_loss": train_loss,
            "train_accuracy": train_accuracy if classifies else None,
            "val_loss": val["loss"],
            "val_accuracy": val["accuracy"],
        }
        self.run.append_metrics(record)
        self.records += 1
        if val["loss"] is not None:
            self.stale_epochs = 0 if val["loss"] < self.best_val else self.stale_epochs + 1
            self.best_val = min(self.best_val, val["loss"])
        self.observer.epoch(record)

    def _validate(self, classifies: bool) -> dict[str, Any]:
        """Measure loss and accuracy on the validation images; None for both where the run learns from them."""
        if not self.config.validates:
            if self._over():  # no validation loss tells of a last step that ruined the weights
                self._check_weights()
            return {"loss": None, "accuracy": None}
        with self._evaluated():
            val = measure(self, self.val) if classifies else measure_contrast(self)
        if not math.isfinite(val["loss"]):
            self._raise_diverged(self.steps)
        return val

    @contextmanager
    def _timed_evaluation(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.evaluate_s += time.perf_counter() - began

    @contextmanager
    def _evaluated(self) -> Iterator[None]:
        """Inside, the model has the weights that count: unperturbed, and averaged where an average is kept."""
        self.ranks.share_buffers(self.model)
        with self.minimizer.unperturbed(), self.average.in_place() if self.average else nullcontext():
            averaged = self.average is not None and self.average.taken > 0
            if averaged or self.stage.config.minimizer.name == "msam":  # BatchNorm knows other weights' statistics
                torch.manual_seed(derive_seed(self.config.seed, "statistics", self.steps))
                some = (self.loader.batch(0, index)[0] for index in range(min(20, len(self.loader))))
                with torch.no_grad():
                    reestimate_batchnorm(self.model, some)
                self.ranks.share_buffers(self.model)
            yield

    # -- the budget ---------------------------------------------------------------------------------------------

    def _share(self) -> float:
        """The share of the budget that is spent."""
        epochs, gradients = (self.steps, len(self.loader)), self.minimizer.gradient_evaluations
        seconds = self.clock.read(wait=self.steps % 16 == 0) if self.config.budget.seconds is not None else 0.0
        return spent_share(self.config.budget, epochs, gradients, self.ranks.first(seconds) if seconds else 0.0)

    def _stage_share(self) -> float:
        """The share of the stage's part of the budget; what the minimizer knows of it until the next step."""
        start = self.stages[self.index - 1].end if self.index else 0.0
        self.share = max(0.0, (self._share() - start) / (self.stage.end - start))
        return self.share

    def _over(self) -> bool:
        """Whether the stage is: its part of the budget is spent, or nothing has become better for long enough."""
        if self.stage.name != "pretrain" and self.stale_epochs >= (self.config.patience or math.inf):
            return True
        share, gradients = self._stage_share(), self.config.budget.gradient_evaluations
        if gradients is not None:
            left = self.stage.end * gradients - self.minimizer.gradient_evaluations
            return left < next_cost(self.stage.config, self.minimizer) - 1e-6
        return self.steps > self.began and share >= 1

    def _total_epochs(self) -> float:
        return total_epochs(self.config, len(self.loader), self.steps, self._share())

    def spent(self) -> dict[str, float]:
        """Steps, gradients and seconds so far."""
        return {
            "steps": self.steps,
            "gradient_evaluations": float(self.minimizer.gradient_evaluations),
            "time_s": self.clock.total_s,
        }

    # -- stopping and going on ----------------------------------------------------------------------------------

    def _save(self) -> None:
        parameters = [local(p) for p in self.model.parameters() if p.requires_grad]
        if self.ranks.any(not all(bool(torch.isfinite(p).all()) for p in parameters)):
            self._raise_diverged(self.steps)
        tree = state_of(self)
        start = time.perf_counter()
        tree = distributed.whole(tree)
        if self.ranks.leads:
            save_checkpoint(self.run.checkpoint, tree)
        self.saved_at = time.perf_counter()
        self.save_s = self.saved_at - start
        self.observer.saved(self.run)

    def _save_is_due(self) -> bool:
        """After every epoch, unless saving would be the work: then it takes at most a fiftieth of the time.

        A process that is killed loses at most two minutes and the epoch it was in.
        """
        return self.save_s < 0.1 or time.perf_counter() - self.saved_at > min(120, max(10, 50 * self.save_s))

    def _restore(self) -> None:
        tree = load_checkpoint(self.run.checkpoint)
        try:
            put_state(self, tree)
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, RunError) as error:
            reason = error.what if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
            fix = f"remove {self.run.checkpoint} to begin this run again"
            raise RunError(f"the checkpoint does not fit: {reason}", where=str(self.run.path), fix=fix) from None

    @torch.no_grad()
    def _check_weights(self) -> None:
        """Do not keep weights that a ruinous step has left: their loss must be finite too."""
        self._check_finite()
        inputs = self.objective.batch(*divmod(self.steps, len(self.loader)))
        self.model.eval()
        network = self.features.head if self.features else self.model
        with self.minimizer.unperturbed(), autocast(self):
            finite = bool(torch.isfinite(self.objective.losses(network, *inputs)[0]).all())
        self.model.train()
        if not finite:
            self._raise_diverged(self.steps)

    def _check_finite(self) -> None:
        bad = self.tally.bad_step()
        if bad is not None:
            self._raise_diverged(bad)

    def _raise_diverged(self, step: int) -> None:
        raise diverged(self.run, step, len(self.loader), self.stage)

    def raise_interrupted(self) -> None:
        """Tell that the user stopped it; what counts is saved."""
        raise interrupted(self.run, self.steps, self.steps / len(self.loader), self._total_epochs())

    def _finish(self) -> None:
        with self._evaluated():
            with self._timed_evaluation():
                found = measure_splits(self)
            weights = distributed.whole(self.model.state_dict())
            if self.ranks.leads:
                save_weights(self.run.weights, weights)
        epoch_s = training_speed(self.run.metrics(), self.config.batch_size)["time_per_epoch_s"]
        if epoch_s is None or self.steps < len(self.loader):
            epoch_s = self.clock.total_s * len(self.loader) / max(self.steps, 1)
        summary = {
            "status": "finished",
            "config_sha256": self.run.config_sha256,
            "epochs": self.steps / len(self.loader),
            **self.spent(),
            "time_per_epoch_s": epoch_s,
            "evaluate_s": self.evaluate_s,
            **found,
            "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        if compile_s := self.compile_s + self.step.compile_s:
            summary["compile_s"] = compile_s
        if self.device.type == "cuda":
            summary["peak_memory_mib"] = torch.cuda.max_memory_allocated(self.device) / 2**20
        self.run.write("summary.json", summary)
        if self.ranks.leads:
            self.run.checkpoint.unlink(missing_ok=True)
