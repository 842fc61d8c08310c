"""The examples run and learn something."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def examples_on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))


@pytest.mark.parametrize("name", ["plain_loop", "amp_and_accumulation"])
def test_example(name):
    assert importlib.import_module(name).main(epochs=3) > 0.7


@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_lightning_example():
    pytest.importorskip("lightning", reason="the example is for users of Lightning")
    assert importlib.import_module("lightning_module").main(epochs=3) > 0.7


def test_distributed_example():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = EXAMPLES / "distributed.py"
    unseen = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # two processes of gloo would share one GPU
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, timeout=120, check=False, env=unseen)
    assert done.returncode == 0, done.stderr[-3000:]
    accuracy = float(done.stdout.strip().rsplit(" ", 1)[-1])
    assert accuracy > 0.7
