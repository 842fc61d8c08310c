"""Named pipes, devices and files without end are refused, not waited for, wherever steppe reads."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from commands import steppe
from PIL import Image

from steppe import data
from steppe.config import DataConfig, MeasureConfig, RunConfig, load_run_config
from steppe.errors import ConfigError, DataError, RunError
from steppe.plain_files import NotPlainError, check_plain, open_plain, read_plain, read_plain_text
from steppe.report.results_page import read_benchmarks
from steppe.runs import read_json
from steppe.search.journal import open_journal
from steppe.studies import execute

LIMIT_S = 60


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """End a test that waits for a pipe, or reads without end."""

    def end(number: int, frame: object) -> None:
        raise AssertionError(f"it still waits after {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    config = RunConfig.model_validate({"model": {"name": "mlp_8"}, "batch_size": 512, "budget": {"epochs": 1}})
    execute(config, folder, device="cpu", measure=MeasureConfig(noise_draws=2, noise_examples=50))
    return folder


def test_a_plain_file_is_read(tmp_path):
    (tmp_path / "x").write_bytes("naïve".encode())
    (tmp_path / "link").symlink_to("x")
    assert read_plain(tmp_path / "x") == read_plain(tmp_path / "link") == "naïve".encode()
    assert read_plain_text(str(tmp_path / "x")) == "naïve"


def test_a_named_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "x")
    with pytest.raises(NotPlainError, match="not a plain file but a named pipe"):
        open_plain(tmp_path / "x")


def test_a_link_to_a_device_is_refused(tmp_path):
    (tmp_path / "x").symlink_to("/dev/zero")
    with pytest.raises(NotPlainError, match="not a plain file but a device"):
        read_plain(tmp_path / "x")


def test_a_socket_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the name of a socket may not be long
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("x")
        with pytest.raises(NotPlainError, match="socket"):
            check_plain("x")


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(IsADirectoryError):
        read_plain(tmp_path)


def test_a_file_that_is_too_large_is_refused(tmp_path):
    with open(tmp_path / "x", "wb") as file:
        file.truncate(2**20 + 1)
    with pytest.raises(NotPlainError, match="too large: at most 1 MiB"):
        read_plain(tmp_path / "x", 2**20)


@pytest.mark.parametrize(
    "name",
    [
        "summary.json",
        "data.json",
        "env.json",
        "cost.json",
        "geometry.json",
        "robustness.json",
        "calibration.json",
        "metrics.jsonl",
    ],
)
@pytest.mark.parametrize("kind", ["pipe", "zero"])
def test_a_report_waits_for_no_special_file_of_a_run(made, tmp_path, kind, name):
    run = tmp_path / "run"
    shutil.copytree(made, run)
    (run / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(run / name)
    else:
        (run / name).symlink_to("/dev/zero")
    assert steppe("report", run, "-o", tmp_path / "page.html") in (0, 2)
    assert steppe("predict", run, "--no-calibrate", tmp_path) == 2  # there is no image


def test_json_that_is_a_pipe_is_told(tmp_path):
    os.mkfifo(tmp_path / "x.json")
    with pytest.raises(RunError, match="not a plain file but a named pipe"):
        read_json(tmp_path / "x.json")


def test_a_configuration_that_is_a_pipe_is_told(tmp_path, capsys):
    os.mkfifo(tmp_path / "run.toml")
    assert steppe("train", tmp_path / "run.toml", "-o", tmp_path / "run") == 2
    assert "not a plain file but a named pipe" in capsys.readouterr().err
    assert steppe("study", "show", tmp_path / "run.toml") == 2


def test_a_configuration_without_end_is_told(tmp_path):
    (tmp_path / "run.toml").symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="a device"):
        load_run_config(tmp_path / "run.toml")


def test_a_run_whose_configuration_is_a_pipe_is_passed_over(made, tmp_path, capsys):
    shutil.copytree(made, tmp_path / "runs" / "good")
    (tmp_path / "runs" / "bad").mkdir()
    os.mkfifo(tmp_path / "runs" / "bad" / "config.toml")
    assert steppe("report", tmp_path / "runs", "-o", tmp_path / "page.html") == 0
    assert "passed over" in capsys.readouterr().err


def test_arrays_that_are_a_pipe_are_told(tmp_path):
    os.mkfifo(tmp_path / "x.npz")
    with pytest.raises(DataError, match="not a plain file but a named pipe"):
        data.load(DataConfig(name=str(tmp_path / "x.npz")))


def test_a_journal_that_is_a_pipe_is_told(tmp_path):
    pytest.importorskip("optuna")
    os.mkfifo(tmp_path / "optuna.journal")
    with pytest.raises(RunError, match="not a plain file but a named pipe"):
        open_journal(tmp_path)


def test_a_benchmark_that_is_a_pipe_is_told(tmp_path):
    os.mkfifo(tmp_path / "x.csv")
    with pytest.raises(RunError, match="not a plain file but a named pipe"):
        read_benchmarks(tmp_path)


def test_an_image_that_is_a_pipe_is_left_out(tmp_path):
    for label in "ab":
        (tmp_path / label).mkdir()
        for number in range(4):
            Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(tmp_path / label / f"{number}.png")
    os.mkfifo(tmp_path / "a" / "x.png")
    found = data.load(DataConfig(name=str(tmp_path)))
    assert len(found.train) + len(found.val) + len(found.test) == 8


def test_an_image_that_became_a_pipe_is_told(tmp_path):
    os.mkfifo(tmp_path / "x.png")
    pixels, _, problem = data.storage.decode(tmp_path / "x.png", 8)
    assert pixels is None
    assert problem == "this is not a plain file but a named pipe"
