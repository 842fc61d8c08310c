"""How long a training batch takes to make, by augmentation, and how long corrupting a batch at severity 3 takes.

    python benchmarks/loader.py cuda --out results/loader_h200.csv
    python benchmarks/loader.py cpu                                     # no file, only a table

Images are random, of 32 px. `operators` are what torch dispatches for a batch, views left out: on CUDA about as many
launches; a recorded graph, which is one more, is not among them. `--eager` makes batches without the recording. Times
are medians of `--repeats`: of an epoch of 100 batches (20 where they are enlarged), or of one corrupted batch. On CUDA
a batch that waits for the device is an error (`torch.cuda.set_sync_debug_mode`).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hessian import wait
from rows import provenance, save
from torch.utils._python_dispatch import TorchDispatchMode

from steppe.config import AugmentConfig, DataConfig
from steppe.data import CORRUPTIONS, Loader, Source, Split, corrupt, divide

CASES: dict[str, tuple[dict[str, object], int | None]] = {
    "none": ({}, None),
    "crop and flip": ({"crop_padding": 4, "flip": True}, None),
    "resized crop and flip": ({"resized_crop": 0.08, "flip": True}, None),
    "crop, flip, cutout 16": ({"crop_padding": 4, "flip": True, "cutout": 16}, None),
    "crop, flip, mixup": ({"crop_padding": 4, "flip": True, "mixup": 0.2}, None),
    "crop, flip, CutMix": ({"crop_padding": 4, "flip": True, "cutmix": 1.0}, None),
    "crop, flip, RandAugment 2×15": (
        {"crop_padding": 4, "flip": True, "randaugment": 2, "randaugment_magnitude": 15},
        None,
    ),
    "crop, flip, AutoAugment": ({"crop_padding": 4, "flip": True, "autoaugment": "cifar10"}, None),
    "crop, flip, TrivialAugment": ({"crop_padding": 4, "flip": True, "trivialaugment": True}, None),
    "crop, flip, colour jitter": ({"crop_padding": 4, "flip": True, "colour_jitter": 0.4}, None),
    "crop, flip, erasing": ({"crop_padding": 4, "flip": True, "erasing": 0.25}, None),
    "crop, alternating flip": ({"crop_padding": 4, "flip": True, "alternate_flip": True}, None),
    "crop, flip, 32 → 224": ({"crop_padding": 4, "flip": True}, 224),
}


class Operators(TorchDispatchMode):
    """Counts what is dispatched inside, but for views and bare memory."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not (func.is_view or func.__name__.startswith(("empty", "_unsafe_view", "new_empty")))
        return func(*args, **(kwargs or {}))


def measure(call: Callable[[int, int], Any], calls: int, repeats: int, device: torch.device) -> dict[str, Any]:
    """Operators of a call, and the median, smallest and largest ms; a call is told its round and its number."""
    for index in range(min(5, calls)):
        call(0, index)
    with Operators() as operators:
        call(0, 0)
    times = []
    for repeat in range(repeats):
        start = wait(device)
        for index in range(calls):
            call(repeat, index)
        times.append((wait(device) - start) / calls * 1000)
    return {
        "operators": operators.count,
        "ms": round(statistics.median(times), 4),
        "ms_min": round(min(times), 4),
        "ms_max": round(max(times), 4),
    }


def check_never_waits(call: Callable[[int, int], Any], device: torch.device) -> None:
    if device.type == "cuda":
        call(0, 0)
        torch.cuda.set_sync_debug_mode("error")
        call(0, 1)
        torch.cuda.set_sync_debug_mode("default")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", nargs="?", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the names of what to time")
    parser.add_argument("--compile", action="store_true", help="fuse augmentations with torch.compile")
    parser.add_argument("--eager", action="store_true", help="launch every operator of an augmentation on CUDA")
    parser.add_argument("--out", type=Path, help="a CSV file")
    arguments = parser.parse_args()
    device, batch = torch.device(arguments.device), arguments.batch
    made = provenance(device.type)
    print(f"{made['machine']}, torch {torch.__version__}, {made['threads']} thread(s), {batch} images of 32 px")
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (100 * batch, 3, 32, 32), generator=generator, dtype=torch.uint8)
    split = Split(images, torch.arange(len(images)) % 10)
    source = Source(tuple("0123456789"), split, split.take(torch.arange(10)), split.take(torch.arange(10)))
    rows: list[dict[str, Any]] = []

    def tell(kind: str, name: str, how: str, found: dict[str, Any]) -> None:
        rows.append({"kind": kind, "name": name, "batch": batch, "how": how, **found, **made})
        print(f"{name:32s} {found['operators']:5d} operators {found['ms']:9.3f} ms", flush=True)
        if arguments.out is not None:
            save(rows, arguments.out)

    for name, (options, size) in CASES.items():
        if any(part in name for part in arguments.only):
            data = divide(source, DataConfig(name="random", image_size=size))
            augment = AugmentConfig.model_validate(options)
            loader = Loader(
                data,
                batch_size=batch,
                augment=augment,
                seed=0,
                device=device,
                channels_last=device.type == "cuda",
                compile=arguments.compile,
                record=not arguments.eager,
            )
            how = " and ".join(["compiled"] * arguments.compile + ["recorded"] * loader.recorded) or "eager"
            check_never_waits(loader.batch, device)
            tell("augmentation", name, how, measure(loader.batch, 20 if size else 100, arguments.repeats, device))
    some, numbers = images[:batch].to(device), torch.arange(batch)
    for name in CORRUPTIONS:
        if any(part in name for part in arguments.only):

            def call(_: int, __: int, name: str = name) -> torch.Tensor:
                return corrupt(some, name, 3, indices=numbers)

            tell("corruption", name, "eager", measure(call, 1, arguments.repeats, device))


if __name__ == "__main__":
    main()
