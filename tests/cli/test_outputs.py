"""What -o names is replaced where it is an earlier output of the same kind, and else left alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import steppe
from PIL import Image

from steppe.config import MeasureConfig, RunConfig
from steppe.errors import RunError
from steppe.runs import json_of
from steppe.studies import execute

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    config = RunConfig.model_validate({"model": {"name": "vit_tiny_p2"}, "batch_size": 512, "budget": {"epochs": 1}})
    execute(config, folder, device="cpu", measure=MeasureConfig(noise_draws=2, noise_examples=50))
    return folder


@pytest.fixture(autouse=True)
def run(made, tmp_path, monkeypatch) -> Path:
    """A run, and a picture beside it."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, "run")
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save("x.png")
    return Path("run")


COMMANDS = {
    "compare": ("compare", "run", "run"),
    "predict as JSON": ("predict", "run", "x.png", "--no-calibrate", "--format", "json"),
    "predict as CSV": ("predict", "run", "x.png", "--no-calibrate", "--format", "csv"),
    "predict as a table": ("predict", "run", "x.png", "--no-calibrate", "--format", "table"),
    "report": ("report", "run"),
}


@pytest.mark.parametrize("name", ["run/weights.safetensors", "run/summary.json", "run/config.toml", "x.png"])
@pytest.mark.parametrize("command", COMMANDS)
def test_another_file_is_not_replaced(command, name, capsys):
    before = Path(name).read_bytes()
    assert steppe(*COMMANDS[command], "-o", name) == 2
    assert "--force" in capsys.readouterr().err
    assert Path(name).read_bytes() == before


@pytest.mark.parametrize("command", COMMANDS)
def test_an_earlier_output_is_replaced(command):
    assert steppe(*COMMANDS[command], "-o", "out") == 0
    first = Path("out").read_bytes()
    assert steppe(*COMMANDS[command], "-o", "out") == 0
    assert len(Path("out").read_bytes()) == len(first)


@pytest.mark.parametrize("command", COMMANDS)
def test_with_force_any_file_is_replaced(command):
    Path("out").write_bytes(b"notes")
    assert steppe(*COMMANDS[command], "-o", "out", "--force") == 0
    assert Path("out").read_bytes() != b"notes"


def test_an_output_of_another_kind_is_not_replaced(capsys):
    assert steppe(*COMMANDS["compare"], "-o", "out.json") == 0
    assert steppe("predict", "run", "x.png", "--no-calibrate", "-o", "out.json") == 2
    assert "this file is there already, and is not a file of predictions" in capsys.readouterr().err
    assert json.loads(Path("out.json").read_text())["made_by"] == "steppe compare"


@pytest.mark.parametrize("kind", ["png", "pdf"])
def test_a_drawing_of_attention_replaces_a_drawing_alone(kind, capsys):
    command = ("predict", "run", "x.png", "--no-calibrate", "--attention")
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(f"photo.{kind}")
    before = Path(f"photo.{kind}").read_bytes()
    assert steppe(*command, f"photo.{kind}") == 2
    assert "not a drawing of attention" in capsys.readouterr().err
    assert Path(f"photo.{kind}").read_bytes() == before
    assert steppe(*command, f"drawn.{kind}") == 0
    assert steppe(*command, f"drawn.{kind}") == 0
    assert steppe(*command, f"photo.{kind}", "--force") == 0
    assert Path(f"photo.{kind}").read_bytes() != before


def test_a_page_of_results_replaces_such_a_page_alone(capsys):
    shutil.copytree(ROOT / "results" / "weight-decay-laptop", "results/weight-decay-laptop")
    Path("docs").mkdir()
    Path("docs/index.md").write_text("# Mine\n")
    assert steppe("study", "publish", "results", "-o", "docs/index.md") == 2
    assert "not a page of results" in capsys.readouterr().err
    assert Path("docs/index.md").read_text() == "# Mine\n"
    assert steppe("study", "publish", "results", "-o", "docs/results.md") == 0
    assert steppe("study", "publish", "results", "-o", "docs/results.md") == 0


def test_symmetry_writes_into_a_folder_of_its_own(capsys):
    assert steppe("symmetry", "-o", "run", "--steps", 2) == 2
    assert "this folder holds something else" in capsys.readouterr().err
    Path("own").mkdir()
    Path("own/symmetry.json").write_text('{"mine": 1}')
    assert steppe("symmetry", "-o", "own", "--steps", 2) == 2
    assert Path("own/symmetry.json").read_text() == '{"mine": 1}'


def test_an_empty_file_is_replaced(tmp_path):
    (tmp_path / "x").touch()
    json_of("a thing", "steppe thing").write(tmp_path / "x", '{"made_by": "steppe thing"}')
    assert (tmp_path / "x").stat().st_size


def test_a_folder_is_not_replaced_even_by_force(tmp_path):
    with pytest.raises(RunError, match="not a plain file"):
        json_of("a thing", "steppe thing").check(tmp_path, force=True)
