"""Measures that are made of forward passes, as a multiple of those passes alone, in one process on one device.

    python benchmarks/forward_bound.py --out results/forward_bound_h200.csv          # on a GPU
    python benchmarks/forward_bound.py --tiny --out /tmp/forward_bound.csv           # on a CPU: 200 images of 8×8

`landscape`: `measure_square` from a cold start (directions given, recording of the graph included) against as many
passes over the same batches with the weights left alone, recorded as a CUDA graph where there is one. `corruptions`:
the whole table of `measure_corruptions` against as many eager passes over images that are made already. Images are
random.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from hessian import wait
from rows import provenance, save
from torch import nn

from steppe.config import DataConfig, ModelConfig
from steppe.data import Dataset, Source, Split, divide, in_order
from steppe.evaluate import measure_corruptions
from steppe.geometry import measure_square, random_directions
from steppe.measuring import numerics
from steppe.models import build


def seconds(call: Callable[[], Any], device: torch.device) -> float:
    start = wait(device)
    call()
    return wait(device) - start


def record(sweep: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The same as a CUDA graph; on a CPU as it is."""
    if device.type != "cuda":
        return sweep
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        sweep()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sweep()
    return graph.replay


def time_landscape(model: nn.Module, dataset: Dataset, batch: int, points: int, device: torch.device) -> list[float]:
    """(ours, bare passes), in seconds."""
    batches = list(in_order(dataset.test, dataset, batch_size=batch, device=device))
    total = torch.zeros((), dtype=torch.float64, device=device)

    def sweep() -> None:
        for images, labels in batches:
            total.add_(F.cross_entropy(model(images), labels, reduction="none").sum(dtype=torch.float64))

    directions = random_directions(model, 2)
    with torch.no_grad():
        replay = record(sweep, device)
        replay()

        def passes() -> None:
            for _ in range(points**2):
                replay()

        bare = seconds(passes, device)
    return [seconds(lambda: measure_square(model, batches, directions, points=points), device), bare]


def time_corruptions(model: nn.Module, dataset: Dataset, batch: int, device: torch.device) -> list[float]:
    """(ours, bare passes), in seconds."""
    batches = list(in_order(dataset.test, dataset, batch_size=batch, device=device))

    def passes() -> None:
        for _ in range(19 * 5):
            for images, _ in batches:
                model(images)

    def table(examples: int | None = None) -> None:
        measure_corruptions(model, dataset, device=device, batch_size=batch, examples=examples)

    with torch.no_grad():
        model(batches[0][0])
        bare = seconds(passes, device)
    table(batch)  # a first one also loads what the corruptions are made with
    return [seconds(table, device), bare]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["resnet18", "vit_s_p4"])
    parser.add_argument("--examples", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--points", type=int, default=50, help="of the square, a side")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--precision", choices=["float32", "tf32"], default="tf32")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true", help="small models, images and counts")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.models, arguments.image_size = ["resnet_tiny", "vit_tiny_p2"], 8
        arguments.examples, arguments.batch, arguments.points = 200, 100, 5
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    made = provenance(device.type)
    generator = torch.Generator().manual_seed(0)
    shape = (arguments.examples, 3, arguments.image_size, arguments.image_size)
    split = Split(
        torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8), torch.arange(arguments.examples) % 10
    )
    dataset = divide(Source(tuple("0123456789"), split, None, split), DataConfig(name="random"))
    rows: list[dict[str, Any]] = []
    for name in arguments.models:
        torch.manual_seed(0)
        config = ModelConfig(name=name)
        model = build(config, image_size=arguments.image_size, channels=3, classes=10).to(device).eval()
        with numerics(arguments.precision):
            for measure in ("landscape", "corruptions"):
                if measure == "landscape":
                    ours, bare = time_landscape(model, dataset, arguments.batch, arguments.points, device)
                    passes = arguments.points**2
                else:
                    ours, bare = time_corruptions(model, dataset, arguments.batch, device)
                    passes = 19 * 5
                rows.append(
                    {
                        "measure": measure,
                        "model": name,
                        "examples": arguments.examples,
                        "batch": arguments.batch,
                        "precision": arguments.precision,
                        "passes": passes,
                        "ours_s": round(ours, 3),
                        "passes_s": round(bare, 3),
                        "ours_over_passes": round(ours / bare, 3),
                        **made,
                    }
                )
                print({key: rows[-1][key] for key in ("measure", "model", "ours_s", "passes_s", "ours_over_passes")})
                save(rows, arguments.out)


if __name__ == "__main__":
    main()
