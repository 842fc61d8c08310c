"""One run from beginning to end: data, training, and the measures that go with every run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from steppe import cost, data, models
from steppe.config import MeasureConfig, RunConfig, use_data_root
from steppe.data import Dataset, Keeping, as_learned
from steppe.data.sources import Progress
from steppe.geometry.measures import MEASURES
from steppe.measuring import ignore, trained_loss
from steppe.runs import Observer, Run, Several, write_answers
from steppe.runs.answers import ANSWERS
from steppe.runs.phases import Phases
from steppe.studies.asked import add_asked, has_asked
from steppe.studies.costs import Images, describe_training, measure_step
from steppe.studies.groups import answer
from steppe.studies.measured import add_results
from steppe.studies.shift import measure_shift
from steppe.studies.subjects import Subject, load_model, open_run
from steppe.train import leads, pick_device, train

NOISE = MEASURES["noise"]
"""The flatness figure that every run has."""


def execute(
    config: RunConfig,
    out: str | Path | None = None,
    *,
    data_root: str | Path | None = None,
    device: str | None = None,
    captured: bool = True,
    measure: MeasureConfig | None = None,
    observer: Observer | None = None,
    progress: Progress | None = None,
    keeping: Keeping | None = None,
    sharded: bool = False,
    before_s: float = 0.0,
) -> Run:
    """Train a run, or go on with it, and measure its cost and flatness.

    Args:
        config: the run; `steppe.models.settle` settles what it leaves open about its weights.
        out: its folder; by default `runs/<run id>`.
        data_root: where named data sets live; by default $STEPPE_DATA, else `data`.
        device: by default the GPU where there is one.
        captured: on CUDA, compile the step and record it as a graph.
        measure: settings of the flatness figure.
        observer: told how training goes.
        progress: told how a slow reading of the data goes.
        keeping: where the images are kept, and how they are read.
        sharded: among the processes that torchrun started, cut the model into shards instead of copying it.
        before_s: seconds that the command took before this, for `startup_s` of the summary.
    """
    phases = Phases(before_s)
    config = models.settle(config, data_root)
    with phases.timed("data_s"):
        dataset = data.load(config.data, data_root, progress, keeping=keeping)
    return execute_on(
        dataset,
        config,
        out,
        data_root=data_root,
        device=device,
        captured=captured,
        measure=measure,
        observer=observer,
        keeping=keeping,
        sharded=sharded,
        phases=phases,
    )


def execute_on(
    dataset: Dataset,
    config: RunConfig,
    out: str | Path | None = None,
    *,
    data_root: str | Path | None = None,
    device: str | None = None,
    captured: bool = True,
    measure: MeasureConfig | None = None,
    observer: Observer | None = None,
    keeping: Keeping | None = None,
    sharded: bool = False,
    phases: Phases | None = None,
    stop: threading.Event | None = None,
) -> Run:
    """As `execute`, on a data set that is loaded already. Weights `run:ID` are those of a run beside this one.

    `stop` asks for the training to be stopped and kept, as Ctrl-C does.
    """
    folder = Path(out) if out else Path("runs") / config.run_id
    phases = phases or Phases()
    with models.runs_beside(folder.absolute().parent), use_data_root(data_root):
        run = train(
            config,
            dataset,
            folder,
            device=device,
            captured=captured,
            observer=Several([phases, *([observer] if observer else [])]),
            keeping=keeping,
            sharded=sharded,
            stop=stop,
        )
    if leads():
        saved = partial(observer.saved, run) if observer else ignore
        saved()
        with phases.timed("measure_s"):
            add_measures(run, dataset, measure or MeasureConfig(), device=device, data_root=data_root, saved=saved)
        phases.save(run)
    return run


def add_measures(
    run: Run,
    dataset: Dataset,
    measure: MeasureConfig,
    *,
    device: str | None = None,
    data_root: str | Path | None = None,
    saved: Callable[[], None] = ignore,
) -> None:
    """Add `cost.json`, `geometry.json` and the other requested measures; results with equal settings are reused.

    Args:
        run: a finished one.
        dataset: its data.
        measure: what is asked for.
        device: by default the GPU where there is one.
        data_root: where published corruptions lie.
        saved: called when something more is written, and nothing is being written.
    """
    dataset = as_learned(dataset, run.read_or_empty("data.json"))
    if not _has_basics(run, measure):
        _add_basics(run, dataset, measure, device)
    if not has_asked(run, measure):
        # the first weights may be those of a run beside this one, or lie beside the data
        with models.runs_beside(run.path.absolute().parent), use_data_root(data_root):
            subject = open_run(run.path, dataset=dataset, device=device)
            add_asked(subject, measure, data.data_root(data_root), saved)


def has_measures(run: Run, measure: MeasureConfig) -> bool:
    """Whether a run is finished and has been measured with just these settings."""
    return _has_basics(run, measure) and has_asked(run, measure)


def _add_basics(run: Run, dataset: Dataset, measure: MeasureConfig, device: str | None) -> None:
    place, images = pick_device(device), Images.of_dataset(dataset)
    timed = None
    if measure.step_s and not _is_timed(run):
        timed = measure_step(run.config, images, device=device, seconds=measure.step_s)
    model = models.place(load_model(run, dataset), place, dataset.image_size)
    shape = (dataset.channels, dataset.image_size, dataset.image_size)
    subject = Subject(run.path, model, dataset, trained_loss(run.config), place)
    add_results(subject, "geometry.json", {"noise": NOISE}, {"noise": measure.noise}, strict=True)
    with run.lock():
        found: dict[str, object] = {
            "parameters": cost.count_parameters(model),
            "trained_parameters": cost.count_parameters(model, trained=True),
            "flops_per_image": cost.count_flops(model, shape),
        }
        found |= {"training_step": timed} if timed else {}
        found |= {"peak_memory_mib": run.summary.get("peak_memory_mib"), "training": describe_training(run)}
        run.write("cost.json", {**run.read_or_empty("cost.json"), **found})
        if not (run.path / ANSWERS).is_file():
            write_answers(run.path, answer(subject))
        if measure.test_variances:
            shift = measure_shift(model, dataset, run.config, measure, device=place)
            run.write("shift.json", {**shift, "settings": measure.shift})


def _has_basics(run: Run, measure: MeasureConfig) -> bool:
    """Whether a run is finished, and the figures that readers find were made with just these settings."""
    noise = run.read_or_empty("geometry.json").get("noise_loss")
    known = noise.get("settings") if isinstance(noise, dict) else None
    return (
        run.finished
        and "parameters" in run.read_or_empty("cost.json")
        and (not measure.step_s or _is_timed(run))
        and (run.path / ANSWERS).is_file()
        and isinstance(known, dict)
        and {**NOISE.defaults, **known} == {**NOISE.defaults, **measure.noise}
        and (not measure.test_variances or run.read_or_empty("shift.json").get("settings") == measure.shift)
    )


def _is_timed(run: Run) -> bool:
    """Whether a training step of the run was timed, or it is known why it cannot be."""
    step = run.read_or_empty("cost.json").get("training_step")
    return isinstance(step, dict) and (step.get("time_s") is not None or "time_reason" in step)
