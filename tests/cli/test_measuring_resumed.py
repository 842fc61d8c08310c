"""What a killed measurement leaves is used by the next, and ends alike."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import steppe

from steppe.runs import Run


@pytest.fixture(autouse=True)
def wide(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)


SMALL = ("--quick", "--set", "landscape.points=4", "--set", "landscape.examples=20", "--set", "line.points=3")


def _kill_in_the_middle(command: list[str], partial: Path) -> dict:
    """Start a command, kill it once a part of its result is there, and give that."""
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not partial.exists():
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return json.loads(partial.read_text())


def test_a_killed_landscape_goes_on_and_ends_alike(runs):
    arguments = ("--only", "landscape", "--set", "landscape.points=12", "--set", "landscape.examples=100")
    command = [sys.executable, "-m", "steppe", "geometry", str(runs / "vit"), *arguments]
    partial = runs / "vit" / "geometry.partial.json"
    kept = _kill_in_the_middle(command, partial)
    assert "landscape" not in Run(runs / "vit").read("geometry.json")
    rows = kept["landscape"]["found"]
    assert 0 < sum(map(len, rows)) < 12**2
    shutil.copytree(runs / "vit", runs / "whole")
    (runs / "whole" / "geometry.partial.json").unlink()
    right = rows[0][0]
    rows[0][0] = 123.0  # a mark: what is kept is not measured again
    partial.write_text(json.dumps(kept))
    assert steppe("geometry", runs / "vit", *arguments) == 0
    assert steppe("geometry", runs / "whole", *arguments) == 0
    resumed, whole = (Run(runs / name).read("geometry.json")["landscape"] for name in ("vit", "whole"))
    assert resumed["loss"][0][0] == 123.0
    resumed["loss"][0][0] = right
    assert resumed.pop("rise") > whole.pop("rise") + 0.5, "the mark is in the mean too"
    assert resumed == whole
    assert not partial.exists()


@pytest.mark.long
def test_a_killed_corruption_table_goes_on_and_ends_alike(runs):
    arguments = ("--only", "corruptions")
    command = [sys.executable, "-m", "steppe", "evaluate", str(runs / "vit"), *arguments]
    partial = runs / "vit" / "robustness.partial.json"
    kept = _kill_in_the_middle(command, partial)
    rows = kept["corruptions"]["found"]
    assert 0 < len(rows) < 19
    shutil.copytree(runs / "vit", runs / "whole")
    (runs / "whole" / "robustness.partial.json").unlink()
    first = next(iter(rows))
    right = list(rows[first]["accuracy"])
    rows[first]["accuracy"][0] = 123.0  # a mark: what is kept is not measured again
    partial.write_text(json.dumps(kept))
    assert steppe("evaluate", runs / "vit", *arguments) == 0
    assert steppe("evaluate", runs / "whole", *arguments) == 0
    resumed, whole = (Run(runs / name).read("robustness.json")["corruptions"] for name in ("vit", "whole"))
    assert resumed["table"][first][0] == 123.0
    assert {**resumed["table"], first: right} == whole["table"]
    assert list(resumed["table"]) == list(whole["table"])
    assert not partial.exists()


@pytest.mark.long
def test_a_killed_eigenvalue_goes_on_with_the_next_part_and_ends_alike(runs):
    arguments = ("--only", "lambda_max", "--quick", "--set", "lambda_max.parts=head,whole,attention,mlp,block1")
    command = [sys.executable, "-m", "steppe", "geometry", str(runs / "vit"), *arguments]
    partial = runs / "vit" / "geometry.partial.json"
    kept = _kill_in_the_middle(command, partial)
    parts = kept["lambda_max"]["found"]
    assert "head" in parts
    shutil.copytree(runs / "vit", runs / "whole")
    (runs / "whole" / "geometry.partial.json").unlink()
    right = parts["head"]["lambda_max"]["value"]
    parts["head"]["lambda_max"]["value"] = 123.0  # a mark: what is kept is not measured again
    partial.write_text(json.dumps(kept))
    assert steppe("geometry", runs / "vit", *arguments) == 0
    assert steppe("geometry", runs / "whole", *arguments) == 0
    resumed, whole = (Run(runs / name).read("geometry.json")["lambda_max"] for name in ("vit", "whole"))
    assert resumed["parts"]["head"]["lambda_max"]["value"] == 123.0
    resumed["parts"]["head"]["lambda_max"]["value"] = right
    assert resumed == whole
    assert not partial.exists()


def test_partial_results_from_before_a_setting_was_added_are_used_and_forgotten(runs):
    asked = ("--only", "line", *(word for size in ("points=3", "examples=20") for word in ("--set", f"line.{size}")))
    assert steppe("geometry", runs / "vit1", *asked) == 0
    settings = Run(runs / "vit1").read("geometry.json")["line"]["settings"]
    old = {"settings": {key: value for key, value in settings.items() if key != "batch"}, "found": [123.0]}
    partial = runs / "vit" / "geometry.partial.json"
    partial.write_text(json.dumps({"line": old}))
    assert steppe("geometry", runs / "vit", *asked) == 0
    assert Run(runs / "vit").read("geometry.json")["line"]["loss"][0] == 123.0
    assert not partial.exists()


def test_partial_results_of_other_settings_are_not_used(runs):
    wrong = {"settings": {"points": 4}, "found": [[123.0] * 4]}
    (runs / "vit" / "geometry.partial.json").write_text(json.dumps({"landscape": wrong}))
    assert steppe("geometry", runs / "vit", *SMALL, "--only", "landscape") == 0
    assert Run(runs / "vit").read("geometry.json")["landscape"]["loss"][0][0] != 123.0
    left = json.loads((runs / "vit" / "geometry.partial.json").read_text())
    assert left == {"landscape": wrong}, "and not lost: who asks for those settings goes on with them"
