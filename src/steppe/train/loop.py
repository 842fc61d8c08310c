"""The training loop: from a configuration to a run folder, through crashes, Ctrl-C and a loss that turns NaN.

Everything random is a function of (seed, step), never of what was drawn before, so the state of a run is its
weights, its optimizer and a few counters. Kill it at any moment, run it again, and the weights come out the same.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime

import torch

from steppe.config import RunConfig, derive_seed
from steppe.data import Dataset, Keeping, Loader, Split
from steppe.errors import Interrupted, RunError, TrainingError
from steppe.evaluate import Accuracy, measure_accuracy
from steppe.minimizers import Minimizer, reestimate_batchnorm
from steppe.runs import Observer, Run
from steppe.train.averaging import WeightAverage
from steppe.train.checkpoint import load_checkpoint, save_checkpoint, save_weights
from steppe.train.schedules import lr_factor
from steppe.train.setup import build_minimizer, build_model
from steppe.train.steps import CompiledStep, EagerStep, example_losses


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
    ) -> None:
        """Build everything, and go on from the checkpoint where there is one."""
        self.run, self.config, self.dataset, self.device = run, config, dataset, device
        self.observer, self.stop = observer, stop
        self.keeping = keeping or Keeping()
        self.loader = Loader(
            dataset,
            batch_size=config.batch_size,
            augment=config.augment,
            seed=config.seed,
            device=device,
            workers=self.keeping.workers,
            resident=self.keeping.resident if dataset.train.in_memory else None,
            channels_last=device.type == "cuda",
        )
        self.model = build_model(config, dataset).to(device)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self.model = self.model.to(memory_format=torch.channels_last)
        self.minimizer = build_minimizer(config, self.model, self._share)
        self.peaks = [{key: float(group[key]) for key in ("lr", "rho")} for group in self.minimizer.param_groups]
        self.average = WeightAverage(self.model, config.ema) if config.ema else None
        self.steps = 0
        self.time_s = 0.0
        self.clock: float | None = None
        self.saved_at = self.save_s = 0.0
        self.best_val, self.stale_epochs = math.inf, 0
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self.correct = torch.zeros((), dtype=torch.int64, device=device)
        self.seen = 0
        self.first_bad = torch.full((), 2**62, device=device)
        if run.checkpoint.exists():
            self._restore()
        elif config.budget.gradient_evaluations and self._done():
            what = f"a budget of {config.budget.gradient_evaluations} gradient(s) does not pay for one step"
            raise TrainingError(what, where="budget.gradient_evaluations", mend=f"a step costs {self._next_cost():g}")
        self.step: EagerStep | CompiledStep
        if captured:
            self.step = CompiledStep(self.model.train(), self.minimizer, config, *self.loader.batch(0, 0))
        else:
            self.step = EagerStep(self.model, self.minimizer, config, observer.say)

    def complete(self) -> None:
        """Spend what is left of the budget, then write the weights and the summary."""
        self.observer.start(self.run, self._total_epochs(), self.steps / len(self.loader))
        while not self._done():
            self._train_epoch()
        self._finish()

    # -- one epoch ----------------------------------------------------------------------------------------------

    def _train_epoch(self) -> None:
        self.model.train()
        self.clock = time.perf_counter()
        while True:
            self._train_step()
            self.observer.step(self.steps / len(self.loader))
            if self.device.type == "cpu":
                self._check_finite()
            if self.steps % len(self.loader) == 0 or self._done():
                break
            if self.stop.is_set():
                self._stop_clock()
                self._check_weights()
                self._save()
                self._raise_interrupted()
        self._stop_clock()
        self._check_finite()
        self._record_epoch()
        if self._done() or self.stop.is_set() or self._save_is_due():
            self._save()
        if self.stop.is_set() and not self._done():
            self._raise_interrupted()

    def _train_step(self) -> None:
        epoch, index = divmod(self.steps, len(self.loader))
        self._set_rates()
        images, targets = self.loader.batch(epoch, index)
        torch.manual_seed(derive_seed(self.config.seed, "step", self.steps))
        compiled_s = self.step.compile_s
        loss, hits, seen = self.step(images, targets)
        self.clock = (self.clock or 0.0) + self.step.compile_s - compiled_s  # compiling is told apart
        if self.average:
            self.average.update()
        self.loss_sum += loss
        self.correct += hits
        self.seen += seen
        self.first_bad = torch.where(torch.isfinite(loss), self.first_bad, self.first_bad.clamp(max=self.steps))
        self.steps += 1

    def _set_rates(self) -> None:
        share = self._share()
        factor = lr_factor(self.config.schedule, share)
        final = self.config.minimizer.rho_final
        for group, peak in zip(self.minimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak["lr"] * factor
            if final is not None:
                group["rho"] = peak["rho"] * (final + (1 - final) * (1 + math.cos(math.pi * share)) / 2)

    def _record_epoch(self) -> None:
        with self._evaluated():
            val = self._measure(self.dataset.val)
        if not math.isfinite(val["loss"]):
            self._raise_diverged(self.steps)
        count = len(self.loader) if self.steps % len(self.loader) == 0 else self.steps % len(self.loader)
        group = self.minimizer.param_groups[0]
        record = {
            "epoch": math.ceil(self.steps / len(self.loader)),
            **self.spent(),
            "lr": float(group["lr"]),
            "rho": float(group["rho"]) if self.config.minimizer.name != "base" else None,
            "train_loss": self.loss_sum.item() / count,
            "train_accuracy": self.correct.item() / self.seen,
            "val_loss": val["loss"],
            "val_accuracy": val["accuracy"],
        }
        self.run.append_metrics(record)
        self.stale_epochs = 0 if val["loss"] < self.best_val else self.stale_epochs + 1
        self.best_val = min(self.best_val, val["loss"])
        self.loss_sum.zero_()
        self.correct.zero_()
        self.seen = 0
        self.observer.epoch(record)

    @contextmanager
    def _evaluated(self) -> Iterator[None]:
        """Inside, the model has the weights that count: unperturbed, and averaged where an average is kept."""
        with self.minimizer.unperturbed(), self.average.in_place() if self.average else nullcontext():
            if self.average or self.config.minimizer.name == "msam":  # their BatchNorm statistics are of other weights
                torch.manual_seed(derive_seed(self.config.seed, "statistics", self.steps))
                some = (self.loader.batch(0, index)[0] for index in range(min(20, len(self.loader))))
                with torch.no_grad():
                    reestimate_batchnorm(self.model, some)
            yield

    def _measure(self, split: Split) -> Accuracy:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16"):
            size = min(1024, 8 * self.config.batch_size)
            return measure_accuracy(
                self.model,
                split,
                self.dataset,
                device=self.device,
                batch_size=size,
                workers=self.keeping.workers,
            )

    # -- the budget ---------------------------------------------------------------------------------------------

    def _share(self) -> float:
        """The share of the budget that is spent."""
        budget = self.config.budget
        if budget.epochs is not None:
            return self.steps / (budget.epochs * len(self.loader))
        if budget.seconds is not None:
            return (self.time_s + self._running_s()) / budget.seconds
        assert budget.gradient_evaluations is not None
        return self.minimizer.gradient_evaluations / budget.gradient_evaluations

    def _running_s(self) -> float:
        """Seconds since the clock was started; a GPU is waited for now and then, lest the host count ahead of it."""
        if self.clock is None:
            return 0.0
        if self.device.type == "cuda" and self.steps % 16 == 0:
            torch.cuda.synchronize()
        return time.perf_counter() - self.clock

    def _stop_clock(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        assert self.clock is not None
        self.time_s += time.perf_counter() - self.clock
        self.clock = None

    def _done(self) -> bool:
        budget = self.config.budget
        if self.stale_epochs >= (self.config.patience or math.inf):
            return True
        if budget.gradient_evaluations is not None:
            return budget.gradient_evaluations - self.minimizer.gradient_evaluations < self._next_cost() - 1e-6
        return self._share() >= 1

    def _next_cost(self) -> float:
        """The most that the coming step may cost, in gradients."""
        kind = self.minimizer.kind()
        if not kind.second:
            return 1.0
        if self.config.minimizer.name == "esam":
            return 1 + 1 / 3 + (self.config.minimizer.gamma or 1.0)
        return (self.config.minimizer.ascent_fraction or 1.0) * kind.first + 1.0

    def _total_epochs(self) -> float:
        budget = self.config.budget
        if budget.epochs is not None:
            return budget.epochs
        if budget.seconds is not None:
            return max(self.steps / len(self.loader) / max(self._share(), 1e-9), 1) if self.steps else 1
        assert budget.gradient_evaluations is not None
        return budget.gradient_evaluations / self.config.minimizer.expected_gradients / len(self.loader)

    def spent(self) -> dict[str, float]:
        """Steps, gradients and seconds so far."""
        return {
            "steps": self.steps,
            "gradient_evaluations": float(self.minimizer.gradient_evaluations),
            "time_s": self.time_s,
        }

    # -- stopping and going on ----------------------------------------------------------------------------------

    def _save(self) -> None:
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        if not all(bool(torch.isfinite(p).all()) for p in parameters):
            self._raise_diverged(self.steps)
        tree = {
            "config_hash": self.config.hash,
            "model": self.model.state_dict(),
            "minimizer": self.minimizer.state_dict(),
            "steps": self.steps,
            "time_s": self.time_s,
            "threads": torch.get_num_threads(),
            "loss_sum": self.loss_sum,
            "correct": self.correct,
            "seen": self.seen,
            "best_val": self.best_val,
            "stale_epochs": self.stale_epochs,
            "average": self.average.state_dict() if self.average else None,
        }
        start = time.perf_counter()
        save_checkpoint(self.run.checkpoint, tree)
        self.saved_at = time.perf_counter()
        self.save_s = self.saved_at - start

    def _save_is_due(self) -> bool:
        """After every epoch, unless epochs are so short and the network so large that saving would be the work."""
        return self.save_s < 0.1 or time.perf_counter() - self.saved_at > 10

    def _restore(self) -> None:
        tree = load_checkpoint(self.run.checkpoint)
        mend = f"remove {self.run.checkpoint} to begin this run again"
        try:
            if tree["config_hash"] != self.config.hash:
                raise RunError("the checkpoint belongs to another configuration")
            self.model.load_state_dict(tree["model"])
            self.minimizer.load_state_dict(tree["minimizer"])
            _match_layout(self.minimizer)
            self.steps, self.time_s = tree["steps"], tree["time_s"]
            if self.device.type == "cpu":
                torch.set_num_threads(tree["threads"])  # sums, and so the last digits, depend on their number
            self.seen, self.best_val, self.stale_epochs = tree["seen"], tree["best_val"], tree["stale_epochs"]
            if self.average:
                self.average.load_state_dict(tree["average"])
            self.loss_sum.copy_(tree["loss_sum"])
            self.correct.copy_(tree["correct"])
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, RunError) as error:
            reason = error.what if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
            raise RunError(f"the checkpoint does not fit: {reason}", where=str(self.run.path), mend=mend) from None

    @torch.no_grad()
    def _check_weights(self) -> None:
        """Do not keep weights that a ruinous step has left: their loss must be finite too."""
        self._check_finite()
        images, targets = self.loader.batch(*divmod(self.steps, len(self.loader)))
        self.model.eval()
        with self.minimizer.unperturbed():
            finite = bool(torch.isfinite(example_losses(self.model(images), targets, self.config)).all())
        self.model.train()
        if not finite:
            self._raise_diverged(self.steps)

    def _check_finite(self) -> None:
        bad = int(self.first_bad)
        if bad < 2**62:
            self._raise_diverged(bad)

    def _raise_diverged(self, step: int) -> None:
        where = f"{self.run.path}, step {step} (epoch {step // len(self.loader) + 1})"
        kept = "there is no checkpoint before it"
        if self.run.checkpoint.exists():
            epoch = load_checkpoint(self.run.checkpoint)["steps"] / len(self.loader)
            kept = f"the last good checkpoint, after epoch {epoch:g}, is kept"
        sharp = ", a smaller minimizer.rho" if self.config.minimizer.rho else ""
        mend = f"try a smaller optimizer.lr than {self.config.optimizer.lr:g}{sharp}, schedule.warmup, or clip_norm"
        raise TrainingError(f"the loss is no longer a finite number; {kept}", where=where, mend=mend)

    def _raise_interrupted(self) -> None:
        epoch = self.steps / len(self.loader)
        raise Interrupted(
            f"stopped after step {self.steps} (epoch {epoch:.2f} of {self._total_epochs():g}); nothing is lost",
            where=str(self.run.path),
            mend="run the same command again to go on from here",
        )

    def _finish(self) -> None:
        with self._evaluated():
            found = {
                name: self._measure(split)
                for name, split in (
                    ("train", self.dataset.train),
                    ("val", self.dataset.val),
                    ("test", self.dataset.test),
                )
            }
            save_weights(self.run.weights, self.model)
        times = [float(record.get("time_s", 0.0)) for record in self.run.metrics()]
        epochs_s = [later - earlier for earlier, later in zip([0.0, *times], times, strict=False)]
        summary = {
            "status": "finished",
            "config_sha256": self.run.config_sha256,
            "epochs": self.steps / len(self.loader),
            **self.spent(),
            "time_per_epoch_s": statistics.median(epochs_s[1:] or epochs_s or [self.time_s]),
            **found,
            "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        if self.step.compile_s:
            summary["compile_s"] = self.step.compile_s
        if self.device.type == "cuda":
            summary["peak_memory_mib"] = torch.cuda.max_memory_allocated(self.device) / 2**20
        self.run.write("summary.json", summary)
        self.run.checkpoint.unlink(missing_ok=True)


def _match_layout(minimizer: Minimizer) -> None:
    """Lay a loaded state out as its parameters are (channels-last, say): fused optimizers insist on it."""
    for parameter, state in minimizer.state.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                state[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
