"""The command `steppe`: its commands, and what happens to an error."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import time
from typing import Annotated, NoReturn

import typer

from steppe.cli import study, weights
from steppe.cli.cost import cost
from steppe.cli.encoding import write_any_text
from steppe.cli.evaluate import evaluate
from steppe.cli.export import export
from steppe.cli.fit import fit
from steppe.cli.geometry import geometry
from steppe.cli.help_pages import Command, Group
from steppe.cli.lists import data, env, minimizers, models
from steppe.cli.predict import predict
from steppe.cli.recipes import recipes
from steppe.cli.report import report
from steppe.cli.show import console, errors
from steppe.cli.symmetry import symmetry
from steppe.cli.train import train
from steppe.cli.versus import compare
from steppe.errors import Interrupted, SteppeError, ran_out_of_memory
from steppe.signals import handle_stops

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Train image classifiers into flat minima at the lowest cost, and show that they are flat.",
)
for command in (train, fit, cost):
    app.command(cls=Command)(command)
app.add_typer(study.app, name="study")
app.add_typer(weights.app, name="weights")
for command in (evaluate, geometry, symmetry, compare, predict, export, report):
    app.command(cls=Command)(command)
for command in (recipes, env, models, minimizers, data):
    app.command(cls=Command)(command)


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


def main(argv: list[str] | None = None) -> None:
    """Run the command line: errors meant for the user exit with code 2, an interruption with 130."""
    write_any_text()
    with handle_stops(_stop):
        _run(argv)


def _run(argv: list[str] | None) -> None:
    try:
        app(args=argv, prog_name="steppe")  # also for `python -m steppe`, which would complete the word "python"
    except SteppeError as error:
        _complain(str(error), stopped=isinstance(error, Interrupted))
    except OSError as error:
        where = f"\n  where: {str(error.filename)[:200]}" if error.filename else ""
        _complain(f"the system refused: {error.strerror or error}{where}")
    except Exception as error:
        if not ran_out_of_memory(error):
            raise
        _complain("the memory ran out\n  fix:   try a smaller batch_size or image_size, or another model")


def _stop() -> None:
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
