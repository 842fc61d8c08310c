"""How many images a second a model answers, at the best batch size.

As for table 2 of Chen et al. 2022 ("When Vision Transformers Outperform ResNets…"): batch sizes 32, 64 … 8192 are tried
and the highest throughput is the model's. The whole sweep is kept, and why it ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from steppe.cost.energy import EnergyMeter
from steppe.cost.memory import measure_peak_memory
from steppe.errors import ran_out_of_memory

BATCH_SIZES = tuple(2**power for power in range(5, 14))
"""32, 64 … 8192."""


@dataclass
class Throughput:
    """What a sweep found.

    Args:
        best_batch_size: where the most images a second were answered.
        images_per_s: how many that were.
        sweep: batch size and images a second of everything tried, in that order.
        ended: whether every batch size was tried, or why the sweep ended before.
        left_out: the batch sizes that were not tried.
        energy_j_per_image: at the best batch size; None where nobody counts.
        energy_reason: why not.
    """

    best_batch_size: int = 0
    images_per_s: float = 0.0
    sweep: list[dict[str, float]] = field(default_factory=list)
    ended: str = "every batch size was tried"
    left_out: list[int] = field(default_factory=list)
    energy_j_per_image: float | None = None
    energy_reason: str | None = None


def measure_throughput(
    model: nn.Module,
    image_shape: tuple[int, int, int],
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    bfloat16: bool = False,
    seconds: float = 60.0,
    seconds_each: float | None = None,
    tell: Callable[[int, int], object] = lambda done, total: None,
) -> Throughput:
    """Time forward passes over random images that lie on the device already.

    Every batch size is warmed up first, then passed again and again for `seconds_each`, at least three times; the
    device is waited for before the clock is read. A throughput that falls does not end the sweep: it may rise again. It
    ends early when memory runs out, or when the next size would not fit into `seconds`.

    Args:
        model: on any device; left in the mode it was found in.
        image_shape: (channels, height, width).
        batch_sizes: in rising order.
        bfloat16: compute in bfloat16 autocast.
        seconds: a cap on the whole sweep; the smallest size is measured in any case.
        seconds_each: for one batch size; by default half of its share of the cap, at most one.
        tell: takes how many sizes are tried, and of how many.
    """
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    each = min(1.0, seconds / len(batch_sizes) / 2) if seconds_each is None else seconds_each
    found = Throughput()
    began = time.perf_counter()
    try:
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            for size in batch_sizes:
                if reason := _too_much(model, image_shape, device, size, found, seconds - time.perf_counter() + began):
                    found.ended = reason
                    break
                try:
                    speed, joules, why_not = _time_size(model, _batch(image_shape, size, device), each)
                except Exception as error:
                    if not ran_out_of_memory(error):
                        raise
                    found.ended = f"memory ran out at {size}"
                    break
                found.sweep.append({"batch_size": size, "images_per_s": speed})
                tell(len(found.sweep), len(batch_sizes))
                if speed > found.images_per_s:
                    found.best_batch_size, found.images_per_s = size, speed
                    found.energy_j_per_image, found.energy_reason = joules, why_not
    finally:
        model.train(training)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    tell(len(batch_sizes), len(batch_sizes))
    found.left_out = [
        size for size in batch_sizes if size > max((place["batch_size"] for place in found.sweep), default=0)
    ]
    return found


def _batch(image_shape: tuple[int, int, int], size: int, device: torch.device) -> torch.Tensor:
    images = torch.randn(size, *image_shape, device=device, generator=torch.Generator(device).manual_seed(0))
    return images.contiguous(memory_format=torch.channels_last) if device.type == "cuda" else images


def _time_size(model: nn.Module, images: torch.Tensor, seconds: float) -> tuple[float, float | None, str | None]:
    """Give images a second, and joules an image or why there are none."""
    for _ in range(3 if images.device.type == "cuda" else 1):
        model(images)
    wait_for(images.device)
    with EnergyMeter(images.device) as meter:
        passes, began = 0, time.perf_counter()
        while passes < 3 or time.perf_counter() - began < seconds:
            for _ in range(max(1, passes)):  # twice as many each time: waiting for the device is not to be seen
                model(images)
            passes += max(1, passes)
            wait_for(images.device)
        took = time.perf_counter() - began
    energy = meter.energy
    joules = None if energy.joules is None else energy.joules / (passes * len(images))
    return passes * len(images) / took, joules, energy.reason


def _too_much(
    model: nn.Module,
    image_shape: tuple[int, int, int],
    device: torch.device,
    size: int,
    found: Throughput,
    seconds_left: float,
) -> str | None:
    """Say why a size should not be tried: no time, or, on the CPU, a process that the system would kill."""
    if not found.sweep:
        return None
    if 4 * size / found.sweep[-1]["images_per_s"] > seconds_left:
        return f"the time for measuring was spent before {size}"
    if device.type == "cpu":
        before = int(found.sweep[0]["batch_size"])
        images = _batch(image_shape, before, device)
        each = measure_peak_memory(lambda: model(images), device, held=images) / before
        if each * size > _free_memory() / 2:
            return f"memory would run out at {size}"
    return None


def _free_memory() -> float:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not every system tells
        return float("inf")


def wait_for(device: torch.device) -> None:
    """Wait until a device has done what it was given: this one, which need not be the first."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
