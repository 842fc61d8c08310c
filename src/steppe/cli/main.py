"""The command `steppe`: its commands, and what happens to an error."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.table import Table
from rich.text import Text

from steppe.cli import study
from steppe.cli.cost import cost
from steppe.cli.evaluate import evaluate
from steppe.cli.export import export
from steppe.cli.fit import fit
from steppe.cli.flags import flag_of
from steppe.cli.geometry import geometry
from steppe.cli.place import DataRootOption
from steppe.cli.predict import predict
from steppe.cli.report import report
from steppe.cli.show import console, errors
from steppe.cli.symmetry import symmetry
from steppe.cli.train import train
from steppe.cli.versus import compare
from steppe.config import MINIMIZER_DEFAULTS
from steppe.errors import Interrupted, SteppeError

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Train image classifiers into flat minima at the lowest cost, and show that they are flat.",
)
app.command()(train)
app.command()(fit)
app.command()(cost)
app.add_typer(study.app, name="study")
app.command()(evaluate)
app.command()(geometry)
app.command()(symmetry)
app.command()(compare)
app.command()(predict)
app.command()(export)
app.command()(report)


_PATIENCE_S = 5.0
"""So long a process that torchrun started waits for the first one to tell of the same error."""


def _print_version(asked: bool) -> None:
    if asked:
        console.print(f"steppe {importlib.metadata.version('steppe')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Train image classifiers into flat minima at the lowest cost, and show that they are flat."""


@app.command()
def env(
    device: Annotated[
        str | None, typer.Option(help="describe this one: cpu, cuda …  \\[default: the GPU where there is one]")
    ] = None,
) -> None:
    """Print versions, device and threads: what a bug report needs."""
    from steppe.train import describe_environment, pick_device

    table = Table(box=None, show_header=False)
    for key, value in describe_environment(pick_device(device)).items():
        pairs = value.items() if isinstance(value, dict) else [(key, value)]
        for name, shown in pairs:
            text = "–" if shown is None else " ".join(shown) if isinstance(shown, list) else str(shown)
            table.add_row(Text(name), Text(text))
    console.print(table)


@app.command()
def models(
    pattern: Annotated[str | None, typer.Argument(help="also list timm's models whose name has this in it")] = None,
) -> None:
    """List the models: ours for small images, and timm's by pattern."""
    import timm

    from steppe.errors import unknown_name
    from steppe.models import SMALL_MODELS, model_names

    table = Table("model", "what it is", box=None, header_style="bold")
    for name, (_, about) in SMALL_MODELS.items():
        if pattern is None or pattern in name:
            table.add_row(name, about)
    if pattern:
        wanted = pattern if "*" in pattern else f"*{pattern}*"
        for name in timm.list_models(wanted):
            if name not in SMALL_MODELS:
                table.add_row(name, "timm")
        if not table.row_count:
            raise unknown_name("model", pattern, model_names(), see="steppe models")
    console.print(table)
    if not pattern:
        console.print(f"and {len(timm.list_models())} of timm's: `steppe models PATTERN` searches them")


@app.command("minimizers")
def minimizers_() -> None:
    """List the minimizers, what a step of each costs, and their flags."""
    from steppe.minimizers import METHODS

    table = Table("minimizer", "cost", "what it is", "flags and their defaults", box=None, header_style="bold")
    for name, method in METHODS.items():
        defaults = MINIMIZER_DEFAULTS[name].items()
        options = ", ".join(f"{flag_of(f'minimizer.{key}')} {value}" for key, value in defaults)
        table.add_row(name, method.cost, method.summary, options)
    console.print(table)


@app.command()
def data(
    data_root: DataRootOption = None,
) -> None:
    """List the data sets, and what else can be learned from."""
    from steppe.data import DATASETS, find_named
    from steppe.data import data_root as root_of

    root = root_of(data_root)
    table = Table("data set", "what it is", "where", box=None, header_style="bold")
    for name, named in DATASETS.items():
        table.add_row(name, named.about, Text(find_named(name, root) or _absent(named, root)))
    table.add_row("FOLDER", "class sub-folders of images, with or without train/val/test above them", "any path")
    table.add_row("FILE.npz", "x_train, y_train (and x_val, y_val, x_test, y_test): uint8 images, labels", "any path")
    console.print(table)


def _absent(named: Any, root: Path) -> str:
    return f"not in {root}: {'downloaded on first use' if named.torchvision else 'bring ' + named.bring}"


def main(argv: list[str] | None = None) -> None:
    """Run the command line: errors meant for the user exit with code 2, an interruption with 130."""
    before = {kind: signal.signal(kind, _stop) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        app(args=argv)
    except SteppeError as error:
        _complain(str(error), stopped=isinstance(error, Interrupted))
    except OSError as error:
        where = f"\n  where: {str(error.filename)[:200]}" if error.filename else ""
        _complain(f"the system refused: {error.strerror or error}{where}")
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):
            raise
        _complain("the memory ran out\n  mend:  try a smaller batch_size or image_size, or another model")
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def _stop(number: int, frame: object) -> None:
    """Ctrl-C outside training, where nothing has to be kept."""
    errors.print("stopped; nothing is lost: run the same command again to go on")
    raise KeyboardInterrupt


def _complain(text: str, stopped: bool = False) -> NoReturn:
    rank = os.environ.get("RANK", "0")
    if rank != "0" and not stopped:  # torchrun ends all processes with the first: let the one that speaks go before
        time.sleep(_PATIENCE_S)
        errors.quiet = False  # it did not fail, so nobody else tells
        errors.print(f"process {rank}: ", end="", markup=False)
    if not stopped:
        errors.print("[red]error[/red] ", end="")
    plain = "".join(c if c.isprintable() or c == "\n" else "�" for c in text)
    errors.print(plain, markup=False, soft_wrap=True)
    sys.exit(130 if stopped else 2)
