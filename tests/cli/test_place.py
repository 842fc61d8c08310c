"""Where images are kept, how they are read and who is told: options that change no result and no name."""

from __future__ import annotations

import json
import sqlite3

import numpy as np
import pytest
from commands import steppe
from PIL import Image

from steppe.runs import Run


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)


QUICK = ("--model", "resnet_tiny", "--batch-size", 256, "--epochs", 1)
FOLDER = ("--data", "photos", "--model", "resnet_tiny", "--batch-size", 8, "--epochs", 1)


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    for label in ("dark", "light"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(20):
            pixels = rng.integers(0, 128, (8, 8, 3)) + 100 * (label == "light")
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "photos" / label / f"{number}.png")


def test_how_images_are_kept_and_read_changes_nothing(photos, tmp_path):
    ways = {
        "memory": (),
        "off": ("--no-resident",),
        "cache": ("--keep", "cache", "--cache", "kept"),
        "small": ("--memory-limit", 1e-6, "--cache", "kept_too"),
        "stream": ("--keep", "stream", "--workers", 1),
    }
    for name, options in ways.items():
        assert steppe("train", *FOLDER, *options, "-o", name) == 0
    runs = {name: Run(tmp_path / name) for name in ways}
    assert len({run.config.hash for run in runs.values()}) == 1
    assert len({run.weights.read_bytes() for run in runs.values()}) == 1
    assert len({json.dumps(run.summary["test"]) for run in runs.values()}) == 1
    assert [len(list((tmp_path / kept).glob("*.npy"))) for kept in ("kept", "kept_too")] == [1, 1]


def test_a_way_to_keep_that_is_none(capsys):
    assert steppe("train", "--keep", "attic") == 2
    assert "stream" in capsys.readouterr().err


def test_a_tracker_from_the_command_line(capsys, tmp_path):
    assert steppe("train", *QUICK, "--track", "tensorboard", "-o", "r") == 0
    assert list((tmp_path / "r" / "tensorboard").glob("events.*"))
    assert steppe("train", *QUICK, "--track", "tensorbored") == 2
    assert "did you mean 'tensorboard'" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


STUDY = """
name = "mini"
[base]
batch_size = 8
data = { name = "photos" }
model = { name = "resnet_tiny" }
budget = { epochs = 1 }
[axes.how.base]
[axes.how.sam]
minimizer = { name = "sam" }
"""


@pytest.mark.long
def test_a_study_tracks_every_run_and_streams(photos, capsys, tmp_path):
    (tmp_path / "s.toml").write_text(STUDY)
    options = ("--track", "mlflow", "--keep", "cache", "--cache", "kept", "--readers", 1, "--workers", 2)
    assert steppe("study", "run", "s.toml", "-o", "st", *options) == 0
    with sqlite3.connect(tmp_path / "st" / "mlflow.db") as database:
        assert database.execute("select status from runs").fetchall() == [("FINISHED",), ("FINISHED",)]
    database.close()
    assert len(list((tmp_path / "kept").glob("*.npy"))) == 1


@pytest.mark.slow
def test_a_study_says_when_a_tracker_fails(photos, capsys, tmp_path, monkeypatch):
    (tmp_path / "s.toml").write_text(STUDY.replace('[axes.how.sam]\nminimizer = { name = "sam" }\n', ""))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/s.toml/mlflow.db")
    assert steppe("study", "run", "s.toml", "-o", "st", "--track", "mlflow") == 0
    assert "note: mlflow failed and is not told any more" in capsys.readouterr().out
    assert steppe("study", "run", "s.toml", "-o", "other", "--track", "mlfow") == 2
    assert not (tmp_path / "other" / "study.json").exists()
