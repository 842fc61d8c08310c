"""What a plan will cost on this machine, before it is run."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from steppe import cost, data, models
from steppe.config import PlannedRun, RunConfig
from steppe.errors import SteppeError
from steppe.train import pick_device
from steppe.train.features import Body, find_body

_Timed = tuple[float, int, int, Body | None]


@dataclass(frozen=True)
class Estimate:
    """The expected cost of one run."""

    gradient_evaluations: float
    flops: float
    time_s: float


def estimate_runs(
    planned: list[PlannedRun], *, data_root: str | Path | None = None, device: str | None = None, threads: int = 1
) -> list[Estimate | SteppeError]:
    """Estimate every run: gradient evaluations by counting, seconds by timing a few of them for each model.

    A backward pass is taken as twice the forward pass, as usual. A run that cannot be made has its error instead.
    """
    place = pick_device(device)
    timed: dict[tuple[str, str, int, str, str | None], _Timed] = {}
    datasets: dict[str, data.Dataset | SteppeError] = {}

    def load(config: RunConfig, name: str) -> data.Dataset:
        if name not in datasets:
            try:
                datasets[name] = data.load(config.data, data_root)
            except SteppeError as error:  # asked for once: a download that fails takes its time
                datasets[name] = error
        found = datasets[name]
        if isinstance(found, SteppeError):
            raise found
        return found

    def estimate(config: RunConfig) -> Estimate:
        name = config.data.model_dump_json()
        dataset = load(config, name)
        dataset = dataset if config.validates else dataset.learn_from_val()
        key = (name, config.model.model_dump_json(), config.batch_size, config.precision, config.objective.name)
        if key not in timed:
            timed[key] = _time_gradient(config, dataset, place)
        per_gradient_s, flops_per_image, batch, body = timed[key]
        an_epoch = len(dataset.train) // batch
        passes = evaluations = _evaluations(config, an_epoch, per_gradient_s)
        if (
            body and config.budget.seconds is None
        ):  # of a head alone, features are computed once a step, or once for all
            passes = evaluations / config.expected_gradients
            passes = min(passes, an_epoch) if body.keeps(len(dataset.train), config.augment) else passes
        return Estimate(evaluations, 3.0 * flops_per_image * batch * evaluations, per_gradient_s * passes)

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    out: list[Estimate | SteppeError] = []
    try:
        for run in planned:
            try:
                out.append(estimate(run.config))
            except SteppeError as error:
                out.append(error)
    finally:
        torch.set_num_threads(before)
    return out


def _evaluations(config: RunConfig, steps_per_epoch: int, per_gradient_s: float) -> float:
    if config.budget.seconds is not None:
        return config.budget.seconds / per_gradient_s
    if config.budget.gradient_evaluations is not None:
        return config.budget.gradient_evaluations
    assert config.budget.epochs is not None
    return config.budget.epochs * steps_per_epoch * config.expected_gradients


def _time_gradient(config: RunConfig, dataset: data.Dataset, device: torch.device) -> _Timed:
    batch = min(config.batch_size, len(dataset.train))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        # weights do not change the time, and those of a run of the same study are not there yet
        size, channels = dataset.image_size, dataset.channels
        model = models.build(config.model, image_size=size, channels=channels, classes=len(dataset.classes), load=False)
        model.to(device).train()
    flops = cost.count_flops(model, (dataset.channels, dataset.image_size, dataset.image_size))
    shape = (batch, dataset.channels, dataset.image_size, dataset.image_size)
    images, labels = torch.zeros(shape, device=device), torch.zeros(batch, dtype=torch.long, device=device)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bfloat16"):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        cost.wait_for(device)
        times.append(time.perf_counter() - start)
    return min(times), flops, batch, find_body(model, config, lambda: torch.randn_like(images))
