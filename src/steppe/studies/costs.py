"""What a model costs on this machine: answering, a training step, energy and money."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from steppe import cost, models
from steppe.config import RunConfig, derive_seed
from steppe.data import Dataset
from steppe.errors import RunError
from steppe.runs import Run
from steppe.train import build_minimizer, describe_environment, pick_device
from steppe.train.objectives import supervised
from steppe.train.steps import EagerStep


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
            count = int(about["examples"]["train"])
            return Images(int(about["image_size"]), int(about["channels"]), len(about["classes"]), count)
        except (KeyError, TypeError, ValueError):
            mend = "run its training again: it writes the file"
            raise RunError("data.json does not say what the images are", where=str(run.path), mend=mend) from None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return self.channels, self.size, self.size


def measure_cost(
    config: RunConfig, images: Images, *, device: str | None = None, seconds: float = 60.0
) -> dict[str, Any]:
    """Measure what a configuration's model costs here; weights do not matter, so none are read.

    Args:
        config: the model, the precision, and what a training step is.
        images: what it is asked about.
        device: by default the GPU where there is one.
        seconds: a cap on the sweep over batch sizes.

    Returns:
        `parameters`, `trained_parameters`, `flops_per_image`, `inference` and `training_step`, as in `cost.json`.
    """
    place = pick_device(device)
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
        torch.manual_seed(derive_seed(config.seed, "cost"))
        model = models.build(
            config.model, image_size=images.size, channels=images.channels, classes=images.classes, load=False
        ).to(place)
        if place.type == "cuda":
            model = model.to(memory_format=torch.channels_last)
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=True):
            return {
                "parameters": cost.count_parameters(model),
                "trained_parameters": cost.count_parameters(model, trained=True),
                "flops_per_image": cost.count_flops(model, images.shape),
                "inference": _inference(model, config, images, place, seconds),
                "training_step": _training_step(model, config, images, place),
            }


def add_cost(
    run: Run, *, device: str | None = None, seconds: float = 60.0, price_per_hour: float | None = None
) -> dict[str, Any]:
    """Measure a run's model here and add what was found to its `cost.json`; other keys stay.

    Args:
        run: with or without its data at hand; it need not be finished.
        device: by default the GPU where there is one.
        seconds: a cap on the sweep over batch sizes.
        price_per_hour: of the machine, in any currency.
    """
    found = measure_cost(run.config, Images.of_run(run), device=device, seconds=seconds)
    with run.lock():
        whole = {**run.read_or_empty("cost.json"), **found, "training": describe_training(run)}
        if price_per_hour is not None:
            whole["price"] = describe_price(whole, price_per_hour, run.read_or_empty("summary.json").get("time_s"))
        run.write("cost.json", whole)
    return whole


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


def _inference(
    model: torch.nn.Module, config: RunConfig, images: Images, device: torch.device, seconds: float
) -> dict[str, Any]:
    bfloat16 = config.precision == "bfloat16"
    found = cost.measure_throughput(model, images.shape, bfloat16=bfloat16, seconds=seconds)
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


def _training_step(model: torch.nn.Module, config: RunConfig, images: Images, device: torch.device) -> dict[str, Any]:
    """The memory of an eager step, the second one: the first makes the optimizer's state."""
    size = min(config.batch_size, images.count or config.batch_size)
    minimizer = build_minimizer(config, model.train())
    said: list[str] = []
    batch = torch.randn(size, *images.shape, device=device), torch.arange(size, device=device) % images.classes
    step = EagerStep(model, minimizer, supervised(config, lambda epoch, index: batch), config, said.append)
    out: dict[str, Any] = {"batch_size": size, "counted": "allocator" if device.type == "cuda" else "tensors"}
    try:
        step(*batch)
        state = [value for one in minimizer.state.values() for value in one.values()]
        held = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters()), *state, *batch]
        peak = cost.measure_peak_memory(lambda: step(*batch), device, held)
    except (torch.OutOfMemoryError, RuntimeError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        return {**out, "memory_mib": None, "reason": reason}
    return {**out, "memory_mib": peak / 2**20, "micro_batches": step.parts}
