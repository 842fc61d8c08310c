"""Special files, rewritten weights, changed images and places that are taken: told in time, and nothing is lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from steppe.errors import SteppeError
from torture.found import Found
from torture.fuzz import LIMIT_S, TooLong, command, limited
from torture.fuzz_files import contents, make_run

FILES = (
    *("config.toml", "summary.json", "data.json", "env.json", "cost.json", "geometry.json", "robustness.json"),
    *("calibration.json", "metrics.jsonl", "weights.safetensors", "answers.safetensors", "checkpoint.safetensors"),
)
KINDS: dict[str, Callable[[Path], object]] = {
    "a named pipe": os.mkfifo,
    "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a link to a terminal": lambda path: path.symlink_to("/dev/tty"),
    "a file of 300 MB": lambda path: _sparse(path, 300 * 10**6),
}


def special_files(found: Found, place: Path) -> None:
    """Pipes, devices and huge files in the place of every file of a run, of a configuration and of arrays.

    Args:
        found: takes the account.
        place: an empty folder to work in.
    """
    run = make_run(place / "whole").path
    _picture(place / "x.png")
    tried = 0
    for kind, make in KINDS.items():
        for name in FILES:
            folder = place / f"run{tried}"
            shutil.copytree(run, folder)
            (folder / name).unlink(missing_ok=True)
            make(folder / name)
            for arguments in (
                ["report", folder, "-o", folder / "page.html"],
                ["compare", folder, run],
                ["predict", folder, place / "x.png", "--no-calibrate"],
                ["evaluate", folder, "--only", "scores", "--device", "cpu"],
                ["train", "--model", "mlp_8", "--batch-size", 512, "--epochs", 2, "-o", folder, "--device", "cpu"],
            ):
                _ends(found, f"steppe {arguments[0]}, {kind} as {name}", arguments)
            tried += 1
        for name, start in (("x.toml", ["train"]), ("x.npz", ["train", "--data"]), ("x.csv", ["study", "show"])):
            (place / name).unlink(missing_ok=True)
            make(place / name)
            _ends(found, f"{kind} as {name}", [*start, place / name])
            tried += 1
    found.counts["special files"] = f"{tried}: {', '.join(KINDS)} in the place of every file that is read"
    found.say(f"{tried} special files")


def rewritten_weights(found: Found, place: Path) -> None:
    """The weights of a run, rewritten as numbers of other types.

    Args:
        found: takes the account.
        place: an empty folder to work in.
    """
    run = make_run(place / "run").path
    whole = load_file(run / "weights.safetensors")
    kinds = (torch.int64, torch.int8, torch.bool, torch.float16, torch.bfloat16, torch.float64)
    for kind in kinds:
        save_file({key: value.to(kind) for key, value in whole.items()}, run / "weights.safetensors")
        refused = _refused(["evaluate", run, "--only", "scores", "--device", "cpu"])
        found.check(f"weights of a run as {kind} are refused", refused)
    found.counts["weights of other types refused"] = ", ".join(str(kind).removeprefix("torch.") for kind in kinds)


def taken_places(found: Found, place: Path) -> None:
    """What -o names is a file of a run, or the input.

    Args:
        found: takes the account.
        place: an empty folder to work in.
    """
    run = make_run(place / "run").path
    picture = place / "x.png"
    _picture(picture)
    names = (*sorted(path for path in run.iterdir() if path.is_file() and path.name != ".lock"), picture)
    before = {**contents(run), "x": picture.read_bytes()}
    for name in names:
        commands: list[list[object]] = [["compare", run, run], ["report", run]]
        commands += [["predict", run, picture, "--no-calibrate", "--format", kind] for kind in ("json", "csv", "table")]
        for arguments in commands:
            refused = _refused([*arguments, "-o", name])
            found.check(f"steppe {arguments[0]} -o {name.name} is refused", refused)
    after = {**contents(run), "x": picture.read_bytes()}
    lost = [name for name, content in before.items() if after.get(name) != content]
    found.check("nothing that -o named was replaced", not lost, ", ".join(lost))
    found.counts["files that -o may not replace"] = str(len(names))


def changed_images(found: Found, place: Path) -> None:
    """An image that is gone when a run or a study is gone on with, and runs on other images that are compared.

    Args:
        found: takes the account.
        place: an empty folder to work in.
    """
    for name in ("one", "other"):
        for number in range(24):
            _picture(place / name / "ab"[number % 2] / f"{number}.png", seed=number + 100 * (name == "other"))
    model = ("--model", "mlp_8", "--epochs", "1", "--device", "cpu")
    study = place / "s.toml"
    study.write_text(
        f'name = "s"\nquestion = "?"\n[base]\ndata = {{ name = "{place / "one"}" }}\nmodel = {{ name = "mlp_8" }}\n'
        "budget = { epochs = 1 }\n[axes.how.a]\n[axes.how.b]\nbatch_size = 32\n"
    )
    run = ("study", "run", study, "-o", place / "s", "--device", "cpu", "--workers", 1)
    for name in ("one", "other"):
        found.check(
            "a run on a folder is made",
            not _refused(["train", "--data", place / name, *model, "-o", place / f"run-{name}"]),
        )
    found.check("a part of a study is made", not _refused([*run, "--only", "how=a"]))
    compared = _refused(["compare", place / "run-one", place / "run-other"])
    found.check("runs on other images are not compared", compared)
    (place / "one" / "a" / "0.png").unlink()
    again = _refused(["train", "--data", place / "one", *model, "-o", place / "run-one"])
    found.check("a run whose images have changed does not go on", again)
    found.check("a study whose images have changed does not go on", _refused([*run]))
    found.counts["an image that is gone"] = "told by train and study run; runs on other images are not compared"


def _ends(found: Found, what: str, arguments: list[object]) -> None:
    """A command ends in time, in a result or in an error meant for the user."""
    try:
        _refused(arguments)
    except TooLong:
        found.fail(f"{what}: longer than {LIMIT_S:.0f} s")
    except Exception as error:
        found.fail(f"{what}: {type(error).__name__}: {str(error)[:200]}")


def _refused(arguments: list[object]) -> bool:
    """Whether a command ends in an error meant for the user."""
    from steppe.cli.main import main

    try:
        with limited(LIMIT_S):
            command(main, [str(argument) for argument in arguments])
    except SteppeError:
        return True
    return False


def _picture(path: Path, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)).save(path)


def _sparse(path: Path, size: int) -> None:
    with open(path, "wb") as file:
        file.truncate(size)
