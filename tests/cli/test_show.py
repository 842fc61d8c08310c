"""How progress looks on a terminal: bars come to their ends."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from steppe.cli import show
from steppe.cli.measuring_progress import MeasuringProgress
from steppe.cli.show import ReadingProgress, TrainingProgress, epoch_line, progress_bar
from steppe.config import RunConfig
from steppe.data.storage import Files
from steppe.runs import Run, create_run

RECORD = {"epoch": 3, "time_s": 1.0, "train_loss": 1.0, "val_loss": 1.0, "val_accuracy": 0.5, "lr": 0.1}


class Screen:
    """A terminal whose content can be read."""

    def __init__(self) -> None:
        self.file = io.StringIO()
        self.console = Console(file=self.file, force_terminal=True, width=140, color_system=None)

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.file.getvalue())


@pytest.fixture
def screen() -> Screen:
    return Screen()


def make_run(folder: Path, **budget: float) -> Run:
    return create_run(folder, RunConfig.model_validate({"budget": budget or {"epochs": 20}}))


def test_reading_bar_is_drawn_full_before_it_goes(screen):
    with progress_bar(screen.console) as bar:
        reading = ReadingProgress(bar)
        for done in (0, 64, 100):
            reading("reading images", done, 100)
    assert re.search("reading images .*100/100", screen.text)


def test_reading_bar_begins_again_for_the_next_images(screen):
    with progress_bar(screen.console) as bar:
        assert bar
        reading = ReadingProgress(bar)
        for total in (100, 50):
            for done in (0, total):
                reading("reading images", done, total)
        assert [(task.completed, task.total) for task in bar.tasks] == [(100, 100), (50, 50)]


def test_reading_of_images_is_told_to_its_end(tmp_path):
    for number in range(3):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
    told: list[tuple[int, int]] = []
    files = Files(tmp_path, tuple(sorted(tmp_path.iterdir())), 8)
    files.decode_all(np.empty(files.shape, np.uint8), lambda what, done, total: told.append((done, total)))
    assert told[-1] == (3, 3)


def test_training_bar_is_full_where_training_ends_early(screen, tmp_path):
    run = make_run(tmp_path / "r")
    with progress_bar(screen.console) as bar:
        shown = TrainingProgress(bar)
        shown.start(run, 20, 0)
        shown.step(7.0)
        shown.evaluate(50, 100)
        shown.evaluate(100, 100)
        shown.end(run, "finished")
        assert bar
        assert [(task.completed, task.total) for task in bar.tasks] == [(7, 7), (100, 100)]
    assert re.search("training .*7.0/7.0|training .*7/7", screen.text)


def test_training_bar_of_a_stopped_run_stays_where_it_is(screen, tmp_path):
    run = make_run(tmp_path / "r")
    with progress_bar(screen.console) as bar:
        shown = TrainingProgress(bar)
        shown.start(run, 20, 0)
        shown.step(7.0)
        shown.end(run, "stopped")
        assert bar
        assert (bar.tasks[0].completed, bar.tasks[0].total) == (7, 20)


def test_training_bar_goes_by_seconds_where_they_are_the_budget(screen, tmp_path):
    run = make_run(tmp_path / "r", seconds=30.0)
    with progress_bar(screen.console) as bar:
        shown = TrainingProgress(bar)
        shown.start(run, 1, 0)
        shown.epoch({**RECORD, "time_s": 12.0})
        shown.step(2.0)
        assert bar
        (task,) = bar.tasks
        assert task.total == 30
        assert 12 <= task.completed < 15


def test_training_that_begins_again_has_one_bar(screen, tmp_path):
    run = make_run(tmp_path / "r")
    with progress_bar(screen.console) as bar:
        shown = TrainingProgress(bar)
        shown.start(run, 20, 0)
        shown.start(run, 20, 2)
        assert bar
        assert [task.completed for task in bar.tasks] == [2]


def test_epoch_line_does_not_guess_the_number_of_epochs():
    assert epoch_line(RECORD, 20).startswith("epoch   3/20  ")
    assert epoch_line(RECORD, None).startswith("epoch   3  ")


def test_bar_of_a_measure_is_drawn_full_before_it_goes(screen):
    with progress_bar(screen.console) as bar, MeasuringProgress(bar, {}) as shown:
        shown("start", "scores", {})
        shown("part", "scores", {"done": 64, "total": 100})
        shown("done", "scores", {"top1": 0.5, "time_s": 1.0})
    assert re.search("scores .*64/64", screen.text)


def test_a_long_epoch_is_told_off_a_terminal(monkeypatch, capsys):
    shown = TrainingProgress(None)
    shown.total_epochs = 1.0
    shown.step(0.1)
    monkeypatch.setattr(show, "EPOCH_SILENCE_S", 0.0)
    shown.step(0.25)
    assert capsys.readouterr().out.splitlines() == ["epoch 0.25 of 1"]
