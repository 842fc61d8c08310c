"""What `steppe fit` reaches in a time, beside what people write themselves, on one machine with the same weights.

    STEPPE_WEIGHTS=data/weights python benchmarks/fit.py --data-root data --scratch /tmp/fit --budgets 120 600 \
        --cores 2 --device cpu --fastai fastai-venv/bin/python
    STEPPE_WEIGHTS=data/weights python benchmarks/fit.py --data-root data --scratch /tmp/fit --budgets 60 600
    python benchmarks/fit_table.py results/fit.csv --picture fit.png

Against `steppe fit` stand the scripts of `benchmarks/rivals`: scikit-learn's logistic regression on frozen features,
fastai's `fine_tune`, and a plain loop in torch. All learn from the same images, train and val together, and are tested
on the same ones. `seconds` are those from the start of a process until a rival's classifier stands, and of the whole
command for steppe, its test included: a rival is tested for free. `first_s` is when the first classifier stood: a
rival's after its first epoch, however good it was; steppe's is what its folder says. `tested` images made the accuracy.

Rows that are in the CSV file are not measured again, so a benchmark that was stopped goes on. Who does not end in time
has a row without an accuracy; who fails has none, and is tried again. Each row begins with empty caches of steppe and
of the compiler. fastai has an environment of its own that sees this one, so that torch is installed once:

    python -m venv --without-pip fastai-venv && realpath .venv/lib/python3.*/site-packages \
        > $(echo fastai-venv/lib/python3.*/site-packages)/beside.pth
    .venv/bin/pip --python fastai-venv/bin/python install --no-deps fastai==2.8.12 fastcore==2.2.38 \
        fastprogress==1.0.5 fasttransform==0.0.5 fastdownload==0.0.8 plum-dispatch==2.9.0 beartype==0.23.1
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rows import provenance

from steppe import data
from steppe.config import DataConfig

RIVALS = Path(__file__).parent / "rivals"
CASE = ("data", "machine", "budget_s", "who", "seed")
COLUMNS = (*CASE, "accuracy", "seconds", "first_s", "tested", "how", "torch", "commit", "date")
PHOTOGRAPHS = ("pets", "flowers102", "cifar10-500", "cifar10-5000")
SCRIPTS = {"logistic": "logistic.py", "fastai": "fastai_tune.py", "plain": "plain_loop.py"}
SEEDLESS = ("logistic",)
"""Nothing in them is drawn at random: they are measured once."""
CHOICES = tuple(f"efficientnet_lite0:{size}" for size in (224, 192, 160, 128, 96))
"""The best first. By logistic regression on 8 photographs a class of Pets, tested on 8: 75.3 % at 224 pixels, 75.0 at
288, 73.3 at 192, 71.3 at 160, 61.8 at 128; resnet50_keras 69.9 % at 160 and 68.9 at 224, and takes twice as long."""
TEST_S = 1800
"""What the test may take."""


def write_cifar(folder: Path, root: Path, count: int) -> None:
    """Write so many training images, as many of each class, and all test images as PNG files."""
    with np.load(root / "cifar10.npz") as arrays:
        for split, most in (("train", count // 10), ("test", None)):
            images, labels = arrays[f"x_{split}"], arrays[f"y_{split}"].ravel()
            for label in range(10):
                own = folder / split / str(label)
                own.mkdir(parents=True)
                for index in np.flatnonzero(labels == label)[:most]:
                    Image.fromarray(images[index]).save(own / f"{index:05}.png")


def write_folder(folder: Path, source: Path) -> None:
    """Link photographs, those of val among those of train."""
    for split in ("train", "val", "test"):
        for file in sorted((source / split).glob("*/*.*")):
            own = folder / split.replace("val", "train") / file.parent.name
            own.mkdir(parents=True, exist_ok=True)
            (own / f"{split}-{file.name}").symlink_to(file.resolve())


def write_digits(file: Path) -> None:
    """Write the digits as steppe divides them, without a validation set."""
    digits = data.load(DataConfig(name="digits"))
    learned = digits.train, digits.val
    np.savez(
        file,
        x_train=np.concatenate([part.images.numpy()[:, 0] for part in learned]),
        y_train=np.concatenate([part.labels.numpy() for part in learned]),
        x_test=digits.test.images.numpy()[:, 0],
        y_test=digits.test.labels.numpy(),
    )


def prepare(name: str, root: Path, scratch: Path) -> Path:
    """Make the data set that everybody reads, where it is not there yet."""
    folder = scratch / "data" / (f"{name}.npz" if name == "digits" else name)
    if folder.exists():
        return folder
    half = folder.with_name(f"unfinished-{folder.name}")
    shutil.rmtree(half, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    if name == "digits":
        write_digits(half)
    elif name.startswith("cifar10-"):
        write_cifar(half, root, int(name.partition("-")[2]))
    else:
        write_folder(half, root / name)
    half.rename(folder)
    return folder


def run(command: list[str], limit_s: float, environment: dict[str, str]) -> tuple[str | None, float]:
    """Run a command and everything it starts; its output, or None if its time was over, and its seconds.

    Raises:
        RuntimeError: it failed.
    """
    began = time.monotonic()
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**os.environ, **environment}, start_new_session=True, **options) as process:
        try:
            out, errors = process.communicate(timeout=limit_s)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                return None, time.monotonic() - began
            raise
    if process.returncode:
        raise RuntimeError(f"{shlex.join(command)} ended with {process.returncode}\n{errors[-2000:]}")
    return out, time.monotonic() - began


def run_steppe(
    given: argparse.Namespace, source: Path, budget: float, seed: int, folder: Path, environment: dict[str, str]
) -> dict[str, Any]:
    command = [sys.executable, "-m", "steppe", "fit", str(source), "--budget", f"{budget:g}s", "--seed", str(seed)]
    command += ["-o", str(folder / "fit"), "--json", *shlex.split(given.steppe_options)]
    out, seconds = run(command, 1.5 * budget + 60, environment)
    found: dict[str, Any] = {"seconds": round(seconds, 1)}
    if out is None:
        return found
    best = Path(json.loads(out)["best"])
    test = json.loads((best / "summary.json").read_text())["test"]
    first_s = json.loads((folder / "fit" / "fit.json").read_text()).get("first_s")
    about = {"accuracy": round(test["accuracy"], 5), "tested": test.get("examples"), "how": best.name}
    return {**found, **about, "first_s": first_s}


def run_rival(
    given: argparse.Namespace, who: str, source: Path, budget: float, seed: int, environment: dict[str, str]
) -> dict[str, Any]:
    python = str(given.fastai) if who == "fastai" else sys.executable
    command = [python, str(RIVALS / SCRIPTS[who]), str(source), "--budget", f"{budget:g}", "--seed", str(seed)]
    command += ["--weights", str(given.weights), "--began", f"{time.time():.3f}", "--choices", *given.choices]
    out, seconds = run(command, 1.5 * budget + TEST_S, environment)
    return {"seconds": round(seconds, 1)} if out is None else json.loads(out.splitlines()[-1])


def start(python: str, imports: str) -> None:
    """Import once, so that the first row is not slower than the others by a cold disk."""
    subprocess.run([python, "-W", "ignore", "-c", f"import {imports}"], check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    """Measure what is asked for and not there, a row at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = (*PHOTOGRAPHS, "digits")
    parser.add_argument("--data", nargs="+", choices=names, default=names)
    parser.add_argument("--who", nargs="+", choices=("steppe", *SCRIPTS), default=("steppe", *SCRIPTS))
    parser.add_argument("--budgets", nargs="+", type=float, required=True, help="seconds")
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--data-root", type=Path, default=data.data_root())
    parser.add_argument("--scratch", type=Path, required=True, help="folder for image folders and runs")
    parser.add_argument("--weights", type=Path, default=os.environ.get("STEPPE_WEIGHTS"), help="or $STEPPE_WEIGHTS")
    parser.add_argument("--fastai", type=Path, help="the Python that has fastai; without it that rival is left out")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="by default the GPU where there is one")
    parser.add_argument("--cores", type=int, help="use so many alone")
    parser.add_argument("--choices", nargs="+", default=CHOICES, help="a rival's NETWORK:SIZE, best first")
    parser.add_argument("--steppe-options", default="", help="further options of `steppe fit`")
    parser.add_argument("--machine", help="what to call it")
    parser.add_argument("--out", type=Path, default=Path("results/fit.csv"))
    given = parser.parse_args()
    if given.weights is None:
        parser.error("name the folder of weights: --weights or $STEPPE_WEIGHTS")
    who = list(given.who)
    start(sys.executable, "timm, torchvision, sklearn.linear_model, steppe.cli.fit")
    if "fastai" in who and given.fastai:
        start(given.fastai, "fastai.vision.all")
    elif "fastai" in who:
        print("fastai is left out: --fastai names no Python that has it", flush=True)
        who.remove("fastai")
    if given.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.cores])
    import torch

    device = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
    made = provenance(device)
    cores = len(os.sched_getaffinity(0))
    machine = given.machine or f"{made['machine']}" + (f", {cores} cores" if device == "cpu" else "")
    environment = {"STEPPE_WEIGHTS": str(given.weights)} | ({"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {})
    given.out.parent.mkdir(parents=True, exist_ok=True)
    there = set()
    if given.out.exists():
        with given.out.open(newline="") as file:
            there = {tuple(row[key] for key in CASE) for row in csv.DictReader(file)}
    failed = 0
    cases = [(s, n, b, w) for s in given.seeds for n in given.data for b in given.budgets for w in who]
    for seed, name, budget, one in cases:
        inapplicable = one in ("logistic", "fastai") and name == "digits"
        if inapplicable or (one in SEEDLESS and seed != given.seeds[0]):
            continue
        key = {"data": name, "machine": machine, "budget_s": f"{budget:g}", "who": one, "seed": str(seed)}
        if tuple(key.values()) in there:
            continue
        source = prepare(name, given.data_root, given.scratch)
        folder = given.scratch / "runs" / f"{name}-{budget:g}s-{one}-{seed}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        own = environment | {"STEPPE_CACHE": str(folder / "cache"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "compiled")}
        try:
            if one == "steppe":
                found = run_steppe(given, source, budget, seed, folder, own)
            else:
                found = run_rival(given, one, source, budget, seed, own)
        except RuntimeError as error:
            failed += 1
            print(f"{one} on {name}: {error}", file=sys.stderr, flush=True)
            continue
        new = not given.out.exists()
        with given.out.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, restval="")
            if new:
                writer.writeheader()
            writer.writerow({**key, **found, **{column: made[column] for column in ("torch", "commit", "date")}})
        print({**key, **found}, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
