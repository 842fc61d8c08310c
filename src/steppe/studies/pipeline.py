"""One run from beginning to end: data, training, and the measures that go with every run."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch

from steppe import cost, data, models
from steppe.config import DataConfig, MeasureConfig, RunConfig, derive_seed
from steppe.data import Dataset, in_order
from steppe.data.sources import Progress
from steppe.geometry import measure_noise_loss
from steppe.runs import Observer, Run
from steppe.train import pick_device, train


def execute(
    config: RunConfig,
    out: str | Path | None = None,
    *,
    data_root: str | Path | None = None,
    device: str | None = None,
    measure: MeasureConfig | None = None,
    observer: Observer | None = None,
    progress: Progress | None = None,
) -> Run:
    """Train a run, or go on with it, and measure its cost and flatness.

    Args:
        config: the run.
        out: its folder; by default `runs/<run id>`.
        data_root: where named data sets live; by default $STEPPE_DATA, else `data`.
        device: by default the GPU where there is one.
        measure: settings of the flatness figure.
        observer: told how training goes.
        progress: told how a slow reading of the data goes.
    """
    dataset = _load_once(config.data, data_root, progress)
    run = train(config, dataset, out or Path("runs") / config.run_id, device=device, observer=observer)
    add_measures(run, dataset, measure or MeasureConfig(), device=device)
    return run


def add_measures(run: Run, dataset: Dataset, measure: MeasureConfig, *, device: str | None = None) -> None:
    """Add `cost.json` and `geometry.json` to a finished run; what is there with the same settings stays."""
    known = run.read("geometry.json").get("noise_loss", {})
    same = (known.get("sigma"), known.get("draws")) == (measure.noise_sigma, measure.noise_draws)
    if run.read("cost.json") and same:
        return
    place = pick_device(device)
    model = load_model(run, dataset).to(place)
    shape = (dataset.channels, dataset.image_size, dataset.image_size)
    some = dataset.train.take(_sample(len(dataset.train), measure.noise_examples))
    batches = list(in_order(some, dataset, batch_size=512, device=place))
    noise_loss = measure_noise_loss(model, batches, sigma=measure.noise_sigma, draws=measure.noise_draws)
    with run.lock():
        found = {"parameters": cost.count_parameters(model), "flops_per_image": cost.count_flops(model, shape)}
        run.write("cost.json", {**found, "peak_memory_mib": run.summary.get("peak_memory_mib")})
        run.write("geometry.json", {**run.read("geometry.json"), "noise_loss": noise_loss})


def load_model(run: Run, dataset: Dataset) -> torch.nn.Module:
    """Build a run's model and load its final weights."""
    size, channels = dataset.image_size, dataset.channels
    model = models.build(run.config.model, image_size=size, channels=channels, classes=len(dataset.classes))
    models.load_weights(model, run.weights)
    return model.eval()


def _sample(total: int, count: int) -> torch.Tensor:
    """Pick the same `count` images of a split for every run."""
    generator = torch.Generator().manual_seed(derive_seed(0, "measure"))
    return torch.randperm(total, generator=generator)[:count]


@lru_cache(maxsize=2)
def _load_once(config: DataConfig, root: str | Path | None, progress: Progress | None) -> Dataset:
    return data.load(config, root, progress)
