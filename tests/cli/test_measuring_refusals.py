"""What `steppe geometry` refuses, and that it measures the rest."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from commands import steppe

from steppe.geometry.measures import MEASURES
from steppe.runs import Run, locked


@pytest.fixture(autouse=True)
def wide(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)


def _image_file(seed: int) -> None:
    images = np.random.default_rng(seed).integers(0, 256, (60, 8, 8), np.uint8)
    np.savez("ten.npz", x_train=images, y_train=np.arange(60) % 10)


def test_weights_and_data_that_changed_under_their_name_are_refused(runs, capsys, tmp_path):
    shutil.copy(runs / "vit" / "weights.safetensors", "w.safetensors")
    _image_file(0)
    arguments = ("--model", "vit_tiny_p2", "--weights", "w.safetensors", "--data", "ten.npz")
    only = ("--only", "missing_rate", "-o", "m")
    assert steppe("geometry", *arguments, *only) == 0
    stamp = (tmp_path / "m" / "geometry.json").read_bytes()
    shutil.copy(runs / "vit1" / "weights.safetensors", "w.safetensors")
    capsys.readouterr()
    assert steppe("geometry", *arguments, *only) == 2
    found = capsys.readouterr()
    assert "the weights w.safetensors have changed since they were measured here" in " ".join(found.err.split())
    assert "--out" in found.err
    assert "found before" not in found.out
    shutil.copy(runs / "vit" / "weights.safetensors", "w.safetensors")
    _image_file(1)
    assert steppe("geometry", *arguments, *only) == 2
    assert "the data 'ten.npz' have changed since" in " ".join(capsys.readouterr().err.split())
    _image_file(0)
    assert steppe("geometry", *arguments, *only) == 0
    assert "found before" in capsys.readouterr().out, "the same file again"
    assert (tmp_path / "m" / "geometry.json").read_bytes() == stamp


def test_results_from_before_digests_were_kept_are_still_found(runs, capsys, tmp_path):
    arguments = ("--model", "vit_tiny_p2", "--weights", runs / "vit", "--data", "digits", "-o", "m")
    assert steppe("geometry", *arguments, "--only", "missing_rate") == 0
    subject = tmp_path / "m" / "subject.json"
    whole = json.loads(subject.read_text())
    subject.write_text(json.dumps({key: whole[key] for key in ("model", "weights", "data", "image_size")}))
    assert steppe("geometry", *arguments, "--only", "missing_rate") == 0
    assert "found before" in capsys.readouterr().out
    assert json.loads(subject.read_text()) == whole, "and from now on they are"


def test_a_run_that_a_measure_means_nothing_for_does_not_stop_the_others(runs, capsys):
    assert steppe("geometry", runs, "--only", "attention,missing_rate", "--set", "missing_rate.examples=40") == 2
    found = capsys.readouterr()
    for name in ("vit", "vit1"):
        assert {"attention", "missing_rate"} <= set(Run(runs / name).read("geometry.json"))
    measured = Run(runs / "resnet").read("geometry.json")
    assert "missing_rate" in measured, "the other measure of the same run"
    assert "attention" not in measured
    said = " ".join(found.err.split())
    assert f"{runs / 'resnet'}: attention could not be measured: a SmallResNet has no attention" in said
    assert "1 of 3 runs could not be measured" in said
    assert any(line.split()[:1] == ["resnet"] for line in found.out.splitlines()), "and they stand side by side"


def test_a_measure_that_is_refused_does_not_stop_those_after_it(runs, capsys):
    wrong = ("--quick", "--set", "lambda_max.top=21", "--set", "missing_rate.examples=40")
    assert steppe("geometry", runs / "vit", "--only", "lambda_max,missing_rate", *wrong) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert "lambda_max could not be measured: 12 iterations of Lanczos do not find 21" in err
    assert str(runs / "vit") in err
    assert "missing_rate" in Run(runs / "vit").read("geometry.json")
    assert steppe("geometry", runs / "resnet", "--only", "lambda_max,missing_rate,attention", *wrong) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert "lambda_max could not be measured" in err
    assert "attention could not be measured" in err
    assert "2 measures could not be made" in err


def test_a_run_in_use_does_not_stop_the_others(runs, capsys):
    with locked(runs / "resnet", "run"):
        assert steppe("geometry", runs, "--only", "missing_rate", "--set", "missing_rate.examples=40") == 2
    assert str(runs / "resnet") in capsys.readouterr().err
    for name in ("vit", "vit1"):
        assert "missing_rate" in Run(runs / name).read("geometry.json")


def test_a_second_run_that_is_none_is_said_once(runs, capsys):
    assert steppe("geometry", runs, "--only", "missing_rate", "--with", "nowhere") == 2
    found = capsys.readouterr()
    assert found.err.count("not a run folder") == 1
    assert not found.out


def test_nothing_to_measure(capsys):
    assert steppe("evaluate") == 2
    assert "nothing to measure" in capsys.readouterr().err
    assert steppe("evaluate", "--list") == 0
    assert "corruptions" in capsys.readouterr().out


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError(),
    ],
    ids=["cuda", "cpu", "cublas", "python"],
)
def test_memory_that_runs_out_beyond_help_is_no_traceback(runs, capsys, monkeypatch, error):
    def raise_it(*_):
        raise error

    monkeypatch.setitem(MEASURES, "norms", replace(MEASURES["norms"], function=raise_it))
    assert steppe("geometry", runs / "vit", "--only", "norms") == 2
    assert "the memory ran out" in capsys.readouterr().err
