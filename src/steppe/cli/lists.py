"""`steppe env`, `models`, `minimizers` and `data`: what there is, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from steppe.cli.place import DataRootOption, check_device
from steppe.cli.show import JsonOption, console, print_json
from steppe.config import METHODS
from steppe.config.keys import flag_of
from steppe.config.names import MODELS
from steppe.config.spelling import fold, timm_names
from steppe.errors import unknown_name

_DEVICE = "describe this one: cpu, cuda …  \\[default: the GPU where there is one]"


def env(
    device: Annotated[str | None, typer.Option(help=_DEVICE, callback=check_device)] = None, json: JsonOption = False
) -> None:
    """Print versions, device and threads: what a bug report needs."""
    from steppe.train import describe_environment, pick_device

    found = describe_environment(pick_device(device))
    if json:
        print_json(found)
        return
    table = Table(box=None, show_header=False)
    for key, value in found.items():
        pairs = value.items() if isinstance(value, dict) else [(key, value)]
        for name, shown in pairs:
            text = "–" if shown is None else " ".join(shown) if isinstance(shown, list) else str(shown)
            table.add_row(Text(name), Text(text))
    console.print(table)


def models(
    pattern: Annotated[str | None, typer.Argument(help="also list timm's models whose name has this in it")] = None,
    json: JsonOption = False,
) -> None:
    """List the models: ours for small images, and timm's by pattern."""
    wanted = fold(pattern if pattern and "*" in pattern else f"*{pattern or ''}*")
    known = {*MODELS, *timm_names()}
    if pattern and not any(fnmatch(fold(name), wanted) for name in known):
        raise unknown_name("model", pattern, known, see="steppe models")
    import timm

    from steppe.models import SMALL_MODELS

    rows = [(name, about) for name, (_, about) in SMALL_MODELS.items() if fnmatch(fold(name), wanted)]
    if pattern:
        others = (name for name in timm.list_models() if name not in SMALL_MODELS)
        rows += [(name, "timm") for name in others if fnmatch(fold(name), wanted)]
    _print(("model", "what it is"), rows, json)
    if not pattern and not json:
        console.print(f"and {len(timm.list_models())} of timm's: `steppe models PATTERN` searches them")


def minimizers(json: JsonOption = False) -> None:
    """List the minimizers, what a step of each costs, and their flags."""
    rows: list[tuple[Any, ...]] = []
    for name, method in METHODS.items():
        flags = {flag_of(f"minimizer.{key}"): value for key, value in method.defaults.items()}
        shown = flags if json else ", ".join(f"{flag} {value}" for flag, value in flags.items())
        shown = f"{shown} (0.3 unless over sgd)" if name == "msam" and not json else shown
        rows.append((name, method.cost, method.summary, shown))
    _print(("minimizer", "cost", "what it is", "flags and their defaults"), rows, json)


def data(data_root: DataRootOption = None, json: JsonOption = False) -> None:
    """List the data sets, and what else can be learned from."""
    from steppe.data import DATASETS, find_named
    from steppe.data import data_root as root_of

    root = root_of(data_root)
    rows = [(name, named.about, find_named(name, root) or _absent(named, root)) for name, named in DATASETS.items()]
    rows += [
        ("FOLDER", "class sub-folders of images, with or without train/val/test above them", "any path"),
        ("FILE.npz", "x_train, y_train (and x_val, y_val, x_test, y_test): uint8 images, labels", "any path"),
    ]
    _print(("data set", "what it is", "where"), rows, json)


def _absent(named: Any, root: Path) -> str:
    return f"not in {root}: {'downloaded on first use' if named.torchvision else 'bring ' + named.bring}"


def _print(heads: Sequence[str], rows: Sequence[Sequence[Any]], json: bool) -> None:
    """Print rows as a table, or as a list of objects with the heads as their keys."""
    if json:
        print_json([dict(zip(heads, row, strict=True)) for row in rows])
        return
    table = Table(*heads, box=None, header_style="bold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
