"""Tiny networks with weights as if they were pretrained, and colour images that their features tell apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from steppe import data
from steppe.config import RunConfig
from steppe.data import Dataset

STATISTICS = {
    "test_resnet": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "test_efficientnet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "test_vit": ((0.4, 0.5, 0.6), (0.3, 0.2, 0.1)),
}
"""Networks of timm's tests, each with statistics of its own."""


def put_weights(folder: Path, *names: str) -> Path:
    """Fill a folder with weights of these networks of timm, each with its description."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        torch.manual_seed(0)
        model = timm.create_model(name)
        save_file(
            {key: value.contiguous() for key, value in model.state_dict().items()}, folder / f"{name}.safetensors"
        )
        mean, std = STATISTICS[name]
        about = {"architecture": name, "classes": 1000, "image_size": 64, "mean": mean, "std": std}
        (folder / f"{name}.json").write_text(json.dumps(about))
    return folder


def put_images(folder: Path, each: int = 15, side: int = 32) -> Path:
    """Fill a folder with three classes of coloured patterns under noise."""
    rng = np.random.default_rng(0)
    waves = np.sin(np.arange(side) * 2 * np.pi / 8)
    patterns = {"columns": waves[None, :], "rows": waves[:, None], "plain": np.zeros((1, 1))}
    for channel, (label, pattern) in enumerate(patterns.items()):
        (folder / label).mkdir(parents=True)
        for number in range(each):
            pixels = 110 + 25 * rng.standard_normal((side, side, 3))
            pixels[:, :, channel] += 25 * rng.uniform() * (1 + pattern)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / label / f"{number:02d}.png")
    return folder


def probe_config(images: Path, weights: Path, *names: str, seed: int = 0, **sections: Any) -> RunConfig:
    """A probe of one network, or of several side by side."""
    sources = [str(weights / f"{name}.safetensors") for name in names]
    values = {
        "seed": seed,
        "data": {"name": str(images), "val_fraction": 0.3} | sections.pop("data", {}),
        "model": {"name": "+".join(names), "weights": "+".join(sources), "mode": "probe"} | sections.pop("model", {}),
    }
    return RunConfig.model_validate(values | sections)


def load(config: RunConfig) -> Dataset:
    """The images of a run, not normalised for its weights yet."""
    return data.load(config.data)
