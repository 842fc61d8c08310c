"""Fuzzed input of `steppe predict` and `steppe export`: pictures, exported folders, calibrations, damaged runs."""

from __future__ import annotations

import io
import random
import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from steppe.errors import SteppeError
from torture.fuzz import Once, command
from torture.fuzz_data import huge_image
from torture.fuzz_files import contents, make_run
from torture.mutate import mutate_bytes, mutate_file


def _picture(path: Path) -> None:
    Image.fromarray(np.arange(144, dtype=np.uint8).reshape(12, 12)).save(path)


def pictures(folder: Path) -> Once:
    """Images and arrays with damaged bytes: each is classified, or skipped with a reason."""
    from steppe.deploy import Prediction, find_pictures, open_trained, predict_pictures

    trained = open_trained(make_run(folder / "made").path, device="cpu")
    rng = np.random.default_rng(0)
    colour = rng.integers(0, 255, (20, 16, 3)).astype(np.uint8)
    good: dict[str, bytes] = {}
    for name in ("png", "jpeg", "bmp", "gif", "webp", "tiff"):
        buffer = io.BytesIO()
        Image.fromarray(colour).save(buffer, name)
        good[f"x.{name}"] = buffer.getvalue()
    array, arrays = io.BytesIO(), io.BytesIO()
    np.save(array, colour[None])
    np.savez(arrays, x_test=colour[None], y_test=np.arange(1), grey=colour[None, ..., 0])
    good |= {"x.npy": array.getvalue(), "x.npz": arrays.getvalue()}

    def once(rng: random.Random) -> None:
        name = rng.choice(list(good))
        path = folder / name
        content = mutate_bytes(good[name], rng)
        if name == "x.png" and rng.random() < 0.2:
            content = huge_image(rng, png=True)
        path.write_bytes(content)
        found, skipped = find_pictures([path])
        answers = list(predict_pictures(trained, found[:8], temperature=rng.choice((1.0, 0.3)), top=3))
        for answer in answers:
            if isinstance(answer, Prediction):
                assert all(0 <= p <= 1 for p in answer.probabilities), answer
        if skipped or not any(isinstance(answer, Prediction) for answer in answers):
            raise SteppeError("skipped")

    return once


def exported_folders(folder: Path) -> Once:
    """Exported folders with a damaged file, asked to predict."""
    from steppe.cli.main import main
    from steppe.deploy import export, open_trained

    made, work, picture = folder / "exported", folder / "work", folder / "one.png"
    export(open_trained(make_run(folder / "made").path, device="cpu"), made, format="safetensors")
    names = sorted(path.name for path in made.iterdir())
    _picture(picture)

    def once(rng: random.Random) -> None:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(made, work)
        mutate_file(work / rng.choice(names), rng)
        before = contents(work)
        try:
            if rng.random() < 0.5:
                open_trained(work, device="cpu")
            else:
                command(main, ["predict", str(work), str(picture), "--device", "cpu", "--json"])
        finally:
            assert contents(work) == before, "reading changed the folder"

    return once


def calibrations(folder: Path) -> Once:
    """A run's calibration.json, damaged: it is used, or fitted again; the other files stay as they are."""
    from steppe.deploy import get_calibration, open_trained

    made, work = make_run(folder / "made").path, folder / "work"
    first = get_calibration(open_trained(made, device="cpu"))
    assert not isinstance(first, str), first

    def once(rng: random.Random) -> None:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(made, work)
        mutate_file(work / "calibration.json", rng)
        before = contents(work)
        try:
            found = get_calibration(open_trained(work, device="cpu"))
            assert isinstance(found, str) or 0 < found.temperature < float("inf"), found
        finally:
            after = contents(work)
            for held in (before, after):
                held.pop("calibration.json", None)
            assert after == before, "more than the calibration changed"

    return once


def exports(folder: Path) -> Once:
    """Damaged run folders that are exported: whole, or nothing is left behind."""
    from steppe.cli.main import main

    made, work, out = make_run(folder / "made").path, folder / "work", folder / "place" / "out"
    names = sorted(p.name for p in made.iterdir() if p.is_file() and p.name != ".lock")

    def once(rng: random.Random) -> None:
        for path in (work, out.parent):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(made, work)
        out.parent.mkdir()
        mutate_file(work / rng.choice(names), rng)
        words = ["export", str(work), "-o", str(out), "--device", "cpu", "--format", "safetensors", "--no-calibrate"]
        try:
            command(main, words)
            assert sorted(p.name for p in out.iterdir()) == ["config.json", "model.safetensors"]
        except SteppeError:
            assert not list(out.parent.iterdir()), "a refused export left something behind"
            raise

    return once
