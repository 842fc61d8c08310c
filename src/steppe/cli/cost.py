"""`steppe cost`: what a run or a model costs on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from steppe.cli.place import DataRootOption, DeviceOption
from steppe.cli.show import JsonOption, ReadingProgress, console, print_json, progress_bar
from steppe.config import RunConfig, parse
from steppe.config.lookup import check_names
from steppe.errors import ConfigError
from steppe.runs import Run

if TYPE_CHECKING:
    from steppe.studies import Images

_MODEL_ONLY = "with a model's name: "


def cost(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_OR_MODEL", help="run folders, or names of models with --data; several are set side by side"
        ),
    ],
    device: DeviceOption = None,
    price_per_hour: Annotated[
        float | None, typer.Option(min=0, help="what the machine costs an hour, in any currency")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="at most so long for the sweep over batch sizes")] = 60.0,
    data: Annotated[str | None, typer.Option(help=f"{_MODEL_ONLY}the data set whose images it takes")] = None,
    data_root: DataRootOption = None,
    image_size: Annotated[int | None, typer.Option(help=f"{_MODEL_ONLY}side in pixels")] = None,
    batch_size: Annotated[int | None, typer.Option(help=f"{_MODEL_ONLY}images in a training step")] = None,
    precision: Annotated[str | None, typer.Option(help=f"{_MODEL_ONLY}float32 or bfloat16")] = None,
    minimizer: Annotated[
        str | None, typer.Option(help=f"{_MODEL_ONLY}the minimizer of the training step that is measured")
    ] = None,
    optimizer: Annotated[str | None, typer.Option(help=f"{_MODEL_ONLY}the optimizer that the minimizer wraps")] = None,
    json: JsonOption = False,
) -> None:
    """Measure what runs or models cost here; what was measured on a run is added to its cost.json."""
    own = {
        "data": {"name": data, "image_size": image_size},
        "batch_size": batch_size,
        "precision": precision,
        "minimizer": {"name": minimizer},
        "optimizer": {"name": optimizer},
    }
    subjects = [_find_target(target, own, data_root) for target in targets]
    from steppe.studies import add_cost, describe_price, measure_cost

    load = cache(lambda: _read_images(own, data_root))  # once for all models
    asked = [(subject, _read_images_of(subject, load, several=len(targets) > 1)) for subject in subjects]
    found: list[dict[str, Any]] = []
    with progress_bar() as bar:
        for target, (subject, images) in zip(targets, asked, strict=True):
            told = _telling(ReadingProgress(bar), f"{_short(target)}: " if len(targets) > 1 else "")
            if isinstance(subject, Run):
                place: dict[str, Any] = {"price_per_hour": price_per_hour, "tell": told}
                found.append(add_cost(subject, device=device, seconds=seconds, **place))
            else:
                assert images
                found.append(measure_cost(subject, images, device=device, seconds=seconds, tell=told))
                if price_per_hour is not None:
                    found[-1]["price"] = describe_price(found[-1], price_per_hour)
    if json:
        several = [{"target": target, **its} for target, its in zip(targets, found, strict=True)]
        print_json(several if len(targets) > 1 else found[0])
        return
    console.print(side_by_side(list(zip(targets, found, strict=True))) if len(targets) > 1 else cost_table(found[0]))
    for target, its in zip(targets, found, strict=True):
        if len(targets) > 1 and (why := its["training_step"].get("time_reason")):
            console.print(f"{target}: no time of a step, {why}", markup=False, soft_wrap=True)
    for subject, _ in asked:
        if isinstance(subject, Run):
            console.print(f"added to {subject.path / 'cost.json'}", markup=False, soft_wrap=True)


def _read_images(own: dict[str, Any], data_root: Path | None) -> Images:
    from steppe import data as sets
    from steppe.studies import Images

    config = parse(RunConfig, _given({"data": own["data"]}), where="the command line's flags")
    return Images.of_dataset(sets.load(config.data, data_root))


def _find_target(target: str, own: dict[str, Any], data_root: Path | None) -> Run | RunConfig:
    """A run, or a model's configuration; what is wrong with a name is told before torch is imported."""
    given = [f"--{key}" for key, value in _flat(own).items() if value is not None]
    if (Path(target) / "config.toml").is_file():
        if given:
            what = f"{', '.join(given)} cannot be changed: a run has its own"
            raise ConfigError(what, where=target, fix="name a model instead of a run, or leave them away")
        return Run(target)
    if Path(target).is_dir():
        Run(target)  # says what a run folder is
    if own["data"]["name"] is None:
        fix = "name a run folder, or say --data NAME: a model is measured on images of some size"
        raise ConfigError(f"{target!r} is no run folder, and a model needs --data", where="steppe cost", fix=fix)
    config = parse(RunConfig, _given({**own, "model": {"name": target}}), where="the command line's flags")
    check_names(config, data_root)
    return config


def _read_images_of(subject: Run | RunConfig, load: Callable[[], Images], *, several: bool) -> Images | None:
    """A model's images; what is wrong with it, or with a run, is told before anything is measured."""
    from steppe import models
    from steppe.studies import Images
    from steppe.studies.costs import check_writable

    if isinstance(subject, Run):
        Images.of_run(subject)
        check_writable(subject)
        return None
    images = load()
    if several:  # a mistake in the last name is not to be told after minutes
        size = {"image_size": images.size, "channels": images.channels, "classes": images.classes}
        models.build(subject.model, **size, load=False)
    return images


def cost_table(found: dict[str, Any]) -> Table:
    """Lay out what `cost.json` holds, with a line for each batch size of the sweep."""
    table = Table(box=None, show_header=False)

    def row(name: str, value: Any, unit: str, note: str = "") -> None:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        shown = Text(f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if number else "–", justify="right")
        table.add_row(Text(name), shown, unit if number else "", Text(note, style="dim"))

    inference, step = found["inference"], found["training_step"]
    row("parameters", found["parameters"], "")
    row("FLOPs of an image", found["flops_per_image"], "", "forward; a multiply-add is two")
    for place in inference["sweep"]:
        best = "best" if place["batch_size"] == inference["best_batch_size"] else ""
        row(f"inference, batch {place['batch_size']}", round(place["images_per_s"]), "images/s", best)
    ended = inference["ended"]
    if left_out := inference.get("left_out"):
        ended += f"; left out: {', '.join(map(str, left_out))}"
    table.add_row(Text(""), Text(""), "", Text(f"{inference['device_name']}; {ended}", style="dim"))
    row("memory of inference", inference["memory_mib"], "MiB", f"batch {inference['best_batch_size']}")
    counted = "CUDA's allocator" if step["counted"] == "allocator" else "the tensors alive at once"
    row(
        "memory of a training step",
        step["memory_mib"],
        "MiB",
        step.get("reason") or f"batch {step['batch_size']}, {counted}",
    )
    how = "recorded as a CUDA graph" if step.get("captured") else "eager"
    row("time of a training step", step["time_s"], "s", step.get("time_reason") or f"{how}, on random images")
    row("an epoch of such steps", step.get("epoch_s"), "s", "computing alone: neither reading nor evaluating")
    row("energy of an image", inference["energy_j_per_image"], "J", inference["energy_reason"] or "")
    if training := found.get("training"):
        row("training", training["images_per_s"], "images/s")
        row("an epoch", training["time_per_epoch_s"], "s", "after the first")
        row("warm-up", training["warmup_s"], "s", "of the first epoch")
        row("compiling", training["compile_s"], "s")
    if energy := found.get("training_energy"):
        row("energy of training", energy["joules"], "J", energy.get("reason") or f"over {energy['seconds']:.0f} s")
    for key, name in (("training", "the training"), ("epoch", "an epoch"), ("million_images", "a million answers")):
        if price := found.get("price"):
            row(f"price of {name}", price[key], "", f"at {price['per_hour']:g} an hour")
    return table


def side_by_side(found: Sequence[tuple[str, dict[str, Any]]]) -> Table:
    """Lay out what several models cost, a line each.

    Args:
        found: what was asked for, and what was found, as of `cost.json`.
    """
    from steppe.report.numbers import compact, duration, whole

    where = found[0][1]["inference"]["device_name"]
    caption = f"{where}. FLOPs of an image; images/s answered, at the best batch size; step, epoch, MiB: of training"
    table = Table(box=None, padding=(0, 2, 0, 0), caption=caption, caption_justify="left")
    for heading in ("", "params", "FLOPs", "images/s", "step", "epoch", "MiB"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=bool(heading), overflow="fold")
    short = [_short(target) for target, _ in found]
    if priced := any("price" in its for _, its in found):
        table.add_column("a million answers", justify="right")
    for target, its in found:
        name = _short(target) if short.count(_short(target)) == 1 else target
        step = its["training_step"]
        shown = (
            compact(its["parameters"]),
            compact(its["flops_per_image"]),
            whole(round(its["inference"]["images_per_s"])),
            duration(step["time_s"]),
            duration(step.get("epoch_s")),
            whole(step["memory_mib"]),
        )
        price = [f"{its['price']['million_images']:.3g}"] if priced else []
        table.add_row(Text(name), *shown, *price)
    return table


def _telling(tell: ReadingProgress, before: str) -> Callable[[str, int, int], None]:
    return lambda what, done, total: tell(before + what, done, total)


def _short(target: str) -> str:
    return target.rstrip("/").rsplit("/", 1)[-1]


def _flat(own: dict[str, Any]) -> dict[str, Any]:
    """Flags of nested keys: a section's name is the section's flag."""
    out: dict[str, Any] = {}
    for key, value in own.items():
        if isinstance(value, dict):
            out |= {key if inner == "name" else inner.replace("_", "-"): v for inner, v in value.items()}
        else:
            out[key.replace("_", "-")] = value
    return out


def _given(own: dict[str, Any]) -> dict[str, Any]:
    pairs = ((key, _given(value) if isinstance(value, dict) else value) for key, value in own.items())
    return {key: value for key, value in pairs if value is not None and value != {}}
