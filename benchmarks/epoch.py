"""Seconds an epoch takes, ours beside a plain loop of the kind people write, in one process on one device.

    python benchmarks/epoch.py --out results/epoch_h200.csv            # on a GPU
    python benchmarks/epoch.py --models digits --out /tmp/epoch.csv    # on a CPU: the digits ViT

Ours is `steppe.train` itself, read off the run's metrics: device-resident images, crop and flip there, compiled and
captured step; the median of the epochs after the first two. The plain loop is a torchvision-style DataLoader with
worker processes, bf16 autocast, channels-last, eager torch, and SAM from pytorch_optimizer where it is installed
(`--peers-path` names a folder that holds it). Images are random unless `--data-root` holds cifar10: their content does
not change the time. Evaluation is left out on both sides; compiling is told apart.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rows import provenance, save

from steppe import data
from steppe.config import RunConfig
from steppe.train import build_model, train

CASES: dict[str, dict[str, Any]] = {
    "resnet18": {"model": "resnet18", "batch_size": 128, "optimizer": "sgd", "epochs": 5},
    "vit": {"model": "vit_6l_8h_384", "batch_size": 128, "optimizer": "adamw", "epochs": 5},
    "wrn": {"model": "wrn_28_10", "batch_size": 128, "optimizer": "sgd", "epochs": 3},
    "swin224": {"model": "swin_t_p4", "batch_size": 32, "optimizer": "adamw", "epochs": 5, "image_size": 224},
    "digits": {"model": "vit_tiny_p2", "batch_size": 64, "optimizer": "adamw", "epochs": 6, "data": "digits"},
}


def make_config(case: dict[str, Any], minimizer: str, name: str, precision: str, fraction: float) -> RunConfig:
    small = name == "digits"
    values: dict[str, Any] = {
        "batch_size": case["batch_size"],
        "precision": precision,
        "data": {"name": name, "val_fraction": 0.02, "fraction": fraction, "image_size": case.get("image_size")},
        "model": {"name": case["model"]},
        "minimizer": {"name": minimizer},
        "optimizer": {"name": case["optimizer"], "lr": 0.01 if case["optimizer"] == "sgd" else 1e-4},
        "augment": {"crop_padding": 1} if small else {"crop_padding": 4, "flip": True},
        "budget": {"epochs": case["epochs"]},
    }
    return RunConfig.model_validate(values)


def make_images(folder: Path) -> None:
    """Random images of CIFAR-10's shape; the validation share makes up for what the benchmark keeps back."""
    rng = np.random.default_rng(0)
    np.savez(
        folder / "cifar10.npz",
        x_train=rng.integers(0, 256, (51_020, 32, 32, 3), np.uint8),
        y_train=np.arange(51_020) % 10,
        x_test=rng.integers(0, 256, (100, 32, 32, 3), np.uint8),
        y_test=np.arange(100) % 10,
    )


def time_ours(config: RunConfig, dataset: data.Dataset, device: torch.device) -> tuple[float, float]:
    """(seconds of the median epoch after the first two, seconds of compiling)."""
    with tempfile.TemporaryDirectory() as folder:
        run = train(config, dataset, Path(folder) / "run", device=str(device), captured=device.type == "cuda")
        times = [record["time_s"] for record in run.metrics()]
        compile_s = run.summary.get("compile_s", 0.0)
    epochs = [b - a for a, b in zip([0.0, *times], times, strict=False)]
    return statistics.median(epochs[2:] or epochs[1:] or epochs), compile_s


class PlainImages(torch.utils.data.Dataset):
    """What people write: one image at a time through torchvision's transforms."""

    def __init__(self, dataset: data.Dataset, size: int, crop: int, flip: bool) -> None:
        from torchvision.transforms import v2

        self.images, self.labels = dataset.train.images, dataset.train.labels
        own = self.images.shape[-1]
        steps: list[Any] = [v2.RandomCrop(own, padding=crop)]
        steps += [v2.RandomHorizontalFlip()] if flip else []
        steps += [v2.Resize(size)] if size != own else []
        steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(list(dataset.mean), list(dataset.std))]
        self.transform = v2.Compose(steps)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.transform(self.images[index]), self.labels[index]


def time_plain(config: RunConfig, dataset: data.Dataset, device: torch.device, epochs: int, workers: int) -> float:
    """Seconds of the plain loop's median epoch after the first."""
    model = build_model(config, dataset).to(device)
    on_gpu = device.type == "cuda"
    if on_gpu:
        model = model.to(memory_format=torch.channels_last)
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[config.optimizer.name]
    options = {"momentum": 0.9} if config.optimizer.name == "sgd" else {}
    sharp = config.minimizer.name == "sam"
    if sharp:
        from pytorch_optimizer import SAM

        optimizer: Any = SAM(model.parameters(), kind, rho=0.05, lr=config.optimizer.lr, **options)
    else:
        optimizer = kind(model.parameters(), lr=config.optimizer.lr, **options)
    images = PlainImages(dataset, dataset.image_size, config.augment.crop_padding, config.augment.flip)
    loader = torch.utils.data.DataLoader(
        images,
        batch_size=config.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=on_gpu,
        persistent_workers=workers > 0,
    )
    times = []
    for _ in range(epochs):
        start = time.perf_counter()
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            x = x.to(memory_format=torch.channels_last) if on_gpu else x

            def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                with torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bfloat16"):
                    loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            optimizer.zero_grad()
            closure()
            if sharp:
                optimizer.first_step(zero_grad=True)
                closure()
                optimizer.second_step(zero_grad=True)
            else:
                optimizer.step()
        if on_gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:] or times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(CASES), default=None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--peers-path", help="a folder with pytorch_optimizer in it")
    parser.add_argument("--plain-epochs", type=int, default=2, help="0 leaves the plain loop out")
    parser.add_argument("--fraction", type=float, default=1.0, help="of the training images; `images` says how many")
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1))
    arguments = parser.parse_args()
    if arguments.peers_path:
        sys.path.append(arguments.peers_path)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision = "bfloat16" if device.type == "cuda" else "float32"
    made = provenance(device.type)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        root = arguments.data_root
        if root is None:
            root = Path(scratch)
            make_images(root)
        for name in arguments.models or ([*CASES][:-1] if device.type == "cuda" else ["digits"]):
            case = CASES[name]
            for minimizer in ("base", "sam"):
                config = make_config(case, minimizer, case.get("data", "cifar10"), precision, arguments.fraction)
                dataset = data.load(config.data, root)
                ours_s, compile_s = time_ours(config, dataset, device)
                plain_s = None
                if arguments.plain_epochs:
                    plain_s = time_plain(config, dataset, device, arguments.plain_epochs, arguments.workers)
                rows.append(
                    {
                        "case": name,
                        "model": case["model"],
                        "batch": case["batch_size"],
                        "minimizer": minimizer,
                        "precision": precision,
                        "images": len(dataset.train),
                        "epoch_s": round(ours_s, 4),
                        "compile_s": round(compile_s, 1),
                        "plain_epoch_s": plain_s and round(plain_s, 4),
                        "plain_over_ours": plain_s and round(plain_s / ours_s, 2),
                        **made,
                    }
                )
                print(
                    {k: rows[-1][k] for k in ("case", "minimizer", "epoch_s", "plain_epoch_s", "compile_s")}, flush=True
                )
                save(rows, arguments.out)


if __name__ == "__main__":
    main()
