"""Seconds of training to an accuracy: recipes under several minimizers, beside the scripts of the speed records.

    python benchmarks/time_to_accuracy.py cifar10-94 cifar10-96 --runs 5 --peer airbench94_muon=FOLDER
    python benchmarks/time_to_accuracy.py cifar10-94 --minimizers recipe sam "SAM over SGD=minimizer=sam,optimizer=sgd"
    python benchmarks/time_to_accuracy.py /tmp/tiny.toml --runs 2 --device cpu --set epochs=1 --out /tmp/t.csv

Rows are appended to the CSV file. All runs of a recipe are made in this process, one seed each, after an epoch that
compiles and does not count. `accuracy_mean` is with the recipe's own test-time augmentation (`test.tta`),
`accuracy_plain_mean` without; `train_s` leaves compiling and evaluating out, `wall_s` is all of a run.

A peer is NAME=FOLDER: FOLDER/NAME.py, a script of KellerJordan/cifar10-airbench, run as it is in a folder where it
finds CIFAR-10; its printed table is read and its process ended after as many runs. Its seconds are those it prints.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rows import provenance

from steppe import data
from steppe.config import BudgetConfig, RunConfig, merge, parse
from steppe.config.keys import nest_arguments
from steppe.config.recipes import load_recipe
from steppe.train import pick_device, train

COLUMNS = (
    *("data", "target", "who", "minimizer", "runs", "accuracy_mean", "accuracy_std", "accuracy_plain_mean"),
    *("train_s_mean", "train_s_std", "wall_s_mean", "machine", "torch", "commit", "date"),
)
AS_WRITTEN = "recipe"
MINIMIZERS = {
    AS_WRITTEN: "",
    "plain": "minimizer=base",
    "sam": "minimizer=sam",
    "asam": "minimizer=asam",
    "sam_late": "minimizer=sam,sharp_last=0.125",
    "ema": "minimizer=base,ema=0.999",
}
"""Name -> what is laid over a recipe; others are given as NAME=KEY=VALUE,KEY=VALUE."""


@dataclass(frozen=True)
class Result:
    """One finished run: accuracies in %, seconds of training, seconds of everything."""

    accuracy: float
    plain: float
    train_s: float
    wall_s: float | None = None
    """None for a peer: its script does not say."""


def read_settings(text: str) -> dict[str, Any]:
    """Read "minimizer=sam,rho=0.1" as nested keys of a run; values are TOML, else text."""
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return nest_arguments({key.strip().replace("-", "_"): _read_value(value.strip()) for key, _, value in pairs})


def _read_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def read_minimizers(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Give what each name lays over a recipe."""
    found = {}
    for name in names:
        label, equals, text = name.partition("=")
        if not equals and label not in MINIMIZERS:
            raise SystemExit(f"unknown minimizer {name!r}: one of {', '.join(MINIMIZERS)}, or NAME=KEY=VALUE,…")
        found[label] = read_settings(text if equals else MINIMIZERS[label])
    return found


def target_of(name: str) -> str:
    """The accuracy that a recipe or a peer is named after: 94 for cifar10-94 and for airbench94_muon; else nothing."""
    found = re.match(r"(?:[a-z]+\d*-|[a-z]*bench)(\d\d(?:\.\d+)?)(?!\d)", name)
    return found[1] if found else ""


def run_recipe(values: dict[str, Any], runs: int, device: str, data_root: str | None) -> tuple[RunConfig, list[Result]]:
    """Train a configuration with so many seeds in this process, after an epoch that compiles."""
    config = parse(RunConfig, values, where="the benchmark")
    dataset = data.load(config.data, data_root)
    results = []
    for number in range(-1, runs):
        seeded = config.model_copy(update={"seed": config.seed + max(number, 0)})
        if number < 0:
            seeded = seeded.model_copy(update={"budget": BudgetConfig(epochs=1)})
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            summary = train(seeded, dataset, Path(folder) / "run", device=device).summary
            wall_s = time.perf_counter() - began
        plain = summary["test"]["accuracy"]
        augmented = summary.get("test_tta", summary["test"])["accuracy"]
        result = Result(100 * augmented, 100 * plain, summary["time_s"], wall_s)
        word = "compiles, does not count" if number < 0 else f"seed {seeded.seed}"
        print(f"  {word}: {result.accuracy:.2f} % in {result.train_s:.3f} s, {wall_s:.1f} s in all", flush=True)
        results += [result] if number >= 0 else []
    return config, results


def run_peer(script: Path, runs: int, data_root: str | None) -> list[Result]:
    """Run a peer's script in a folder with CIFAR-10 until it has printed so many runs."""
    with tempfile.TemporaryDirectory() as folder:
        write_cifar(Path(folder) / "cifar10", data_root)
        command = [sys.executable, "-u", str(script.resolve())]
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert process.stdout is not None
        results: list[Result] = []
        try:
            for result in read_table(process.stdout):
                results.append(result)
                print(f"  run {len(results)}: {result.accuracy:.2f} % in {result.train_s:.3f} s", flush=True)
                if len(results) == runs:
                    break
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()
    if len(results) < runs:
        raise SystemExit(f"{script} ended after {len(results)} of {runs} runs; its errors are above")
    return results


def read_table(lines: Iterable[str]) -> Iterator[Result]:
    """Read the table that airbench prints: a result for every run that counts.

    A run's number stands in its first line alone, its last line says `eval` in the place of an epoch. The run `warmup`
    learns random labels.
    """
    heads: list[str] = []
    run = ""
    for line in lines:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if "tta_val_acc" in cells:
            heads = cells
        if not heads or len(cells) != len(heads) or cells == heads:
            continue
        row = dict(zip(heads, cells, strict=True))
        run = row["run"] or run
        if row["epoch"] == "eval" and run != "warmup":
            seconds = next(float(value) for head, value in row.items() if head.endswith("time_seconds"))
            yield Result(100 * float(row["tta_val_acc"]), 100 * float(row["val_acc"]), seconds)


def write_cifar(folder: Path, data_root: str | None) -> None:
    """Write CIFAR-10 as airbench keeps it, from steppe's data sets: nothing is downloaded."""
    import torch

    from steppe.config import DataConfig

    source = data.load(DataConfig(name="cifar10", learn_from_val=True), data_root).learn_from_val()
    folder.mkdir(parents=True)
    for name, split in (("train", source.train), ("test", source.test)):
        images = split.images.permute(0, 2, 3, 1).contiguous()
        about = {"images": images, "labels": split.labels, "classes": list(source.classes)}
        torch.save(about, folder / f"{name}.pt")


def summarise(results: list[Result]) -> dict[str, Any]:
    """Mean and standard deviation over the runs."""

    def mean(key: str) -> str:
        known = [value for result in results if (value := getattr(result, key)) is not None]
        return f"{statistics.fmean(known):.4f}" if known else ""

    def std(key: str) -> str:
        return f"{statistics.stdev(getattr(result, key) for result in results):.4f}" if len(results) > 1 else ""

    return {
        "runs": len(results),
        "accuracy_mean": mean("accuracy"),
        "accuracy_std": std("accuracy"),
        "accuracy_plain_mean": mean("plain"),
        "train_s_mean": mean("train_s"),
        "train_s_std": std("train_s"),
        "wall_s_mean": mean("wall_s"),
    }


def append(row: dict[str, Any], out: Path) -> None:
    """Add a row to the CSV file, which gets its head with the first."""
    out.parent.mkdir(parents=True, exist_ok=True)
    begins = not out.exists() or not out.stat().st_size
    with out.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=COLUMNS, extrasaction="ignore")
        if begins:
            writer.writeheader()
        writer.writerow(row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", help="names of `steppe recipes`, or files")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--minimizers", nargs="+", default=[AS_WRITTEN], metavar="NAME", help=", ".join(MINIMIZERS))
    parser.add_argument("--set", default="", metavar="KEY=VALUE,…", help="laid over every recipe, such as epochs=2")
    parser.add_argument("--target", help="accuracy in the column; by default from the name: 94 of cifar10-94")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--device")
    parser.add_argument("--data-root")
    parser.add_argument("--out", type=Path, default=Path("results/time_to_accuracy_h200.csv"))
    asked = parser.parse_args()
    device = str(pick_device(asked.device))
    where = provenance(device)
    minimizers = read_minimizers(asked.minimizers)
    for name, folder in (peer.split("=", 1) for peer in asked.peer):
        script = Path(folder) / f"{name}.py"
        if not script.is_file():
            print(f"{name} is left out: there is no {script}")
            continue
        print(name)
        found = summarise(run_peer(script, asked.runs, asked.data_root))
        target = asked.target or target_of(name)
        append({"data": "cifar10", "target": target, "who": name, "minimizer": "its own", **found, **where}, asked.out)
    for recipe in map(load_recipe, asked.recipes):
        for label, change in minimizers.items():
            print(f"{recipe.name}, {label}")
            values = merge(merge(recipe.values, read_settings(asked.set)), change)
            config, results = run_recipe(values, asked.runs, device, asked.data_root)
            named = config.minimizer.name if label == AS_WRITTEN else label
            target = asked.target or target_of(recipe.name)
            about = {"data": config.data.name, "target": target, "who": f"steppe:{recipe.name}", "minimizer": named}
            append({**about, **summarise(results), **where}, asked.out)


if __name__ == "__main__":
    main()
