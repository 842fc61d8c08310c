"""How long the head of a frozen network takes to train on a CPU, with its features kept and through the whole network.

    python benchmarks/head.py WEIGHTS --model efficientnet_lite0 --data pets --image-size 96 --out results/head_cpu.csv
    python benchmarks/head.py runs/RUN --model resnet18 --data cifar10 --fraction 0.1

Each method is trained both ways in turn, in this process, without augmentation and with crops and mirrors. Seconds are
those of training; `whole_s` those of the run, with evaluating and starting. Accuracies of the two ways should agree: it
is the same training but for rounding.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

from rows import provenance, save

from steppe import data
from steppe.config import RunConfig
from steppe.train import loop, train
from steppe.train.features import find_body

WAYS = {"kept": find_body, "whole network": lambda *_: None}


def measure(config: RunConfig, dataset: data.Dataset) -> dict[str, dict[str, Any]]:
    """Train both ways.

    Args:
        config: the run.
        dataset: its images.
    """
    found = {}
    for name, way in WAYS.items():
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(loop, "find_body", way):
            began = time.perf_counter()
            summary = train(config, dataset, Path(folder) / "run", device="cpu").summary
            found[name] = {"seconds": summary["time_s"], "whole_s": time.perf_counter() - began}
            found[name]["accuracy"] = summary["test"]["accuracy"]
    return found


def main() -> None:
    """Train, print a line for each, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", help="what the network begins from")
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--image-size", type=int, default=None)
    parser.add_argument("--fraction", type=float, default=1.0)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    images = {"name": given.data, "image_size": given.image_size, "fraction": given.fraction}
    rows: list[dict[str, Any]] = []
    for augment in ({}, {"crop_padding": 4, "flip": True}):
        for minimizer in ("base", "sam"):
            values = {
                "data": {key: value for key, value in images.items() if value is not None},
                "model": {"name": given.model, "mode": "frozen", "weights": given.weights},
                "minimizer": {"name": minimizer},
                "augment": augment,
                "budget": {"epochs": given.epochs},
            }
            config = RunConfig.model_validate(values)
            found = measure(config, data.load(config.data, given.data_root))
            kept, whole = found["kept"], found["whole network"]
            row = {"model": given.model, "data": given.data, "image_size": given.image_size, "epochs": given.epochs}
            row |= {"augment": "crops and mirrors" if augment else "none", "minimizer": minimizer}
            row |= {
                f"{name} {key}".replace(" ", "_"): value for name, one in found.items() for key, value in one.items()
            }
            row |= {"faster": whole["seconds"] / kept["seconds"], "whole_faster": whole["whole_s"] / kept["whole_s"]}
            rows.append(row | provenance("cpu"))
            print(
                f"{row['augment']:18} {minimizer:5} {kept['seconds']:7.1f} s against {whole['seconds']:7.1f} s: "
                f"{row['faster']:5.1f} times as fast ({row['whole_faster']:.1f} the run); "
                f"test {100 * kept['accuracy']:.2f} and {100 * whole['accuracy']:.2f} %",
                flush=True,
            )
            if given.out:
                save(rows, given.out)


if __name__ == "__main__":
    main()
