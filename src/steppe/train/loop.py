"""The training loop: from a configuration to a run folder, through crashes, Ctrl-C and a loss that turns NaN.

Everything random is a function of (seed, step), never of what was drawn before, so the state of a run is its
weights, its optimizer and a few counters. Kill it at any moment, run it again, and the weights come out the same.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGINT, SIGTERM, Signals, signal
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from steppe import minimizers, models
from steppe.config import RunConfig, derive_seed
from steppe.data import Dataset, Loader
from steppe.errors import ConfigError, Interrupted, RunError, TrainingError
from steppe.evaluate import measure_accuracy
from steppe.runs import Observer, Run, create_run
from steppe.train.checkpoint import load_checkpoint, save_checkpoint, save_weights
from steppe.train.environment import describe_environment, pick_device
from steppe.train.schedules import lr_factor


def train(
    config: RunConfig,
    dataset: Dataset,
    out: str | Path,
    *,
    device: str | None = None,
    observer: Observer | None = None,
) -> Run:
    """Train one model and leave a run folder; go on where an earlier call was stopped.

    Args:
        config: the run.
        dataset: what `steppe.data.load(config.data)` gave.
        out: the run folder; made if it is not there. A finished run is returned as it is.
        device: "cpu", "cuda"…; by default the GPU where there is one.
        observer: told about progress.

    Raises:
        RunError: the folder belongs to another configuration or data, is in use, or cannot be written.
        TrainingError: the loss is no longer finite; the last good checkpoint is kept.
        Interrupted: Ctrl-C or SIGTERM; the run can go on.
    """
    run = create_run(out, config)
    with run.lock():
        _check_data(run, dataset)
        if not run.finished:
            place = pick_device(device)
            with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []), _stop_requests() as stop:
                run.write("env.json", describe_environment(place))
                _Training(run, config, dataset, place, observer or Observer(), stop).complete()
    return run


class _Training:
    """The state of one run, and what moves it on."""

    def __init__(
        self,
        run: Run,
        config: RunConfig,
        dataset: Dataset,
        device: torch.device,
        observer: Observer,
        stop: threading.Event,
    ) -> None:
        self.run, self.config, self.dataset, self.device = run, config, dataset, device
        self.observer, self.stop = observer, stop
        self.loader = Loader(
            dataset, batch_size=config.batch_size, augment=config.augment, seed=config.seed, device=device
        )
        self.model = build_model(config, dataset).to(device)
        self.minimizer = build_minimizer(config, self.model, self._share)
        self.peak_lrs = [float(group["lr"]) for group in self.minimizer.param_groups]
        self.steps = 0
        self.time_s = 0.0
        self.last_cost = 1.0
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self.correct = torch.zeros((), dtype=torch.int64, device=device)
        self.seen = 0
        self.first_bad = torch.full((), 2**62, device=device)
        if run.checkpoint.exists():
            self._restore()

    def complete(self) -> None:
        """Spend what is left of the budget, then write the weights and the summary."""
        self.observer.start(self.run, self._total_epochs(), self.steps / len(self.loader))
        try:
            while not self._done():
                self._train_epoch()
        except torch.OutOfMemoryError:
            mend = f"try a smaller batch_size than {self.config.batch_size}"
            raise TrainingError("the GPU's memory ran out", where=str(self.run.path), mend=mend) from None
        except TrainingError as error:
            self.run.write("summary.json", {"status": "failed", "reason": str(error), **self._spent()})
            raise
        self._finish()

    # -- one epoch ----------------------------------------------------------------------------------------------

    def _train_epoch(self) -> None:
        self.model.train()
        start = time.perf_counter()
        while True:
            self._train_step()
            self.observer.step(self.steps / len(self.loader))
            if self.device.type == "cpu":
                self._check_finite()
            if self.steps % len(self.loader) == 0 or self._done():
                break
            if self.stop.is_set():
                self.time_s += time.perf_counter() - start
                self._save()
                self._raise_interrupted()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.time_s += time.perf_counter() - start
        self._check_finite()
        self._record_epoch()
        self._save()
        if self.stop.is_set() and not self._done():
            self._raise_interrupted()

    def _train_step(self) -> None:
        epoch, index = divmod(self.steps, len(self.loader))
        factor = lr_factor(self.config.schedule, self._share())
        for group, peak in zip(self.minimizer.param_groups, self.peak_lrs, strict=True):
            group["lr"] = peak * factor
        images, labels = self.loader.batch(epoch, index)
        torch.manual_seed(derive_seed(self.config.seed, "step", self.steps))
        seen = False

        def losses(part: slice | torch.Tensor) -> torch.Tensor:
            nonlocal seen
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16"):
                logits = self.model(images[part])
                smoothing = self.config.label_smoothing
                found = F.cross_entropy(logits, labels[part], reduction="none", label_smoothing=smoothing)
            if not seen:
                seen = True
                self.correct += (logits.detach().argmax(1) == labels[part]).sum()
                self.seen += len(logits)
            return found

        spent = self.minimizer.gradient_evaluations
        loss = self.minimizer.step(minimizers.Batch(len(labels), losses)).detach()
        self.last_cost = self.minimizer.gradient_evaluations - spent
        self.loss_sum += loss
        self.first_bad = torch.where(torch.isfinite(loss), self.first_bad, self.first_bad.clamp(max=self.steps))
        self.steps += 1

    def _record_epoch(self) -> None:
        with self.minimizer.unperturbed():
            val = measure_accuracy(self.model, self.dataset.val, self.dataset, device=self.device)
        if not math.isfinite(val["loss"]):
            self._raise_diverged(self.steps)
        count = len(self.loader) if self.steps % len(self.loader) == 0 else self.steps % len(self.loader)
        group = self.minimizer.param_groups[0]
        record = {
            "epoch": math.ceil(self.steps / len(self.loader)),
            **self._spent(),
            "lr": float(group["lr"]),
            "rho": float(group["rho"]) if "rho" in group else None,
            "train_loss": self.loss_sum.item() / count,
            "train_accuracy": self.correct.item() / self.seen,
            "val_loss": val["loss"],
            "val_accuracy": val["accuracy"],
        }
        self.run.append_metrics(record)
        self.loss_sum.zero_()
        self.correct.zero_()
        self.seen = 0
        self.observer.epoch(record)

    # -- the budget ---------------------------------------------------------------------------------------------

    def _share(self) -> float:
        """The share of the budget that is spent."""
        budget = self.config.budget
        if budget.epochs is not None:
            return self.steps / (budget.epochs * len(self.loader))
        assert budget.gradient_evaluations is not None
        return self.minimizer.gradient_evaluations / budget.gradient_evaluations

    def _done(self) -> bool:
        budget = self.config.budget
        if budget.gradient_evaluations is not None:
            return budget.gradient_evaluations - self.minimizer.gradient_evaluations < self.last_cost
        return self._share() >= 1

    def _total_epochs(self) -> float:
        budget = self.config.budget
        if budget.epochs is not None:
            return budget.epochs
        assert budget.gradient_evaluations is not None
        return budget.gradient_evaluations / self.config.minimizer.expected_gradients / len(self.loader)

    def _spent(self) -> dict[str, float]:
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
            "last_cost": self.last_cost,
            "loss_sum": self.loss_sum,
            "correct": self.correct,
            "seen": self.seen,
        }
        save_checkpoint(self.run.checkpoint, tree)

    def _restore(self) -> None:
        tree = load_checkpoint(self.run.checkpoint)
        mend = f"remove {self.run.checkpoint} to begin this run again"
        try:
            if tree["config_hash"] != self.config.hash:
                raise RunError("the checkpoint belongs to another configuration")
            self.model.load_state_dict(tree["model"])
            self.minimizer.load_state_dict(tree["minimizer"])
            self.steps, self.time_s, self.last_cost = tree["steps"], tree["time_s"], tree["last_cost"]
            self.seen = tree["seen"]
            self.loss_sum.copy_(tree["loss_sum"])
            self.correct.copy_(tree["correct"])
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, RunError) as error:
            reason = error.what if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
            raise RunError(f"the checkpoint does not fit: {reason}", where=str(self.run.path), mend=mend) from None

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
        with self.minimizer.unperturbed():
            found = {
                name: measure_accuracy(self.model, split, self.dataset, device=self.device)
                for name, split in (
                    ("train", self.dataset.train),
                    ("val", self.dataset.val),
                    ("test", self.dataset.test),
                )
            }
            save_weights(self.run.weights, self.model)
        times = [record["time_s"] for record in self.run.metrics()]
        epochs_s = [later - earlier for earlier, later in zip([0.0, *times], times, strict=False)]
        summary = {
            "status": "finished",
            "epochs": self.steps / len(self.loader),
            **self._spent(),
            "time_per_epoch_s": statistics.median(epochs_s[1:] or epochs_s),
            **found,
            "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        if self.device.type == "cuda":
            summary["peak_memory_mib"] = torch.cuda.max_memory_allocated(self.device) / 2**20
        self.run.write("summary.json", summary)
        self.run.checkpoint.unlink(missing_ok=True)


def build_model(config: RunConfig, dataset: Dataset) -> nn.Module:
    """Make the run's model for its data, with the weights its seed gives."""
    torch.manual_seed(derive_seed(config.seed, "weights"))
    return models.build(
        config.model, image_size=dataset.image_size, channels=dataset.channels, classes=len(dataset.classes)
    )


def build_minimizer(
    config: RunConfig, model: nn.Module, share: Callable[[], float] = lambda: 0.0
) -> minimizers.Minimizer:
    """Make the run's optimizer, wrapped in its minimizer. Biases, norms and embeddings of rank one do not decay.

    Args:
        config: the run.
        model: the network to train.
        share: tells the share of the budget spent so far, for the sharpness schedule `sharp_last`.
    """
    decayed = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
    kept = [p for p in model.parameters() if p.requires_grad and p.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": kept, "weight_decay": 0.0}]
    options: dict[str, Any] = {"lr": config.optimizer.lr, "weight_decay": config.optimizer.weight_decay, "fused": True}
    if config.optimizer.momentum is not None:
        options["momentum"] = config.optimizer.momentum
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.optimizer.name]
    base = kind([group for group in groups if group["params"]], **options)
    own = config.minimizer.model_dump(exclude={"name", "sharp_every", "sharp_last"}, exclude_none=True)
    if config.minimizer.sharp_every:
        own["schedule"] = minimizers.Every(config.minimizer.sharp_every)
    if config.minimizer.sharp_last:
        last = config.minimizer.sharp_last
        own["schedule"] = lambda step: share() >= 1 - last
    if config.minimizer.name == "gsam":
        own["lr_max"] = config.optimizer.lr
    try:
        return minimizers.create(config.minimizer.name, base, model, clip_norm=config.clip_norm, **own)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"this minimizer cannot be made: {error}", where="minimizer") from None


def _check_data(run: Run, dataset: Dataset) -> None:
    """Refuse to go on with other data than the run began with."""
    before = run.read("data.json")
    if not before:
        run.write("data.json", dataset.describe())
    elif before.get("fingerprint") != dataset.fingerprint:
        mend = "bring the old data back, or choose another folder with --out"
        raise RunError("the data is not what this run was made with", where=str(run.path), mend=mend)


@contextmanager
def _stop_requests() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C or SIGTERM into a request that is met after the step; a second one is obeyed at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before: dict[Signals, Any] = {}

    def request(number: int, frame: object) -> None:
        stop.set()
        signal(number, before[Signals(number)])

    for kind in (SIGINT, SIGTERM):
        before[kind] = signal(kind, request)
    try:
        yield stop
    finally:
        for kind, handler in before.items():
            signal(kind, handler)
