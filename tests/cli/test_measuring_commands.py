"""`steppe evaluate`, `steppe geometry` and `steppe symmetry` as a person meets them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from steppe.cli import main
from steppe.runs import Run


def steppe(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(a) for a in arguments])
    return int(caught.value.code or 0)


@pytest.fixture(autouse=True)
def wide(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with runs of a ViT (two seeds) and of a ResNet."""
    folder = tmp_path_factory.mktemp("made")
    quick = ("--batch-size", 256, "--epochs", 1)
    assert steppe("train", "--model", "vit_tiny_p2", *quick, "-o", folder / "vit") == 0
    assert steppe("train", "--model", "vit_tiny_p2", *quick, "--seed", 1, "-o", folder / "vit1") == 0
    assert steppe("train", "--model", "resnet_tiny", *quick, "-o", folder / "resnet") == 0
    return folder


@pytest.fixture
def runs(made, tmp_path) -> Path:
    shutil.copytree(made, tmp_path / "runs")
    return tmp_path / "runs"


SMALL = ("--quick", "--set", "landscape.points=4", "--set", "landscape.examples=20", "--set", "line.points=3")
DRAWN = ("--only", "noise,line,landscape,between,attention")
FEW = ("--quick", "--set", "corruptions.examples=8", "--set", "attacks.examples=16", "--set", "attacks.check=8")


def test_a_figure_that_takes_the_place_of_another_says_so(runs, capsys):
    only = ("--only", "missing_rate", "--set")
    assert steppe("geometry", runs / "vit", *only, "missing_rate.examples=60") == 0
    assert "replaces" not in capsys.readouterr().out
    assert steppe("geometry", runs / "vit", *only, "missing_rate.examples=40") == 0
    assert "note: missing_rate: this replaces the figure with examples=60" in capsys.readouterr().out


def test_geometry_adds_to_a_run_and_does_not_measure_twice(runs, capsys):
    before = Run(runs / "vit").read("geometry.json")
    assert steppe("geometry", runs / "vit", *SMALL, *DRAWN, "--with", runs / "vit1") == 0
    out = capsys.readouterr().out
    assert "noise: " in out
    assert "(found before)" in out, "training measured the noise with these settings"
    found = Run(runs / "vit").read("geometry.json")
    assert found["noise_loss"] == before["noise_loss"]
    assert found["landscape"]["settings"] == {
        "points": 4,
        "radius": 1.0,
        "examples": 20,
        "seed": 0,
        "loss": "cross_entropy",
        "batchnorm": "kept",
        "directions": "random",
    }
    assert found["landscape"]["made_on"] == {"device": "cpu", "torch": torch.__version__, "precision": "float32"}
    assert len(found["attention"]["last_layer"]) == 8
    assert found["between"]["settings"]["with"] == str(runs / "vit1")
    made = {path.name for path in (runs / "vit" / "figures").iterdir()}
    assert made == {f"{n}.{k}" for n in ("line", "landscape", "between", "attention") for k in ("png", "pdf")}
    assert not list((runs / "vit").glob("*.partial.json"))

    stamp = (runs / "vit" / "geometry.json").read_bytes()
    assert steppe("geometry", runs / "vit", *SMALL, *DRAWN, "--with", runs / "vit1") == 0
    assert capsys.readouterr().out.count("(found before)") == 5
    assert (runs / "vit" / "geometry.json").read_bytes() == stamp
    assert steppe("geometry", runs / "vit", *SMALL, "--only", "line", "--again") == 0
    assert "found before" not in capsys.readouterr().out
    assert (runs / "vit" / "geometry.json").read_bytes() == stamp, "the same figure, to the bit"
    assert steppe("geometry", runs / "vit", *SMALL, "--only", "line", "--set", "line.radius=0.5") == 0
    changed = Run(runs / "vit").read("geometry.json")
    assert changed["line"]["steps"] == [-0.5, 0.0, 0.5]
    assert changed["landscape"] == found["landscape"]


def test_evaluate_adds_to_a_run(runs, capsys):
    assert steppe("evaluate", runs / "vit", *FEW) == 0
    out = capsys.readouterr().out
    assert "variants: passed over" in out
    run = Run(runs / "vit")
    found = run.read("robustness.json")
    assert found["scores"]["top1"] == run.summary["test"]["accuracy"]
    assert found["scores"]["nll"] == pytest.approx(run.summary["test"]["loss"], rel=1e-5)
    assert len(found["corruptions"]["table"]) == 19
    assert found["attacks"]["settings"]["epsilon"] == pytest.approx(2 / 255)
    assert found["attacks"]["pgd"] <= found["attacks"]["clean"]
    assert found["attacks"]["check"]["examples"] == 8
    made = {path.stem for path in (runs / "vit" / "figures").iterdir()}
    assert made == {"calibration", "confusion", "corruptions"}
    assert steppe("evaluate", runs / "resnet", *FEW, "--only", "attacks", "--with", runs / "vit") == 0
    assert "transfer" in Run(runs / "resnet").read("robustness.json")["attacks"]["check"]


def test_a_model_without_attention_is_passed_over_unless_asked_for(runs, capsys):
    assert steppe("geometry", runs / "resnet", *SMALL) == 0
    assert "attention: passed over: a SmallResNet has no attention" in capsys.readouterr().out
    assert steppe("geometry", runs / "resnet", *SMALL, "--only", "attention") == 2
    assert "choose a vision transformer" in capsys.readouterr().err


def test_weights_from_elsewhere(runs, capsys, tmp_path):
    arguments = ("--model", "vit_tiny_p2", "--weights", runs / "vit", "--data", "digits", "-o", "m")
    assert steppe("evaluate", *arguments, "--only", "scores") == 0
    elsewhere = json.loads((tmp_path / "m" / "robustness.json").read_text())
    assert elsewhere["scores"]["top1"] == Run(runs / "vit").summary["test"]["accuracy"]
    assert steppe("geometry", *arguments, "--only", "line", *SMALL) == 0
    assert (tmp_path / "m" / "figures" / "line.pdf").is_file()
    other = ("--model", "vit_tiny_p2", "--weights", runs / "vit1", "--data", "digits", "-o", "m")
    assert steppe("geometry", *other) == 2
    assert "holds something else" in capsys.readouterr().err
    np.savez("five.npz", x_train=np.zeros((50, 8, 8), np.uint8), y_train=np.arange(50) % 5)
    assert steppe("geometry", "--model", "vit_tiny_p2", "--weights", runs / "vit", "--data", "five.npz") == 2
    assert "is not one of 5 classes" in capsys.readouterr().err


def _damage_weights(run: Path) -> None:
    state = load_file(run / "weights.safetensors")
    state["head.bias"][0] = torch.nan
    save_file(state, run / "weights.safetensors")


@pytest.mark.parametrize(
    ("spoil", "arguments", "said"),
    [
        (lambda r: (r / "weights.safetensors").unlink(), (), "has no weights"),
        (_damage_weights, (), "NaN or infinity, in 'head.bias'"),
        (lambda r: (r / "weights.safetensors").write_bytes(b"x"), (), "weights cannot be read"),
        (lambda r: shutil.rmtree(r), (), "not a run folder"),
        (lambda r: None, ("--only", "landscpe"), "did you mean 'landscape'"),
        (lambda r: None, ("--set", "landscape.pints=3"), "did you mean 'points'"),
        (lambda r: None, ("--only", "landscape", "--set", "landscape.points=1"), "at least two points"),
        (lambda r: None, ("--only", "line", "--set", "line.batchnorm=odd"), "batchnorm cannot be 'odd'"),
        (lambda r: None, ("--only", "line", "--set", "line.examples=0"), "at least one example"),
        (lambda r: None, ("--only", "between"), "--with RUN"),
        (lambda r: None, ("--only", "between", "--with", "runs/resnet", "--quick"), "not of one shape"),
        (lambda r: None, ("--model", "resnet18"), "a run has its own model"),
        (lambda r: None, ("--device", "warp"), "cannot be used"),
        (
            lambda r: (r / "data.json").write_text('{"fingerprint": "other"}'),
            (),
            "not the data the run learned from",
        ),
    ],
)
def test_mistakes_exit_with_2_and_one_screen(spoil, arguments, said, runs, capsys):
    spoil(runs / "vit")
    assert steppe("geometry", runs / "vit", *arguments) == 2
    err = capsys.readouterr().err
    assert said in " ".join(err.split())
    assert "Traceback" not in err
    assert len(err.splitlines()) < 6


def test_nothing_to_measure(capsys):
    assert steppe("evaluate") == 2
    assert "nothing to measure" in capsys.readouterr().err
    assert steppe("evaluate", "--list") == 0
    assert "corruptions" in capsys.readouterr().out


def test_a_killed_measure_goes_on_and_ends_alike(runs):
    arguments = ("--only", "landscape", "--set", "landscape.points=12", "--set", "landscape.examples=100")
    command = [sys.executable, "-m", "steppe", "geometry", str(runs / "vit"), *arguments]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    partial = runs / "vit" / "geometry.partial.json"
    deadline = time.monotonic() + 60
    while not partial.exists():
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert "landscape" not in Run(runs / "vit").read("geometry.json")
    kept = json.loads(partial.read_text())
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


def test_partial_results_of_other_settings_are_not_used(runs):
    wrong = {"settings": {"points": 4}, "found": [[123.0] * 4]}
    (runs / "vit" / "geometry.partial.json").write_text(json.dumps({"landscape": wrong}))
    assert steppe("geometry", runs / "vit", *SMALL, "--only", "landscape") == 0
    assert Run(runs / "vit").read("geometry.json")["landscape"]["loss"][0][0] != 123.0


def test_symmetry_makes_the_three_figures(capsys, tmp_path):
    assert steppe("symmetry", "-o", "s", "--steps", 8) == 0
    found = json.loads((tmp_path / "s" / "symmetry.json").read_text())
    assert found["settings"]["steps"] == 8
    made = {path.name for path in (tmp_path / "s").iterdir()}
    for figure in ("figure2_outputs", "figure3_sam", "figure4_asam"):
        for case in ("weights", "weights_and_biases"):
            assert {f"{figure}_{case}.png", f"{figure}_{case}.pdf"} <= made
    assert "outputs change by" in capsys.readouterr().out
    assert steppe("symmetry", "--rho", -1) == 2
