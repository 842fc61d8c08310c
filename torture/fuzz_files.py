"""Fuzzed files: run folders, checkpoints, weights, images, arrays, folders of studies and searches."""

from __future__ import annotations

import io
import json
import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from steppe import data
from steppe.config import DataConfig, RunConfig
from steppe.runs import Run, find_runs, read_answers
from torture.fuzz import Once, silent
from torture.mutate import mutate_bytes, mutate_file, mutate_json, value

CONFIG = {"model": {"name": "mlp_8"}, "batch_size": 512, "budget": {"epochs": 2}}


def make_run(folder: Path, **changes: Any) -> Run:
    """A tiny run of the digits, measured."""
    from steppe.config import MeasureConfig
    from steppe.studies import execute

    config = RunConfig.model_validate({**CONFIG, **changes})
    return execute(config, folder, device="cpu", measure=MeasureConfig(noise_draws=2, noise_examples=50))


def contents(folder: Path) -> dict[str, bytes]:
    """What a folder holds."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


def run_folders(folder: Path) -> Once:
    """Run folders with a damaged file, read by everything that reads one."""
    from steppe.evaluate.measures import MEASURES
    from steppe.report import write_report
    from steppe.report.record import read_record
    from steppe.report.table import summarise
    from steppe.studies.measured import add_results
    from steppe.studies.subjects import open_run

    made, work = folder / "made", folder / "work"
    make_run(made)
    dataset = data.load(DataConfig(name="digits"))
    silent(lambda: add_results(open_run(made, device="cpu"), "robustness.json", {"scores": MEASURES["scores"]}))
    names = sorted(p.name for p in made.iterdir() if p.is_file() and p.name != ".lock")

    def once(rng: random.Random) -> None:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(made, work)
        name = rng.choice(names)
        mutate_file(work / name, rng)
        before = contents(work)
        reader = rng.randrange(6)
        try:
            run = Run(work)
            if reader == 0:
                read_record(run)
                summarise([run])
            elif reader == 1:
                write_report([run], folder / "page.html")
            elif reader == 2:
                open_run(work, device="cpu", dataset=dataset)
            elif reader == 3:
                _ = run.finished, run.metrics(), run.summary
                read_answers(work)
            elif reader == 4:
                find_runs([folder], [])
                _ = run.config
            else:
                from steppe.cli.main import main

                _command(main, ["compare", str(work), str(made)])
        finally:
            assert contents(work) == before, "reading changed the folder"

    return once


def resumptions(folder: Path) -> Once:
    """Damaged run folders that `steppe train` is asked to go on with: what is whole in them stays."""
    from steppe.studies import execute
    from steppe.train import train

    made, half, work = folder / "made", folder / "half", folder / "work"
    make_run(made)
    dataset = data.load(DataConfig(name="digits"))
    config = RunConfig.model_validate({**CONFIG, "budget": {"epochs": 3}})
    _stop_after_an_epoch(train, config, dataset, half)

    def once(rng: random.Random) -> None:
        shutil.rmtree(work, ignore_errors=True)
        begun = rng.random() < 0.6
        shutil.copytree(half if begun else made, work)
        names = sorted(p.name for p in work.iterdir() if p.is_file() and p.name != ".lock")
        name = rng.choice(names)
        mutate_file(work / name, rng)
        before = (work / "weights.safetensors").read_bytes() if (work / "weights.safetensors").is_file() else None
        wanted = config if begun else Run(made).config
        try:
            run = execute(wanted, work, device="cpu")
            assert run.finished
        finally:
            if before is not None and name != "weights.safetensors":
                assert (work / "weights.safetensors").read_bytes() == before, "the weights of a finished run are lost"

    return once


def _stop_after_an_epoch(train: Any, config: RunConfig, dataset: Any, folder: Path) -> None:
    import threading

    from steppe.errors import Interrupted
    from steppe.runs import Observer

    stop = threading.Event()

    class Stopper(Observer):
        def epoch(self, record: dict[str, Any]) -> None:
            stop.set()

    try:
        train(config, dataset, folder, device="cpu", observer=Stopper(), stop=stop)
    except Interrupted:
        return
    raise AssertionError("it did not stop")


def checkpoints(folder: Path) -> Once:
    """Checkpoints with damaged bytes, and whole ones that hold something else."""
    from steppe.studies import execute
    from steppe.train import train
    from steppe.train.checkpoint import load_checkpoint, save_checkpoint

    half, work = folder / "half", folder / "work"
    dataset = data.load(DataConfig(name="digits"))
    config = RunConfig.model_validate({**CONFIG, "budget": {"epochs": 3}})
    _stop_after_an_epoch(train, config, dataset, half)
    good = (half / "checkpoint.safetensors").read_bytes()
    tree = load_checkpoint(half / "checkpoint.safetensors")
    path = folder / "checkpoint.safetensors"

    def once(rng: random.Random) -> None:
        if rng.random() < 0.8:
            path.write_bytes(_mutate_safetensors(good, rng))
            load_checkpoint(path)
            return
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(half, work)
        changed = dict(tree)
        key = rng.choice(list(changed))
        if rng.random() < 0.2:
            del changed[key]
        else:
            changed[key] = rng.choice((None, {}, [], "x", -1, 2**40, torch.zeros(3), {"a": torch.zeros(2)}))
        save_checkpoint(work / "checkpoint.safetensors", changed)
        execute(config, work, device="cpu")

    return once


def _mutate_safetensors(good: bytes, rng: random.Random) -> bytes:
    """Damage the bytes, or the header's JSON with its length put right."""
    if rng.random() < 0.5:
        return mutate_bytes(good, rng)
    length = int.from_bytes(good[:8], "little")
    header = mutate_json(good[8 : 8 + length], rng)
    return len(header).to_bytes(8, "little") + header + good[8 + length :]


def weights(folder: Path) -> Once:
    """Weights of a run and from elsewhere: safetensors and .pth with damaged bytes or other content."""
    from safetensors.torch import save

    from steppe import models
    from steppe.config import ModelConfig
    from steppe.models.weights import load_pretrained

    def build() -> Any:
        return models.build(ModelConfig(name="mlp_8"), image_size=8, channels=1, classes=10)

    state = {k: v.clone() for k, v in build().state_dict().items()}
    tensors = save(state)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    pickled = buffer.getvalue()
    model = build()

    def other(rng: random.Random) -> bytes:
        changed: dict[str, Any] = dict(state)
        key = rng.choice(list(changed))
        new = (torch.zeros(0), torch.full((8, 64), float("nan")), torch.zeros(1, 1, 1, 1, 1), torch.tensor(True))
        changed[rng.choice((key, "new", ""))] = rng.choice((*new, torch.zeros(3, dtype=torch.complex64)))
        if rng.random() < 0.5:
            return save(changed)
        kept = io.BytesIO()
        wrapped = rng.choice((changed, {"state_dict": changed}, {"model": {"state_dict": changed}}, [changed], value(rng)))
        torch.save(wrapped, kept)
        return kept.getvalue()

    def once(rng: random.Random) -> None:
        suffix = rng.choice((".safetensors", ".pth", ".pt", ".bin"))
        path = folder / f"w{suffix}"
        good = tensors if suffix == ".safetensors" else pickled
        kind = rng.random()
        if kind < 0.3:
            path.write_bytes(other(rng))
        elif suffix == ".safetensors":
            path.write_bytes(_mutate_safetensors(good, rng))
        else:
            path.write_bytes(mutate_bytes(good, rng))
        if suffix == ".safetensors" and rng.random() < 0.5:
            models.load_weights(model, path)
        else:
            load_pretrained(model, str(path), "mlp_8")

    return once


def images(folder: Path) -> Once:
    """Images with damaged bytes and wrong headers, in a folder of whole ones."""
    pixels = np.random.default_rng(0).integers(0, 256, (12, 12, 3), np.uint8)
    good: list[tuple[str, bytes]] = []
    for kind, suffix in (("PNG", "png"), ("JPEG", "jpg"), ("GIF", "gif"), ("TIFF", "tiff"), ("BMP", "bmp"), ("WEBP", "webp"), ("PPM", "ppm")):
        for mode in ("RGB", "L", "P", "1", "I;16") if kind in ("PNG", "TIFF") else ("RGB", "L"):
            buffer = io.BytesIO()
            image = Image.fromarray(pixels[..., 0].astype(np.uint16) * 256) if mode == "I;16" else Image.fromarray(pixels).convert(mode)
            try:
                image.save(buffer, kind)
            except OSError:
                continue
            good.append((suffix, buffer.getvalue()))
    for label in "ab":
        (folder / "set" / label).mkdir(parents=True)
        for number in range(4):
            Image.fromarray(pixels).save(folder / "set" / label / f"{number}.png")

    def once(rng: random.Random) -> None:
        suffix, content = rng.choice(good)
        content = huge_image(rng) if rng.random() < 0.05 else mutate_bytes(content, rng)
        if rng.random() < 0.1:
            suffix = rng.choice(good)[0]
        path = folder / "set" / "a" / f"odd.{suffix}"
        path.write_bytes(content)
        try:
            odd = rng.choice(("refuse", "convert"))
            data.load(DataConfig(name=str(folder / "set"), image_size=rng.choice((None, 8, 12)), odd_images=odd))
        finally:
            path.unlink()

    return once


def huge_image(rng: random.Random, png: bool = False) -> bytes:
    """A PNG or GIF that says it is very large."""
    side = 2**31 - 1 if png else rng.choice((20_000, 65_535, 2**31 - 1))
    if png or rng.random() < 0.5:
        import zlib

        head = b"IHDR" + side.to_bytes(4, "big") * 2 + b"\x08\x02\x00\x00\x00"
        chunk = len(head[4:]).to_bytes(4, "big") + head + zlib.crc32(head).to_bytes(4, "big")
        body = b"IDAT" + zlib.compress(b"\x00" * 1000)
        return b"\x89PNG\r\n\x1a\n" + chunk + len(body[4:]).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    small = min(side, 65_535).to_bytes(2, "little")
    return b"GIF89a" + small * 2 + b"\x80\x00\x00\x00\x00\x00\xff\xff\xff," + b"\x00" * 4 + small * 2 + b"\x00\x02\x02D\x01\x00;"


def arrays(folder: Path) -> Once:
    """`.npz` files with damaged bytes, wrong arrays, pickled objects, and members that unpack to much more."""
    rng_ = np.random.default_rng(0)
    x, y = rng_.integers(0, 256, (40, 6, 6), np.uint8), np.arange(40) % 4
    buffer = io.BytesIO()
    np.savez(buffer, x_train=x, y_train=y, x_test=x[:8], y_test=y[:8])
    good = buffer.getvalue()
    path = folder / "set.npz"

    def wrong(rng: random.Random) -> Any:
        kinds = (object, np.float32, np.complex128, "U5", "S3", np.uint16, bool, np.int8, "datetime64[s]")
        shape = rng.choice(((), (0,), (40,), (40, 6), (40, 6, 6), (40, 6, 6, 3), (40, 6, 5), (1, 0, 0), (40, 1, 1, 1, 1)))
        return np.zeros(shape, rng.choice(kinds))

    def once(rng: random.Random) -> None:
        kind = rng.random()
        if kind < 0.5:
            path.write_bytes(mutate_bytes(good, rng))
        elif kind < 0.95:
            parts: dict[str, Any] = {"x_train": x, "y_train": y, "x_test": x[:8], "y_test": y[:8]}
            for name in rng.sample(list(parts), rng.choice((1, 1, 2))):
                parts[name] = rng.choice((wrong(rng), y - 1, y * 10**7, y.astype(np.uint64) + np.uint64(2**63), x[:0], y[:0], y[:3]))
            np.savez(path, **parts)
        else:  # some hundred bytes that unpack to many
            head = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '|u1', 'fortran_order': False, 'shape': (%d, 6, 6), }" % rng.choice((10**6, 10**12, 10**18))
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
                file.writestr("x_train.npy", head.ljust(127) + b"\n" + bytes(2**22))
                file.writestr("y_train.npy", head.ljust(127) + b"\n" + bytes(2**10))
        data.load(DataConfig(name=str(path)))

    return once


def study_folders(folder: Path) -> Once:
    """A study's folder with a damaged study.json or compare.json, asked for its report."""
    from steppe.cli.main import main

    made, work = folder / "made", folder / "work"
    runs = [make_run(made / f"r{seed}", seed=seed) for seed in range(2)]
    listed = [{"run_id": run.id, "labels": {"how": f"h{i}"}, "seed": i} for i, run in enumerate(runs)]
    about = {"name": "s", "title": "t", "question": "q", "runs": listed, "threads": 1, "failed": {}}
    (made / "study.json").write_text(json.dumps(about))
    claim = {"text": "t", "holds": "a", "verdict": "holds", "difference": 0.1, "low": 0.0, "high": 1.0}
    cell = {"value": 92.3, "unit": "%", "seed": "4", "table": "I", "row": "r", "column": "c", "measure": "m", "labels": "l"}
    (made / "compare.json").write_text(json.dumps({"claims": [claim], "cells": [cell], "finished": 1}))

    def once(rng: random.Random) -> None:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(made, work)
        mutate_file(work / rng.choice(("study.json", "study.json", "compare.json")), rng)
        before = contents(work)
        try:
            _command(main, ["report", str(work), "-o", str(folder / "page.html")])
        finally:
            assert contents(work) == before, "reading changed the folder"

    return once


def search_folders(folder: Path) -> Once:
    """A search's folder with a damaged journal or fit.json, opened to go on."""
    from steppe.studies.journal import open_journal
    from steppe.studies.trials import read_about

    made, work = folder / "made", folder / "work"
    made.mkdir()
    study = open_journal(made, 0)
    for number in range(3):
        trial = study.ask()
        trial.suggest_float("lr", 0.1, 1.0)
        trial.set_user_attr("rung", 0)
        study.tell(trial, 0.5 + number / 10)
    (made / "fit.json").write_text(json.dumps({"data": {"name": "digits"}, "elapsed_s": 3.0, "final": None}))

    def once(rng: random.Random) -> None:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(made, work)
        if rng.random() < 0.3:
            mutate_file(work / "fit.json", rng)
            read_about(work)
            return
        mutate_file(work / "optuna.journal", rng)
        open_journal(work, 0).get_trials()

    return once


def _command(main: Any, arguments: list[str]) -> None:
    """A command; its refusal counts as one."""
    from steppe.errors import SteppeError

    try:
        silent(lambda: main(arguments))
    except SystemExit as end:
        assert end.code in (0, None, 2), f"exit code {end.code}"
        if end.code == 2:
            raise SteppeError("refused") from None
