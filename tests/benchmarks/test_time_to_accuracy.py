"""The benchmark of seconds to an accuracy: what it reads, and a rehearsal of it on a CPU."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PEER = """
import sys, torch
with open(sys.argv[0]) as f:
    f.read()
data = torch.load("cifar10/train.pt")
assert data["images"].shape == (40, 32, 32, 3) and data["images"].dtype == torch.uint8, data["images"].shape
assert len(data["labels"]) == 40 and len(data["classes"]) == 10
print("----")
print("|  run     |  epoch  |  train_acc  |  val_acc  |  tta_val_acc  |  time_seconds  |")
for run in ["warmup", *range(200)]:
    print(f"|  {run}  |  0  |  0.5  |  0.4  |    |  0.1  |")
    print(f"|    |  eval  |  0.5  |  0.9{run if run != 'warmup' else 0}  |  0.95  |  1.5  |")
    print("----")
"""
RECIPE = """
batch_size = 256
data = { name = "digits", fraction = 0.4 }
model = { name = "resnet_tiny" }
budget = { epochs = 1 }
test = { tta = "flip" }
[recipe]
title = "tiny"
"""


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import time_to_accuracy

    return time_to_accuracy


def test_the_printed_table_of_a_peer_is_read(benchmark):
    head = "|  run     |  epoch  |  train_acc  |  val_acc  |  tta_val_acc  |  total_time_seconds  |"
    rows = ["|  0  |  1  |  0.80  |  0.81  |    |  0.7  |", "|    |  eval  |  0.99  |  0.93  |  0.9401  |  1.7310  |"]
    warmup = [rows[0].replace("|  0  |", "|  warmup  |"), rows[1]]
    (found,) = benchmark.read_table(["Proxy parameters: 3", head, *warmup, "-----", *rows])
    assert (found.accuracy, found.plain, found.train_s) == pytest.approx((94.01, 93.0, 1.731))


def test_targets_are_read_from_names(benchmark):
    names = {"cifar10-94": "94", "cifar100-75": "75", "airbench94_muon": "94", "airbench96_faster": "96"}
    assert {name: benchmark.target_of(name) for name in names} == names
    assert benchmark.target_of("cifar10-resnet18") == benchmark.target_of("cifar10-wrn-28-10") == ""


def test_a_minimizer_is_named_or_written_out(benchmark):
    found = benchmark.read_minimizers(["sam", "Muon=optimizer=adamw,lr=0.02,nesterov=false"])
    assert found["sam"] == {"minimizer": {"name": "sam"}}
    assert found["Muon"] == {"optimizer": {"name": "adamw", "lr": 0.02, "nesterov": False}}
    with pytest.raises(SystemExit, match="unknown minimizer"):
        benchmark.read_minimizers(["sem"])


def test_rehearsal_appends_a_row_for_every_peer_and_minimizer(tmp_path):
    random = np.random.default_rng(0)
    images = {f"x_{split}": random.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8) for split in ("train", "test")}
    np.savez(tmp_path / "cifar10.npz", **images, y_train=np.arange(40) % 10, y_test=np.arange(40) % 10)
    (tmp_path / "bench94.py").write_text(PEER)
    (tmp_path / "tiny-50.toml").write_text(RECIPE)
    out = tmp_path / "rows.csv"
    command = [sys.executable, str(BENCHMARKS / "time_to_accuracy.py"), str(tmp_path / "tiny-50.toml")]
    command += ["--runs", "2", "--minimizers", "recipe", "sam", "--device", "cpu", "--data-root", str(tmp_path)]
    command += ["--peer", f"bench94={tmp_path}", "--peer", "away=/nowhere", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "away is left out" in done.stdout
    with out.open() as file:
        peer, plain, sam = csv.DictReader(file)
    assert (peer["who"], peer["target"], peer["runs"], peer["minimizer"]) == ("bench94", "94", "2", "its own")
    assert (float(peer["accuracy_mean"]), float(peer["train_s_mean"]), peer["wall_s_mean"]) == (95, 1.5, "")
    assert (plain["who"], plain["target"], plain["minimizer"], sam["minimizer"]) == (
        "steppe:tiny-50",
        "50",
        "base",
        "sam",
    )
    assert 0 < float(plain["train_s_mean"]) < float(plain["wall_s_mean"])
    assert plain["accuracy_mean"] != plain["accuracy_plain_mean"], "a mirrored digit is another digit"
