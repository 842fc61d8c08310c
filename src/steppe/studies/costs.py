"""What a model costs on this machine: answering, a training step, energy and money."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from steppe import cost, models
from steppe.config import RunConfig, derive_seed
from steppe.data import Dataset
from steppe.errors import RunError
from steppe.measuring import ignore
from steppe.minimizers import Minimizer
from steppe.runs import Run
from steppe.train import build_minimizer, describe_environment, pick_device
from steppe.train.features import find_body
from steppe.train.objectives import Inputs, supervised
from steppe.train.steps import CompiledStep, EagerStep, can_capture

Tell = Callable[[str, int, int], None]
"""Takes what is being measured, how much of it is done, and of how much."""

STEPS_S = 5.0
"""For how long training steps are timed, at the most; a cycle of them is timed in any case."""


@dataclass(frozen=True)
class Images:
    """What a model is asked about.

    Args:
        size: side in pixels.
        channels: of an image.
        classes: how many answers there are.
        count: training images; None where it is not known.
    """

    size: int
    channels: int
    classes: int
    count: int | None = None

    @staticmethod
    def of_dataset(dataset: Dataset) -> Images:
        """Those of a data set."""
        return Images(dataset.image_size, dataset.channels, len(dataset.classes), len(dataset.train))

    @staticmethod
    def of_run(run: Run) -> Images:
        """Those a run was trained on, from its folder alone: the data need not be here."""
        about = run.read("data.json")
        try:
            count = int(about["examples"]["train"]) + (0 if run.config.validates else int(about["examples"]["val"]))
            return Images(int(about["image_size"]), int(about["channels"]), len(about["classes"]), count)
        except (KeyError, TypeError, ValueError):
            fix = "run its training again: it writes the file"
            raise RunError("data.json does not say what the images are", where=str(run.path), fix=fix) from None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return self.channels, self.size, self.size


def measure_cost(
    config: RunConfig, images: Images, *, device: str | None = None, seconds: float = 60.0, tell: Tell = ignore
) -> dict[str, Any]:
    """Measure what a configuration's model costs here; weights do not matter, so none are read.

    Args:
        config: the model, the precision, and what a training step is.
        images: what it is asked about.
        device: by default the GPU where there is one.
        seconds: a cap on the sweep over batch sizes.
        tell: told how it goes.

    Returns:
        `parameters`, `trained_parameters`, `flops_per_image`, `inference` and `training_step`, as in `cost.json`.
    """
    with _fresh_model(config, images, device) as model:
        return {
            "parameters": cost.count_parameters(model),
            "trained_parameters": cost.count_parameters(model, trained=True),
            "flops_per_image": cost.count_flops(model, images.shape),
            "inference": _inference(model, config, images, seconds, tell),
            "training_step": _training_step(model, config, images, min(seconds, STEPS_S), tell),
        }


def measure_step(
    config: RunConfig, images: Images, *, device: str | None = None, seconds: float = STEPS_S
) -> dict[str, Any]:
    """Measure a training step alone: `training_step` of `measure_cost`.

    Args:
        config: as of `measure_cost`.
        images: as of `measure_cost`.
        device: by default the GPU where there is one.
        seconds: for how long steps are timed.
    """
    with _fresh_model(config, images, device) as model:
        return _training_step(model, config, images, seconds, ignore)


@contextmanager
def _fresh_model(config: RunConfig, images: Images, device: str | None) -> Iterator[torch.nn.Module]:
    """A configuration's model with random weights, where and as it would be trained."""
    place = pick_device(device)
    if place.type == "cuda":  # what was there before is not this model's memory
        gc.collect()
        torch.cuda.empty_cache()
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
        torch.manual_seed(derive_seed(config.seed, "cost"))
        model = models.build(
            config.model, image_size=images.size, channels=images.channels, classes=images.classes, load=False
        )
        model = models.place(model, place, images.size)
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=True):
            yield model


def add_cost(
    run: Run,
    *,
    device: str | None = None,
    seconds: float = 60.0,
    price_per_hour: float | None = None,
    tell: Tell = ignore,
) -> dict[str, Any]:
    """Measure a run's model here and add what was found to its `cost.json`; other keys stay.

    Args:
        run: with or without its data at hand; it need not be finished.
        device: by default the GPU where there is one.
        seconds: a cap on the sweep over batch sizes.
        price_per_hour: of the machine, in any currency.
        tell: told how it goes.
    """
    check_writable(run)
    found = measure_cost(run.config, Images.of_run(run), device=device, seconds=seconds, tell=tell)
    with run.lock():
        whole = {**run.read_or_empty("cost.json"), **found, "training": describe_training(run)}
        if price_per_hour is not None:
            whole["price"] = describe_price(whole, price_per_hour, run.read_or_empty("summary.json").get("time_s"))
        run.write("cost.json", whole)
    return whole


def check_writable(run: Run) -> None:
    """Refuse a run whose `cost.json` cannot be written, before anything is measured.

    Args:
        run: to which costs are to be added.
    """
    with run.lock():
        run.write("cost.json", run.read_or_empty("cost.json"))


def describe_training(run: Run) -> dict[str, Any]:
    """Seconds an epoch and images a second of a run's training, from its records."""
    count = Images.of_run(run).count or 1
    compile_s = float(run.read_or_empty("summary.json").get("compile_s") or 0.0)
    return cost.training_speed(run.metrics(), min(run.config.batch_size, count), compile_s)


def describe_price(found: dict[str, Any], per_hour: float, training_s: float | None = None) -> dict[str, Any]:
    """What time costs at so much an hour: of a training, of one epoch, and of a million answers.

    Args:
        found: as in `cost.json`.
        per_hour: in any currency.
        training_s: seconds of the whole training.
    """
    speed = found["inference"]["images_per_s"]
    return {
        "per_hour": per_hour,
        "training": cost.price_of(training_s, per_hour),
        "epoch": cost.price_of((found.get("training") or {}).get("time_per_epoch_s"), per_hour),
        "million_images": cost.price_of(1e6 / speed if speed else None, per_hour),
    }


def _inference(model: torch.nn.Module, config: RunConfig, images: Images, seconds: float, tell: Tell) -> dict[str, Any]:
    device = next(model.parameters()).device
    bfloat16 = config.precision == "bfloat16"
    told = partial(tell, "inference, batch sizes")
    found = cost.measure_throughput(model, images.shape, bfloat16=bfloat16, seconds=seconds, tell=told)
    here = describe_environment(device)
    out = {**asdict(found), "precision": config.precision, "device_name": here["device_name"]}
    if device.type == "cpu":
        out["threads"] = here["threads"]
    if not found.best_batch_size:
        return {**out, "memory_mib": None}
    batch = torch.zeros(found.best_batch_size, *images.shape, device=device)

    def work() -> None:
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            model(batch)

    model.eval()
    held = [*model.parameters(), *model.buffers(), batch]
    return {**out, "memory_mib": cost.measure_peak_memory(work, device, held) / 2**20}


def _training_step(
    model: torch.nn.Module, config: RunConfig, images: Images, seconds: float, tell: Tell
) -> dict[str, Any]:
    device = next(model.parameters()).device
    size = min(config.batch_size, images.count or config.batch_size)
    x = torch.randn(size, *images.shape, device=device)
    x = x.contiguous(memory_format=torch.channels_last) if device.type == "cuda" else x
    batch = x, torch.arange(size, device=device) % images.classes
    out: dict[str, Any] = {"batch_size": size, "counted": "allocator" if device.type == "cuda" else "tensors"}
    try:
        body = find_body(model, config, lambda: x)
        trained = _Trained(model, model, lambda: batch)
        if body:
            trained = _Trained(model, body.head, lambda: (body(x), batch[1]))
        out |= _step_memory(trained, config, batch)
    except (MemoryError, RuntimeError, ValueError) as error:
        reason = _first_line(error)
        return {**out, "memory_mib": None, "reason": reason, "time_s": None, "time_reason": reason}
    if config.minimizer.name == "aesam":
        return {**out, "time_s": None, "time_reason": "how many of AE-SAM's steps are sharp shows in training alone"}
    if config.objective.name:
        why = f"a step of {config.objective.name} training is timed in training alone"
        return {**out, "time_s": None, "time_reason": why}
    try:
        return out | _step_time(trained, config, images, out["micro_batches"], seconds, tell)
    except (MemoryError, RuntimeError, ValueError) as error:
        return {**out, "time_s": None, "time_reason": _first_line(error)}


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or "memory ran out"  # Python's own MemoryError says nothing


@dataclass(frozen=True)
class _Trained:
    """A model as steps of training meet it: what of it they go through, and what it is given."""

    model: torch.nn.Module
    network: torch.nn.Module
    inputs: Callable[[], Inputs]


def _step_memory(trained: _Trained, config: RunConfig, batch: Inputs) -> dict[str, Any]:
    """The memory of an eager step, the second one: the first makes the optimizer's state."""
    model, inputs = trained.model, trained.inputs
    minimizer = build_minimizer(config, model.train())
    step = EagerStep(trained.network, minimizer, supervised(config, lambda epoch, index: batch), config, ignore)
    step(*inputs())
    state = [value for one in minimizer.state.values() for value in one.values()]
    held = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters()), *state, *batch]
    peak = cost.measure_peak_memory(lambda: step(*inputs()), batch[0].device, held)
    model.zero_grad()
    return {"memory_mib": peak / 2**20, "micro_batches": step.parts}


def _step_time(
    trained: _Trained, config: RunConfig, images: Images, parts: int, seconds: float, tell: Tell
) -> dict[str, Any]:
    """The mean time of a step made as `steppe train` makes it: recorded on CUDA, eager elsewhere.

    Whole cycles of the minimizer's steps are timed, sharp and plain ones as often as in training. The learning rate is
    zero, which no step is faster by, so that the weights stay what they are.
    """
    share, batch, network = 0.0, trained.inputs(), trained.network
    device = batch[0].device
    objective = supervised(config, lambda epoch, index: batch)
    step: EagerStep | CompiledStep
    last, every = config.minimizer.sharp_last, config.minimizer.sharp_every or config.minimizer.k or 1
    cycle = 20 if last else every

    def make_minimizer() -> Minimizer:
        minimizer = build_minimizer(config, trained.model.train(), lambda: share)
        for group in minimizer.param_groups:
            group["lr"] = 0.0
        return minimizer

    def spend(shares: Sequence[float]) -> float:
        nonlocal share
        began = time.perf_counter()
        for share in shares:  # noqa: B007 - what the minimizer asks for
            step(*trained.inputs())
        cost.wait_for(device)
        return time.perf_counter() - began

    def timed(count: int) -> float:
        return spend([(number + 0.5) / count for number in range(count)])

    tell("training steps", 0, 3)
    first = [0.0, 1.0] if last or device.type == "cpu" else [0.0] * max(2, every)  # of each kind one
    captured = can_capture(config, device)
    try:
        if captured:
            step = CompiledStep(network, make_minimizer(), objective, config, batch, parts=parts)
        else:
            step = EagerStep(network, make_minimizer(), objective, config, ignore)
        spend(first)
    except (MemoryError, RuntimeError):
        if not captured:
            raise
        captured = False  # as a training goes on that cannot be recorded
        step = EagerStep(network, make_minimizer(), objective, config, ignore)
        spend(first)
    tell("training steps", 1, 3)
    minimizer, before = step.minimizer, step.minimizer.gradient_evaluations
    steps, took = cycle, timed(cycle)
    tell("training steps", 2, 3)
    if more := int((seconds - took) / took) * cycle:
        before = minimizer.gradient_evaluations
        steps, took = more, timed(more)
    tell("training steps", 3, 3)
    time_s = took / steps
    size, count = len(batch[0]), images.count
    return {
        "time_s": time_s,
        "epoch_s": time_s * max(1, count // size) if count else None,
        "gradients": (minimizer.gradient_evaluations - before) / steps,
        "timed_steps": steps,
        "captured": captured,
        "compile_s": step.compile_s,
        "device_name": describe_environment(device)["device_name"],
    }
