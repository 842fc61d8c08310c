"""Hostile files: pickle bombs, image folders that lead elsewhere, names that would run a script."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from steppe import data
from steppe.config import DataConfig
from steppe.data import Dataset
from steppe.errors import SteppeError
from torture.bombs import bombs
from torture.found import Found
from torture.special import changed_images, rewritten_weights, special_files, taken_places

SCRIPT = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>%{x}$a$"
NAMES = (
    "two\nlines",
    "🎈 balloon",
    "\u202egnp.exe",
    "<script>window.hacked=1<",
    "' or 1=1 --",
    "-rf",
    " ",
    "é" * 60,
    "{{7*7}}",
    "$(id)",
    "a\x1b[31mb",
)


def torture(found: Found, files: int, place: Path) -> None:
    """Offer hostile files to everything that reads.

    Args:
        found: takes the account.
        files: how many small files the large folder has.
        place: an empty folder to work in.
    """
    (place / "bombs").mkdir()
    bombs(found, place / "bombs")
    (place / "folders").mkdir()
    folders(found, place / "folders")
    named(found, place)
    narrow(found, place)
    many_files(found, files, place / "many")
    for number, part in enumerate((special_files, rewritten_weights, taken_places, changed_images)):
        (place / f"special{number}").mkdir()
        part(found, place / f"special{number}")
    in_browser(found, place)


def _picture(path: Path, value: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(path)


def folders(found: Found, place: Path) -> None:
    """Image folders with links out of them, loops, devices, pipes, huge images and odd names.

    Args:
        found: takes the account.
        place: an empty folder to work in.
    """
    tried = 0
    for name, damage, expected in _damages(place):
        root = place / f"set{tried}"
        for label in "ab":
            for number in range(4):
                _picture(root / label / f"{number}.png", number)
        damage(root)
        tried += 1
        began = time.monotonic()
        try:
            for storage in ("memory", "cache", "stream"):
                kept = data.Keeping(storage, cache=place / "cache")
                read = data.load(DataConfig(name=str(root), image_size=8), keeping=kept)
                assert read.fingerprint
                count = _count(read)
                read.train.pick(torch.arange(2))
                found.check(f"folder with {name} is read as it should be", expected == count, f"{count} images")
        except SteppeError as error:
            found.check(f"folder with {name} is read", expected is None, str(error))
            found.check(f"folder with {name}: nothing of another file is shown", "root:" not in str(error))
        except Exception as error:
            found.fail(f"folder with {name}: {type(error).__name__}: {str(error)[:200]}")
        found.check(f"folder with {name} takes no time", time.monotonic() - began < 30)
    found.counts["hostile image folders"] = f"{tried}: {', '.join(name for name, _, _ in _damages(place))}"
    found.say(f"{tried} hostile image folders")


def _damages(place: Path) -> list[tuple[str, Callable[[Path], object], int | None]]:
    """What is wrong with a folder of 8 images, how it is made so, and how many remain; None where it is refused."""

    def loop(root: Path) -> None:
        (root / "a" / "up").symlink_to("..")
        (root / "a" / "deep").mkdir()
        (root / "a" / "deep" / "again").symlink_to(root)

    def names(root: Path) -> None:
        for number, name in enumerate(NAMES):
            _picture(root / "a" / f"{name}.png", number)

    def classes(root: Path) -> None:
        for name in NAMES:
            for number in range(4):
                _picture(root / name / f"{number}.png", number)

    def bytes_class(root: Path) -> None:
        os.rename(root / "a", os.fsencode(root) + b"/\xff\xfe")

    def bytes_name(root: Path) -> None:
        content = (root / "a" / "0.png").read_bytes()
        with open(os.fsencode(root / "a") + b"/\xff\xfe.png", "wb") as file:
            file.write(content)

    def huge(root: Path) -> None:
        from random import Random

        from torture.fuzz_data import huge_image

        (root / "a" / "huge.png").write_bytes(huge_image(Random(0), png=True))

    def deep(root: Path) -> None:
        _picture(root.joinpath("a", *("d" * 3 for _ in range(200))) / "x.png")

    def macos(root: Path) -> None:
        for litter in (root / ".DS_Store", root / "a" / "._0.png", root / "__MACOSX" / "a" / "._0.png"):
            litter.parent.mkdir(parents=True, exist_ok=True)
            litter.write_bytes(b"\x00\x05\x16\x07")

    outside = place / "outside.png"
    _picture(outside, 9)
    return [
        ("a link to an image outside", lambda root: (root / "a" / "out.png").symlink_to(outside), 9),
        ("a link to /etc/passwd", lambda root: (root / "a" / "passwd.png").symlink_to("/etc/passwd"), None),
        ("a link to /dev/zero", lambda root: (root / "a" / "zero.png").symlink_to("/dev/zero"), 8),
        ("a link to nothing", lambda root: (root / "a" / "gone.png").symlink_to("nowhere"), 8),
        ("a link to itself", lambda root: (root / "a" / "self.png").symlink_to("self.png"), 8),
        ("links that go round", loop, 8),
        ("a named pipe", lambda root: os.mkfifo(root / "a" / "pipe.png"), 8),
        ("a folder called x.png", lambda root: (root / "a" / "x.png").mkdir(), 8),
        ("an image of 2³¹ × 2³¹ pixels", huge, None),
        ("odd file names", names, 8 + len(NAMES)),
        ("odd class names", classes, 8 + 4 * len(NAMES)),
        ("a class whose name is not UTF-8", bytes_class, 8),
        ("a name that is not UTF-8", bytes_name, 9),
        ("200 folders in each other", deep, 9),
        ("what macOS leaves in folders and archives", macos, 8),
    ]


def named(found: Found, place: Path) -> None:
    """Classes with odd names, trained on, measured, drawn and reported.

    Args:
        found: takes the account.
        place: a folder to work in.
    """
    from steppe.cli.main import main

    root, run = place / "named", place / "$\\frac$ of \\d"
    for name in (*NAMES, SCRIPT.replace("/", ""), os.fsdecode(b"\xff\xfe")):
        for number in range(6):
            _picture(root / name / f"{number}.png", number)
    model = ("--model", "mlp_8", "--epochs", "1", "--batch-size", "16")
    for command in (
        ["train", "--data", str(root), *model, "--device", "cpu", "-o", str(run)],
        ["evaluate", str(run), "--device", "cpu", "--only", "scores"],
        ["geometry", str(run), "--device", "cpu", "--only", "line", "--quick"],
        ["report", str(run), "-o", str(place / "named.html")],
    ):
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                main(command)
        except SystemExit as end:
            found.check(f"steppe {command[0]} with odd class names", not end.code, f"code {end.code}")
        except Exception as error:
            found.fail(f"steppe {command[0]} with odd class names: {type(error).__name__}: {str(error)[:200]}")
    found.counts["odd class names"] = f"{len(NAMES) + 2}, trained on, measured, drawn and reported"
    found.say("odd class names")


def narrow(found: Found, place: Path) -> None:
    """Commands that print many signs, to outputs that cannot encode them.

    Args:
        found: takes the account.
        place: a folder to work in.
    """
    tried = 0
    for encoding in ("ascii", "cp1252", "koi8-r", "utf-8"):
        for arguments in (("train", "--help"), ("minimizers",), ("study", "show", "radius"), ("train", "ρ/é.toml")):
            command = [sys.executable, "-m", "steppe", *arguments]
            environment = {**os.environ, "PYTHONIOENCODING": encoding}
            done = subprocess.run(command, capture_output=True, env=environment, cwd=place, check=False)
            said = done.stderr.decode(encoding, "replace")
            whole = done.returncode in (0, 2) and "Traceback" not in said
            found.check(f"steppe {' '.join(arguments)} in {encoding}", whole, said[-200:])
            tried += 1
    found.counts["outputs of few signs"] = f"{tried} commands"
    found.say("outputs of few signs")


def _count(dataset: Dataset) -> int:
    return len(dataset.train) + len(dataset.val) + len(dataset.test)


def many_files(found: Found, count: int, place: Path) -> None:
    """A folder of very many small files.

    Args:
        found: takes the account.
        count: how many.
        place: where it is made.
    """
    began = time.monotonic()
    for label in range(10):
        first = place / str(label) / "0.png"
        _picture(first, label)
        for number in range(1, count // 10):
            os.link(first, first.with_name(f"{number}.png"))
    made_s, began = time.monotonic() - began, time.monotonic()
    dataset = data.load(DataConfig(name=str(place)))
    read_s = time.monotonic() - began
    total = _count(dataset)
    found.check("every one of the many files is read", total == count // 10 * 10, str(total))
    found.counts[f"a folder of {count:,} files"] = f"read in {read_s:.0f} s (made in {made_s:.0f} s)"
    found.say(f"{count} files read in {read_s:.0f} s")


def in_browser(found: Found, place: Path) -> None:
    """Hostile names in the report, in a real browser: shown, and not run.

    Args:
        found: takes the account.
        place: a folder to work in.
    """
    from steppe.report import write_report
    from torture.fuzz_files import make_run

    run = make_run(place / "run")
    hostile = {**run.read("data.json"), "name": SCRIPT, "class_names": [SCRIPT] * 10}
    run.write("data.json", hostile)
    run.write("env.json", {**run.read("env.json"), "command": [SCRIPT], "device_name": SCRIPT, SCRIPT: SCRIPT})
    labels = [
        {"run_id": run.id, "labels": {SCRIPT: SCRIPT, **{str(n): name for n, name in enumerate(NAMES)}}, "seed": 0}
    ]
    study = {"name": SCRIPT, "title": SCRIPT, "question": SCRIPT, "runs": labels, "failed": {SCRIPT: SCRIPT}}
    claim = {"text": SCRIPT, "holds": SCRIPT, "verdict": SCRIPT, "seed": SCRIPT}
    cell = {
        "value": SCRIPT,
        "unit": SCRIPT,
        "measure": SCRIPT,
        "labels": SCRIPT,
        "table": SCRIPT,
        "row": SCRIPT,
        "note": SCRIPT,
    }
    comparison = {"claims": [claim], "cells": [cell, {**cell, "measure": None}], "finished": 1}
    page = write_report([run], place / "page.html", title=SCRIPT, study=study, comparison=comparison)
    try:
        from playwright import sync_api
    except ImportError:
        found.skip("hostile names in a browser: playwright is not installed")
        return
    paths = [path for path in ("/usr/bin/chromium", "/usr/bin/chromium-browser") if Path(path).exists()]
    with sync_api.sync_playwright() as driver:
        try:
            browser = driver.chromium.launch(
                executable_path=paths[0] if paths else None, args=["--no-sandbox", "--disable-gpu"]
            )
        except sync_api.Error as error:
            found.skip(f"hostile names in a browser: Chromium does not start: {str(error)[:200]}")
            return
        shown = browser.new_context(offline=True).new_page()
        shown.goto(page.as_uri())
        shown.wait_for_timeout(3000)
        found.check("no hostile name ran a script", shown.evaluate("window.hacked") is None)
        times = shown.evaluate("document.body.innerText").count("window.hacked=1")
        found.check("hostile names are shown as they are", times >= 3, f"{times} times")
        found.counts["hostile names in the report, in Chromium"] = f"shown {times} times, run 0 times"
        browser.close()
