"""Real tiny runs: a ResNet and a ViT on digits, and a ResNet on a folder of colour photographs of several sizes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from steppe import data
from steppe.config import DataConfig, RunConfig
from steppe.train import train

CLASSES = ("blue & green", "red")


@pytest.fixture(scope="session")
def photos(tmp_path_factory) -> Path:
    """Two classes of noise around two colours: PNG and JPEG, of several shapes."""
    root = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for label, name in enumerate(CLASSES):
        (root / name).mkdir()
        for number in range(12):
            shape = (int(random.integers(24, 70)), int(random.integers(24, 70)), 3)
            pixels = random.integers(0, 120, shape).astype(np.uint8)
            pixels[..., 0 if label else slice(1, 3)] += 100
            Image.fromarray(pixels).save(root / name / f"{number:02d}.{'jpg' if number % 3 else 'png'}")
    return root


@pytest.fixture(scope="session")
def made(tmp_path_factory, photos) -> Path:
    """A folder with the runs resnet, vit and photos, each of one epoch."""
    folder = tmp_path_factory.mktemp("made")
    digits = data.load(DataConfig(name="digits"))
    for name, model in (("resnet", "resnet_tiny"), ("vit", "vit_tiny_p2")):
        values = {"model": {"name": model}, "batch_size": 128, "budget": {"epochs": 1}}
        train(RunConfig.model_validate(values), digits, folder / name)
    config = RunConfig.model_validate(
        {
            "data": {"name": str(photos), "image_size": 16, "stored_size": 24, "val_fraction": 0.3},
            "model": {"name": "resnet_tiny"},
            "batch_size": 4,
            "budget": {"epochs": 1},
        }
    )
    train(config, data.load(config.data), folder / "photos")
    return folder


@pytest.fixture
def runs(made, tmp_path) -> Path:
    """A copy of the runs that a test may spoil."""
    shutil.copytree(made, tmp_path / "runs")
    return tmp_path / "runs"
