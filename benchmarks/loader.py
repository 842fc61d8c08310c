"""How long a training batch takes to make: ms for 128 images of 32 px, by augmentation, and what a `resize` adds.

    python benchmarks/loader.py [cpu|cuda] [--compile]

On CUDA also whether a batch ever waits for the device (`torch.cuda.set_sync_debug_mode`).
"""

from __future__ import annotations

import statistics
import sys
import time

import torch

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
    "crop, flip, 32 → 224": ({"crop_padding": 4, "flip": True}, 224),
}


def main(device: torch.device, compile: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (12800, 3, 32, 32), generator=generator, dtype=torch.uint8)
    split = Split(images, torch.arange(len(images)) % 10)
    source = Source(tuple("0123456789"), split, split.take(range(10)), split.take(range(10)))
    print(f"{device}, torch {torch.__version__}, {torch.get_num_threads()} thread(s), compile={compile}")
    for name, (options, size) in CASES.items():
        data = divide(source, DataConfig(name="random", image_size=size))
        config = AugmentConfig.model_validate(options)
        loader = Loader(data, batch_size=128, augment=config, seed=0, device=device, compile=compile)
        count = 20 if size else len(loader)
        for index in range(5):
            loader.batch(0, index)
        _wait(device)
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("error")
            loader.batch(0, 6)
            torch.cuda.set_sync_debug_mode("default")
        times = []
        for epoch in range(3):
            start = time.perf_counter()
            for index in range(count):
                loader.batch(epoch, index)
            _wait(device)
            times.append((time.perf_counter() - start) / count * 1000)
        print(f"{name:32s} {statistics.median(times):8.3f} ms")
    print("corruptions at severity 3, 128 images of 32 px")
    batch, numbers = images[:128].to(device), torch.arange(128)
    for name in CORRUPTIONS:
        corrupt(batch, name, 3, indices=numbers)
        _wait(device)
        start = time.perf_counter()
        corrupt(batch, name, 3, indices=numbers)
        _wait(device)
        print(f"{name:32s} {(time.perf_counter() - start) * 1000:8.3f} ms")


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    arguments = [a for a in sys.argv[1:] if not a.startswith("-")]
    main(torch.device(arguments[0] if arguments else "cpu"), "--compile" in sys.argv)
