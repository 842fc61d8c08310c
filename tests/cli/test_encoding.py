"""Terminals that cannot show our signs: the same words in ASCII, and no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import steppe

from steppe.cli import encoding


def said(name: str, *arguments: object) -> str:
    """Run `steppe` with its output in this encoding; give what it printed."""
    command = [sys.executable, "-m", "steppe", *map(str, arguments)]
    environment = {**os.environ, "PYTHONIOENCODING": name, "COLUMNS": "160", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr.decode(name, "replace")[-2000:]
    return done.stdout.decode(name)


@pytest.mark.parametrize("name", ["ascii", "cp1252"])
@pytest.mark.parametrize(
    ("arguments", "words"), [(("train", "--help"), "rho"), (("study", "show", "radius"), "SAM")], ids=["help", "study"]
)
def test_command_prints_in_an_encoding_without_our_signs(name, arguments, words):
    assert words in said(name, *arguments)


@pytest.fixture
def run(tmp_path) -> Path:
    folder = tmp_path / "ρ and Ω"
    flags = ("--model", "mlp_8", "--epochs", 1, "--batch-size", 256, "--device", "cpu")
    assert steppe("train", *flags, "-o", folder) == 0
    return folder


def test_path_that_cannot_be_encoded_is_written_in_ascii(run):
    assert "rho and Omega" in said("ascii", "report", run, "-o", run / "page.html")
    assert (run / "page.html").is_file()


def test_json_stays_exact_in_an_encoding_without_its_signs(run):
    found = json.loads(said("ascii", "predict", run, "--json", picture(run)))
    assert str(run) in json.dumps(found, ensure_ascii=False)


def picture(folder: Path) -> Path:
    import numpy as np
    from PIL import Image

    path = folder / "8.png"
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(path)
    return path


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ρ × λ ± 2 … ≤ Σ", "rho x lambda +/- 2 ... <= Sigma"),
        ("‖x‖₂ ← 10⁻³", "||x||2 <- 10-3"),
        ("┏━┓┃│└─┘", "+-+||+-+"),
        ("🙂 é", "\\U0001f642 \\xe9"),
        ("\udcff", "\\udcff"),
    ],
)
def test_sign_has_its_name_or_its_code(text, shown):
    encoding.write_any_text()
    assert text.encode("ascii", encoding.NAME).decode() == shown
