"""The command line, called as a person calls it: inside this process, or as one of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from steppe.cli import main


def steppe(*arguments: object) -> int:
    """Call `steppe` with these arguments in this process; give its exit code."""
    with pytest.raises(SystemExit) as caught:
        main([str(a) for a in arguments])
    return int(caught.value.code or 0)


def launch(*arguments: object) -> subprocess.Popen[str]:
    """Start `steppe` as a process of its own, with one thread; what it says comes through one pipe."""
    command = [sys.executable, "-m", "steppe", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


def read_until(process: subprocess.Popen[str], text: str) -> None:
    """Wait until a process says this."""
    assert process.stdout
    for line in process.stdout:
        if text in line:
            return
    pytest.fail(f"never saw {text!r}")
