"""Fuzzed files: run folders, checkpoints, weights, folders of studies and searches."""

from __future__ import annotations

import io
import json
import random
import shutil
from pathlib import Path
from typing import Any

import torch

from steppe import data
from steppe.config import DataConfig, RunConfig
from steppe.runs import Run, find_runs, read_answers
from torture.fuzz import Once, command, silent
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
    from steppe.report.rows import summarise
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

                command(main, ["compare", str(work), str(made)])
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
        wrapped = rng.choice(
            (changed, {"state_dict": changed}, {"model": {"state_dict": changed}}, [changed], value(rng))
        )
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


def study_folders(folder: Path) -> Once:
    """A study's folder with a damaged study.json or compare.json, asked for its report."""
    from steppe.cli.main import main

    made, work = folder / "made", folder / "work"
    runs = [make_run(made / f"r{seed}", seed=seed) for seed in range(2)]
    listed = [{"run_id": run.id, "labels": {"how": f"h{i}"}, "seed": i} for i, run in enumerate(runs)]
    about = {"name": "s", "title": "t", "question": "q", "runs": listed, "threads": 1, "failed": {}}
    (made / "study.json").write_text(json.dumps(about))
    claim = {"text": "t", "holds": "a", "verdict": "holds", "difference": 0.1, "low": 0.0, "high": 1.0}
    cell = {
        "value": 92.3,
        "unit": "%",
        "seed": "4",
        "table": "I",
        "row": "r",
        "column": "c",
        "measure": "m",
        "labels": "l",
    }
    (made / "compare.json").write_text(json.dumps({"claims": [claim], "cells": [cell], "finished": 1}))

    def once(rng: random.Random) -> None:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(made, work)
        mutate_file(work / rng.choice(("study.json", "study.json", "compare.json")), rng)
        before = contents(work)
        try:
            command(main, ["report", str(work), "-o", str(folder / "page.html")])
        finally:
            assert contents(work) == before, "reading changed the folder"

    return once


def search_folders(folder: Path) -> Once:
    """A search's folder with a damaged journal or fit.json, opened to go on."""
    from steppe.search.budget import read_about
    from steppe.search.journal import open_journal

    made, work = folder / "made", folder / "work"
    made.mkdir()
    study = open_journal(made)
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
        open_journal(work).get_trials()

    return once
