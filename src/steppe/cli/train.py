"""`steppe train`: one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from steppe.cli.flags import with_config_flags
from steppe.cli.place import (
    CacheOption,
    DataRootOption,
    DeviceOption,
    Keep,
    KeepOption,
    MemoryOption,
    ResidentOption,
    TrackOption,
    WorkersOption,
    gibibytes,
)
from steppe.cli.show import JsonOption, ReadingProgress, TrainingProgress, console, print_json, progress_bar
from steppe.config.lookup import check_names
from steppe.config.recipes import list_recipes
from steppe.config.source import read_source
from steppe.runs import Several, make_trackers
from steppe.runs.phases import describe_phases, process_age_s


@with_config_flags
def train(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA_OR_TOML",
            help="what is learned: a folder of images, a .npz or a data set, as --data; or a TOML file with the run's "
            "configuration, whose keys flags override",
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="NAME_OR_FILE",
            help="begin from a recipe of `steppe recipes`, or from a recipe's file; flags override its keys",
            autocompletion=lambda incomplete: [name for name in list_recipes() if name.startswith(incomplete)],
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="the run folder  \\[default: runs/<run id>]")] = None,
    data_root: DataRootOption = None,
    device: DeviceOption = None,
    eager: Annotated[
        bool, typer.Option("--eager", help="on CUDA: plain steps, neither compiled nor recorded as a graph")
    ] = False,
    shard: Annotated[
        bool, typer.Option("--shard", help="under torchrun: cut the model into shards (FSDP2) instead of copying it")
    ] = False,
    keep: KeepOption = Keep.auto,
    cache: CacheOption = None,
    memory_limit: MemoryOption = None,
    workers: WorkersOption = 0,
    resident: ResidentOption = None,
    track: TrackOption = None,
    json: JsonOption = False,
    *,
    overrides: dict[str, Any],
) -> None:
    """Train one model and leave a run folder. The same command again goes on where it was stopped."""
    # before what takes seconds to import, so that a mistake is told at once
    run_config = read_source(source, overrides, where="the command line", recipe=recipe)
    check_names(run_config, data_root)

    from steppe.data import Keeping
    from steppe.models import settle
    from steppe.report import print_table, row_values, summarise
    from steppe.studies import execute
    from steppe.train import leads

    settled = settle(run_config, data_root)
    if leads() and settled != run_config:
        words = (
            settled.model.name,
            settled.model.mode or "from scratch",
            settled.model.weights or "no weights at hand",
        )
        console.print(f"model: {', '.join(words)}", markup=False, soft_wrap=True)
    keeping = Keeping(keep.value, gibibytes(memory_limit), cache, workers, resident)
    with progress_bar() as bar:
        shown = TrainingProgress(bar)
        observer = Several([shown, *make_trackers(track or (), shown.say)])
        run = execute(
            settled,
            out,
            data_root=data_root,
            device=device,
            captured=not eager,
            observer=observer,
            progress=ReadingProgress(bar),
            keeping=keeping,
            sharded=shard,
            before_s=process_age_s(),
        )
    if not leads():
        return
    rows = summarise([run])
    if json:
        print_json({"run": run.path, "rows": [row_values(row) for row in rows]})
        return
    print_table(rows, console)
    console.print(f"run folder: {run.path}", markup=False, soft_wrap=True)
    if took := describe_phases(run.summary):
        console.print(f"took {took}", markup=False, soft_wrap=True)
    console.print(f"a page about it: steppe report {run.path}", markup=False, soft_wrap=True)
