"""`steppe export`: a run's network for other programs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from steppe.cli.place import DataRootOption, DeviceOption
from steppe.cli.predict import calibrate
from steppe.cli.show import console, errors, progress_bar
from steppe.runs import find_trained


class Format(StrEnum):
    """What can be exported to; `steppe.deploy.FORMATS` holds the same."""

    onnx = "onnx"
    timm = "timm"
    safetensors = "safetensors"


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder, or one that `steppe fit` made")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="a folder to make")],
    format_: Annotated[
        Format, typer.Option("--format", help="onnx (extra), timm, or safetensors that `steppe predict` reads")
    ] = Format.onnx,
    replace: Annotated[bool, typer.Option("--replace", help="replace an earlier export in the folder")] = False,
    make_calibration: Annotated[
        bool, typer.Option("--calibrate/--no-calibrate", help="fit the temperature on the validation images")
    ] = True,
    data_root: DataRootOption = None,
    device: DeviceOption = None,
) -> None:
    """Export a run's network with its pre-processing, classes and calibration, and check that it answers the same."""
    find_trained(run)
    from steppe.deploy import export as write
    from steppe.deploy import open_trained
    from steppe.deploy.export import check_free

    check_free(out, replace)
    trained = open_trained(run, device=device)
    with progress_bar(errors) as bar:
        found = calibrate(trained, bar, data_root=data_root, make=make_calibration)
        if bar:
            bar.add_task("exporting", total=None)
        else:
            errors.print(f"exporting to {format_.value}")
        made = write(trained, out, format=format_.value, calibration=found, replace=replace)

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    say(f"exported: {made.folder} ({', '.join(made.files)})")
    if made.difference is not None:
        program = "onnxruntime" if format_ is Format.onnx else "timm"
        say(f"checked: loaded by {program}, its logits differ from the run's by at most {made.difference:.1g}")
    if note := trained.resized_twice:
        say(f"note: {note}")
    say("use it:")
    for line in made.usage:
        say(line)  # not indented: to be copied
