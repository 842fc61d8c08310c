from __future__ import annotations

import sys

import pytest
import torch

from steppe.train.environment import describe_environment


@pytest.mark.parametrize(
    ("program", "environment", "expected"),
    [
        ("/home/me/.venv/bin/steppe", {}, ["steppe"]),
        ("/home/me/src/steppe/__main__.py", {}, ["steppe"]),
        ("/home/me/scan.py", {}, ["scan.py"]),
        (
            "/home/me/src/steppe/__main__.py",
            {"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"},
            ["torchrun", "--nproc-per-node=2", "-m", "steppe"],
        ),
        (
            "/home/me/src/steppe/__main__.py",
            {"TORCHELASTIC_RUN_ID": "7", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"},
            ["torchrun", "--nnodes=2", "--nproc-per-node=4", "-m", "steppe"],
        ),
    ],
)
def test_the_command_is_one_that_can_be_typed(monkeypatch, program, environment, expected):
    for name in ("TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", [program, "train", "--data", "digits"])
    assert describe_environment(torch.device("cpu"))["command"] == [*expected, "train", "--data", "digits"]
