"""Small runs for the commands that measure."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from commands import steppe


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """A folder with runs of a ViT (two seeds) and of a ResNet."""
    folder = tmp_path_factory.mktemp("made")
    quick = ("--batch-size", 256, "--epochs", 1)
    assert steppe("train", "--model", "vit_tiny_p2", *quick, "-o", folder / "vit") == 0
    assert steppe("train", "--model", "vit_tiny_p2", *quick, "--seed", 1, "-o", folder / "vit1") == 0
    assert steppe("train", "--model", "resnet_tiny", *quick, "-o", folder / "resnet") == 0
    return folder


@pytest.fixture
def runs(made, tmp_path) -> Path:
    shutil.copytree(made, tmp_path / "runs")
    return tmp_path / "runs"
