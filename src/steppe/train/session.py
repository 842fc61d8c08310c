"""A run from its configuration to its folder: the lock, the checks, the signals, and what to do when it breaks."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch

from steppe import models
from steppe.config import UNTRAINED, RunConfig
from steppe.cost import Energy, EnergyMeter
from steppe.data import Dataset, Keeping, as_learned, check_unchanged
from steppe.errors import ConfigError, Interrupted, RunError, TrainingError, ran_out_of_memory
from steppe.models.weights import say_once
from steppe.runs import Observer, Run, Several, Status, create_run
from steppe.signals import handle_stops
from steppe.train.distributed import Ranks, SilentRun, join
from steppe.train.environment import describe_environment, pick_device
from steppe.train.loop import Training
from steppe.train.probe import Probe
from steppe.train.setup import build_minimizer, build_model
from steppe.train.soup import Soup
from steppe.train.steps import can_capture

MOST_PARTS = 64
"""Micro-batches that a recorded step is divided into at the most, before eager steps are tried."""


def train(
    config: RunConfig,
    dataset: Dataset,
    out: str | Path,
    *,
    device: str | None = None,
    captured: bool = True,
    observer: Observer | None = None,
    keeping: Keeping | None = None,
    sharded: bool = False,
    stop: threading.Event | None = None,
    val_examples: int | None = None,
) -> Run:
    """Train one model and leave a run folder; go on where an earlier call was stopped.

    Args:
        config: the run.
        dataset: what `steppe.data.load(config.data)` gave.
        out: the run folder; made if it is not there. A finished run is returned as it is.
        device: "cpu", "cuda"…; by default the GPU where there is one.
        captured: compile the step and record it as a CUDA graph, where device and method allow it.
        observer: told about progress.
        keeping: how many processes read images, and whether they stay on the device.
        sharded: among the processes that torchrun started, cut the model into shards (FSDP2) instead of copying it.
        stop: set by Ctrl-C or SIGTERM; for a caller that has more to do, and must know of a request that came when
            this run was about to end.
        val_examples: judge the run by about so many of its validation images at most, the same for every run on these
            data, and by nothing else: of many runs that are compared, only one is to see the test images. 0 for one
            that is not judged and learns the validation images. By default all validation images are taken after every
            epoch, and all images of every split at the end.

    Raises:
        ConfigError: the run is to be judged by validation images, and learns from them.
        RunError: the folder belongs to another configuration, is in use, or cannot be written.
        DataError: the data have changed since the run was begun.
        TrainingError: the loss is no longer finite; the last good checkpoint is kept.
        Interrupted: Ctrl-C or SIGTERM; the run can go on.
    """
    if val_examples and not config.validates:
        fix = "leave learn_from_val out: a search chooses by images that no trial has learned"
        raise ConfigError("there are no validation images to judge this run by", where="data.learn_from_val", fix=fix)
    with join(pick_device(device), sharded) as (ranks, place):
        with ExitStack() as held:
            ranks.led(lambda: held.enter_context(_prepared(config, dataset, Path(out))))
            run = Run(out) if ranks.leads else SilentRun(out)
            dataset = as_learned(dataset, run.read_or_empty("data.json"))
            if not ranks.any(not run.finished):
                return run
            quick = torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=True)
            forked = torch.random.fork_rng(devices=[place] if place.type == "cuda" else [])
            with forked, quick, _EnergyCount(run, place) as energy, _stop_requests(stop) as asked:
                _note_environment(run, place, ranks)
                told = Several([energy, *([observer] if observer is not None and ranks.leads else [])])
                with _tell_end(run, told):
                    _complete(run, config, dataset, place, told, asked, captured, keeping, ranks, val_examples)
        return run


@contextmanager
def _prepared(config: RunConfig, dataset: Dataset, out: Path) -> Iterator[None]:
    """Make the folder, or check that it is this run's, and hold it."""
    if not (out / "config.toml").exists():  # a mistake in the configuration leaves no folder behind
        with torch.random.fork_rng(devices=[]):
            build_minimizer(config, build_model(config, dataset))
    run = create_run(out, config)
    with run.lock():
        _check_data(run, config, dataset)
        if not run.finished:
            _check_weights(run, config)
        else:  # a kill may have come between the summary and this
            with suppress(OSError):
                run.checkpoint.unlink(missing_ok=True)
        yield


def _complete(
    run: Run,
    config: RunConfig,
    dataset: Dataset,
    device: torch.device,
    observer: Observer,
    stop: threading.Event,
    captured: bool,
    keeping: Keeping | None,
    ranks: Ranks,
    val_examples: int | None,
    parts: int = 1,
) -> None:
    """Train to the end; a captured step that does not fit into memory is recorded anew in twice as many parts."""
    if config.model.mode in UNTRAINED:
        if ranks.count > 1:
            what = f"a {config.model.mode} is made by one process"
            raise ConfigError(what, where="model.mode", fix="start it without torchrun")
        try:
            make = Probe if config.model.mode == "probe" else Soup
            make(run, config, dataset, device, observer, stop, keeping, val_examples).complete()
        except (MemoryError, RuntimeError) as error:
            if not ran_out_of_memory(error):
                raise
            fix = f"try a smaller data.image_size than {dataset.image_size}, or another model"
            failure = TrainingError("the memory ran out", where=str(run.path), fix=fix)
            _note_failure(run, failure, None)
            raise failure from None
        return
    captured = captured and can_capture(config, device) and ranks.count == 1
    threads = torch.get_num_threads()
    training, ran_out = None, False
    try:
        place = device, observer, stop, captured, keeping, ranks
        training = Training(run, config, dataset, *place, parts, val_examples)
        training.complete()
        return
    except TrainingError as error:
        _note_failure(run, error, training)
        raise
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        failure = TrainingError(
            "BatchNorm cannot train on one image at a time", where="batch_size", fix="use a batch_size of 2 or more"
        )
        _note_failure(run, failure, training)
        raise failure from None
    except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is one
        ran_out = ran_out_of_memory(error)
        if not ran_out and not (captured and "captur" in str(error)):
            raise
        if not captured:
            fix = f"try a smaller batch_size than {config.batch_size}, or another model"
            even = "" if ranks.count > 1 or config.objective.name == "contrastive" else " even in parts"
            failure = TrainingError(f"the memory ran out{even}", where=str(run.path), fix=fix)
            _note_failure(run, failure, training)
            raise failure from None
    finally:
        torch.set_num_threads(threads)
    training = None
    torch.cuda.empty_cache()
    if ran_out and config.objective.name != "contrastive" and parts * 2 <= min(config.batch_size, MOST_PARTS):
        parts *= 2
        how = f"with {parts} micro-batches a step, which is the same update,"
    else:
        captured, how = False, "with eager steps,"
    why = "memory ran out" if ran_out else "the step cannot be captured here"
    observer.say(f"{why}: going on {how} from the last checkpoint")
    _complete(run, config, dataset, device, observer, stop, captured, keeping, ranks, val_examples, parts)


@contextmanager
def _tell_end(run: Run, observer: Observer) -> Iterator[None]:
    status: Status = "failed"
    try:
        yield
        status = "finished"
    except (Interrupted, KeyboardInterrupt):
        status = "stopped"
        raise
    finally:
        observer.end(run, status)


class _EnergyCount(Observer):
    """Adds what a GPU uses meanwhile to `training_energy` of `cost.json`, at every checkpoint and at the end.

    Evaluating is in it; what a kill ended is, up to the last checkpoint.
    """

    def __init__(self, run: Run, device: torch.device) -> None:
        self.run, self.meter = run, EnergyMeter(device) if device.type == "cuda" else None
        self.before = run.read_or_empty("cost.json").get("training_energy") or {}

    def __enter__(self) -> Self:
        if self.meter:
            self.meter.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.meter:
            self.meter.__exit__()
            self._write(self.meter.energy)

    def saved(self, run: Run) -> None:
        """Write what was used so far."""
        if self.meter:
            self._write(self.meter.read())

    def _write(self, now: Energy) -> None:
        before = self.before
        found: dict[str, Any] = {"joules": before.get("joules"), "seconds": before.get("seconds", 0.0)}
        if now.joules is None:
            found["reason"] = now.reason
        else:
            found["joules"] = (before.get("joules") or 0.0) + now.joules
            found |= {"seconds": found["seconds"] + now.seconds, "how": now.how}
        with suppress(RunError):  # a full disk is told by what is more important
            self.run.write("cost.json", {**self.run.read_or_empty("cost.json"), "training_energy": found})


def _note_environment(run: Run, device: torch.device, ranks: Ranks) -> None:
    """Write where this run happens now; where it happened before stays in the list `earlier`."""
    now, before = describe_environment(device), run.read_or_empty("env.json")
    if ranks.count > 1:
        now["processes"], now["sharded"] = ranks.count, ranks.sharded
    if before:
        now["earlier"] = [*before.pop("earlier", []), before]
    run.write("env.json", now)


def _note_failure(run: Run, error: TrainingError, training: Training | None) -> None:
    spent = training.spent() if training else {}
    run.write("summary.json", {"status": "failed", "reason": str(error), **spent})


def _check_data(run: Run, config: RunConfig, dataset: Dataset) -> None:
    """Refuse to go on with other data than the run began with; a new run notes what it learns, and how normalised."""
    before = run.read_or_empty("data.json")
    if not before:
        dataset, chosen = _normalised(config, dataset)
        run.write("data.json", {**dataset.describe(), "statistics": chosen})
    else:
        check_unchanged(before, dataset, where=str(run.path))


def _normalised(config: RunConfig, dataset: Dataset) -> tuple[Dataset, str]:
    """The data with the statistics its pretrained weights expect, unless the configuration says which; and whose."""
    source = config.model.weights
    if config.data.statistics is not None or source is None:
        return dataset, config.data.statistics or "own"
    expected = models.expected_statistics(config.model, dataset.channels)
    if expected is None:
        return dataset, "own"
    if config.model.mode not in UNTRAINED:
        say_once(f"images are normalised as {source} expects them; data.statistics = own takes their own statistics")
    return replace(dataset, mean=expected[0], std=expected[1]), source


def _check_weights(run: Run, config: RunConfig) -> None:
    """Refuse to go on when what `model.weights` names, a file or a name of timm's or a hub's, has changed since.

    `data.json` keeps its digest; a run from before digests were kept takes the weights as they are now.
    """
    if config.model.weights is None:
        return
    now = models.weights_sha256(config.model.weights, config.model.name)
    known = run.read("data.json")
    before = known.get("weights_sha256")
    if before is None:
        run.write("data.json", {**known, "weights_sha256": now})
    elif before != now:
        fix = "bring the old weights back, or choose another folder with --out"
        what = f"the weights this run began with have changed: {config.model.weights}"
        raise RunError(what, where=str(run.path), fix=fix)


@contextmanager
def _stop_requests(stop: threading.Event | None = None) -> Iterator[threading.Event]:
    """Turn the first Ctrl-C or SIGTERM into a request that is met after the step; a second one is obeyed at once."""
    stop = stop or threading.Event()

    def request() -> None:
        stop.set()
        with suppress(OSError):  # not by print: a signal may come in the middle of one
            os.write(2, b"stopping, as soon as nothing is lost by it; once more stops at once\n")

    with handle_stops(request, once=True):
        yield stop
