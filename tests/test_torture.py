"""The torture suite at its smallest: a handful of kills and some hundred fuzzed inputs; `make torture` is the whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def torture(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torture", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)


@pytest.mark.long
def test_a_handful_of_each(tmp_path):
    out = tmp_path / "account.md"
    done = torture("--kills", 4, "--fuzz", 500, "--files", 500, "--only", "kills,fuzz,hostile", "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    account = out.read_text()
    assert "**0 failures.**" in account
    assert "| SIGKILLs that hit a live process | 4 |" in account
    assert account.startswith("# Reliability")


@pytest.mark.long
def test_searches_are_killed():
    done = torture("--kills", 6, "--killed", "fit", "--only", "kills")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| SIGKILLs that hit a live process | 6 |" in done.stdout
    assert "| kills of fit, a budget of epochs | 4 |" in done.stdout


def test_an_unknown_part_is_told():
    done = torture("--only", "kils")
    assert done.returncode == 2
    assert "unknown part 'kils'" in done.stderr
