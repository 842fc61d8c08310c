"""`steppe predict`: what a run's network says about new images."""

from __future__ import annotations

import csv
import glob
import io
import json
import os
import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steppe.cli.place import DataRootOption, DeviceOption
from steppe.cli.show import ForceOption, JsonOption, ReadingProgress, console, errors, print_json, progress_bar
from steppe.errors import ConfigError, DataError
from steppe.runs import Output, find_trained, json_of

if TYPE_CHECKING:
    from rich.progress import Progress

    from steppe.deploy import Calibration, Picture, Prediction, Skipped, Trained

SHOWN = 20
"""So many skipped images are named one by one."""
DRAWN = 12
"""So many images at most are drawn with what a network attends to in them."""


class Format(StrEnum):
    """How predictions are given."""

    table = "table"
    json = "json"
    csv = "csv"


_MADE_BY = "steppe predict"
PREDICTIONS = {
    Format.table: Output("a table of predictions", re.compile(rb"\Aimage +class +probability")),
    Format.json: json_of("a file of predictions", _MADE_BY),
    Format.csv: Output("a file of predictions", re.compile(rb"\Aimage,class_1,probability_1\b")),
}
DRAWING = Output("a drawing of attention", re.compile(rb"tEXtSoftware\0steppe predict|/Creator \(steppe predict\)"))


class Odd(StrEnum):
    """What happens to images that are not 8-bit RGB or grey."""

    refuse = "refuse"
    convert = "convert"


def predict(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="a run folder, or one that `steppe fit` or `steppe export` made")
    ],
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGES", help="files, folders, 'glob/**/*.png', .npy or .npz arrays")
    ],
    top: Annotated[int, typer.Option("--top", "-k", min=1, help="so many classes of each image")] = 3,
    format_: Annotated[
        Format | None,
        typer.Option("--format", help="how answers are written  \\[default: a table, or what the name of --out says]"),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="write there instead")] = None,
    force: ForceOption = False,
    odd_images: Annotated[
        Odd | None,
        typer.Option(help="what to do with images that are not 8-bit RGB or grey  \\[default: as the run's data]"),
    ] = None,
    attention: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"draw where a ViT looks in the first {DRAWN} images, as PNG or PDF"),
    ] = None,
    make_calibration: Annotated[
        bool, typer.Option("--calibrate/--no-calibrate", help="fit the temperature where the run has none yet")
    ] = True,
    data_root: DataRootOption = None,
    device: DeviceOption = None,
    batch_size: Annotated[int, typer.Option(min=1, max=65536, help="images at a time")] = 64,
    json_: JsonOption = False,
) -> None:
    """Classify images by a trained network, with calibrated probabilities.

    An image that cannot be read is reported and skipped; the exit code is 2 if none could be read.
    """
    if json_ and format_ not in (None, Format.json):
        raise ConfigError(f"--json and --format {format_.value} ask for two things", fix="leave one of them out")
    kind = _format_of(Format.json if json_ else format_, out)
    if attention is not None and attention.suffix.lower() not in (".png", ".pdf"):
        raise ConfigError("it is not clear what to draw", where=str(attention), fix="call it FILE.png or FILE.pdf")
    if out is not None:
        PREDICTIONS[kind].check(out, force=force)
    if attention is not None:
        attention = attention.with_suffix(attention.suffix.lower())
        DRAWING.check(attention, force=force)
    find_trained(run)
    _check_images(images)
    from steppe.deploy import Skipped, find_pictures, open_trained, predict_pictures

    trained = open_trained(run, device=device)
    pictures, skipped = find_pictures(images)
    predictions: list[Prediction] = []
    with progress_bar(errors) as bar:
        calibration = calibrate(trained, bar, data_root=data_root, make=make_calibration) if pictures else None
        reading = ReadingProgress(bar, errors)
        found = predict_pictures(
            trained,
            pictures,
            temperature=calibration.temperature if calibration else 1.0,
            top=top,
            batch_size=batch_size,
            odd_images=odd_images.value if odd_images else None,
            tell=lambda done: reading("classifying", done, len(pictures)),
        )
        for one in found:
            if isinstance(one, Skipped):
                skipped.append(one)
            else:
                predictions.append(one)
    _report(skipped)
    if not predictions:
        fix = "name images that can be read: files, folders or patterns such as 'photos/**/*.jpg'"
        raise DataError(f"no image could be classified; {len(skipped)} skipped", fix=fix)
    if json_ and out is None:
        print_json(_as_json(trained, calibration, predictions, skipped))
    else:
        _give(kind, trained, calibration, predictions, skipped, out, force)
    if skipped:
        _say(f"{len(predictions)} classified, {len(skipped)} skipped")
    if attention is not None:
        _draw_attention(trained, pictures, predictions, odd_images, attention, force)


def _check_images(words: Sequence[str]) -> None:
    """Refuse names of which not one is there, before anything is opened."""
    if not any(glob.has_magic(word) or os.path.lexists(word) for word in words):
        what = "there is no such file or folder" if len(words) == 1 else "none of these files and folders is there"
        fix = "name images that can be read: files, folders or patterns such as 'photos/**/*.jpg'"
        raise DataError(what, where=", ".join(words)[:200], fix=fix)


def _draw_attention(
    trained: Trained,
    pictures: Sequence[Picture],
    predictions: Sequence[Prediction],
    odd_images: Odd | None,
    to: Path,
    force: bool,
) -> None:
    from steppe.deploy import look_at
    from steppe.report.paper import draw_attention, encode

    answers = {one.name: one for one in predictions}
    chosen = [picture for picture in pictures if picture.name in answers][:DRAWN]
    images, maps = look_at(trained, chosen, odd_images=odd_images.value if odd_images else None)
    names = [f"{one.classes[0][:14]} {one.probabilities[0]:.0%}" for one in (answers[p.name] for p in chosen)]
    figure = draw_attention(images, maps, trained.name, names)
    DRAWING.write(to, encode(figure, to.suffix.removeprefix("."), _MADE_BY), force=force)
    _say(f"attention: {to}")


def calibrate(
    trained: Trained, bar: Progress | None, *, data_root: Path | None = None, make: bool = True
) -> Calibration | None:
    """The calibration of a network, made where there is none; the user is told of it, or why there is none.

    Args:
        trained: the network.
        bar: shows slow parts.
        data_root: where named data sets live.
        make: whether to make one.
    """
    from steppe.deploy import get_calibration

    options: dict[str, Any] = {"data_root": data_root, "make": make, "say": _say}
    found = get_calibration(trained, progress=ReadingProgress(bar, errors), **options)
    if isinstance(found, str):
        _say(f"probabilities are not calibrated: {found}")
        return None
    return found


def _format_of(wanted: Format | None, out: Path | None) -> Format:
    if out is None:
        return wanted or Format.table
    if out.is_dir():
        raise ConfigError("this is a folder, not a file", where=str(out), fix=f"say -o {out / 'predictions.json'}")
    if wanted is not None:
        return wanted
    ending = out.suffix.lower().removeprefix(".")
    if ending not in ("json", "csv"):
        fix = "say --format json or csv, or call it FILE.json or FILE.csv"
        raise ConfigError("it is not clear what to write", where=str(out), fix=fix)
    return Format(ending)


def _give(
    kind: Format,
    trained: Trained,
    calibration: Calibration | None,
    predictions: Sequence[Prediction],
    skipped: Sequence[Skipped],
    out: Path | None,
    force: bool,
) -> None:
    if kind is Format.json:
        text = json.dumps(_as_json(trained, calibration, predictions, skipped), indent=2) + "\n"
    elif kind is Format.csv:
        text = _as_csv(predictions)
    else:
        text = _as_table(predictions, calibrated=calibration is not None)
    if out is not None:
        PREDICTIONS[kind].write(out, text, force=force)
        _say(f"written: {out}")
    else:
        console.out(text, end="", highlight=False)


def _as_json(
    trained: Trained, calibration: Calibration | None, predictions: Sequence[Prediction], skipped: Sequence[Skipped]
) -> dict[str, Any]:
    return {
        "made_by": _MADE_BY,
        "run": trained.name,
        "calibrated": calibration is not None,
        "temperature": calibration.temperature if calibration else None,
        "images": [
            {
                "image": one.name,
                "predictions": [
                    {"class": name, "probability": number}
                    for name, number in zip(one.classes, one.probabilities, strict=True)
                ],
            }
            for one in predictions
        ],
        "skipped": [{"image": one.name, "reason": one.reason} for one in skipped],
    }


def _as_csv(predictions: Sequence[Prediction]) -> str:
    to = io.StringIO()
    writer = csv.writer(to, lineterminator="\n")
    places = range(1, len(predictions[0].classes) + 1)
    writer.writerow(["image", *(word for place in places for word in (f"class_{place}", f"probability_{place}"))])
    for one in predictions:
        pairs = zip(one.classes, one.probabilities, strict=True)
        writer.writerow([one.name, *(word for name, number in pairs for word in (name, f"{number:.6g}"))])
    return to.getvalue().encode("utf-8", "replace").decode()


def _as_table(predictions: Sequence[Prediction], *, calibrated: bool) -> str:
    """Plain columns, the same on a terminal and in a pipe; names of files and classes cannot change how it looks."""
    heads = ["image", "class", "probability" if calibrated else "probability (not calibrated)"]
    rows = [
        [_plain(one.name), _plain(one.classes[0]), f"{one.probabilities[0]:.1%}", *_others(one)] for one in predictions
    ]
    others = max(len(row) for row in rows) - len(heads)
    heads += [""] * others if others < 1 else ["then", *[""] * (others - 1)]
    widths = [max(len(row[place]) for row in [heads, *rows]) for place in range(len(heads))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [heads, *rows]]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _others(one: Prediction) -> list[str]:
    pairs = zip(one.classes[1:], one.probabilities[1:], strict=True)
    return [f"{_plain(name)} {number:.1%}" for name, number in pairs]


def _report(skipped: Sequence[Skipped]) -> None:
    for one in skipped[:SHOWN]:
        _say(f"skipped {_plain(one.name)}: {_plain(one.reason)}")
    if len(skipped) > SHOWN:
        _say(f"… and {len(skipped) - SHOWN} more skipped")


def _plain(text: str) -> str:
    """A name that may come from anywhere, without what would move a terminal's cursor."""
    return "".join(c if c.isprintable() else "�" for c in text)


def _say(text: str) -> None:
    errors.print(text, markup=False, emoji=False, soft_wrap=True)
