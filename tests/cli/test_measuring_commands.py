"""`steppe evaluate`, `steppe geometry` and `steppe symmetry` as a person meets them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import steppe
from safetensors.torch import load_file, save_file

from steppe.config import MeasureConfig
from steppe.evaluate.measures import MEASURES as EVALUATE
from steppe.geometry.measures import MEASURES
from steppe.measuring import Measure, choose
from steppe.models import weights_sha256
from steppe.runs import Run
from steppe.studies.measured import add_results
from steppe.studies.pipeline import add_measures, has_measures
from steppe.studies.subjects import open_run


@pytest.fixture(autouse=True)
def wide(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)


SMALL = ("--quick", "--set", "landscape.points=4", "--set", "landscape.examples=20", "--set", "line.points=3")
DRAWN = ("--only", "noise,line,landscape,between,attention")
FEW = ("--quick", "--set", "corruptions.examples=8", "--set", "attacks.examples=16", "--set", "attacks.check=8")


def test_an_eigenvalue_that_has_not_converged_says_so(runs, capsys):
    few = [
        part
        for key in ("examples=8", "iterations=2", "parts=whole", "tolerance=1e-6")
        for part in ("--set", f"lambda_max.{key}")
    ]
    assert steppe("geometry", runs / "vit", "--only", "lambda_max", *few) == 0
    assert re.search(r"lambda max [\d.e+-]+ \(not converged\)", capsys.readouterr().out)


def test_how_far_a_figure_depends_on_images_batches_and_logits(runs, capsys):
    of_lambda = ("examples=40", "iterations=5", "parts=whole", "subsets=4", "batchnorm=batch", "tolerance=0.5")
    asked = [f"lambda_max.{key}" for key in of_lambda] + ["ntk.definition=one", "ntk.logit=7", "ntk.block=5"]
    options = [part for key in asked for part in ("--set", key)]
    assert steppe("geometry", runs / "resnet", "--quick", "--only", "lambda_max,ntk", "--batch-size", 20, *options) == 0
    found = json.loads((runs / "resnet" / "geometry.json").read_text())
    spread = found["lambda_max"]["subsets"]
    assert len(spread["values"]) == spread["subsets"] == 4
    assert spread["mean"] == pytest.approx(np.mean(spread["values"]))
    assert spread["stderr"] == pytest.approx(np.std(spread["values"], ddof=1) / 2)
    assert len(set(spread["values"])) == 4
    assert found["lambda_max"]["how"]["batch_norm"] == "batch"
    assert found["ntk"]["name"].startswith("ntk_kappa_one7_5x")
    assert "subsets stderr" in capsys.readouterr().out


def test_a_damaged_file_of_results_is_set_aside(runs, capsys):
    assert steppe("geometry", runs / "vit", "--only", "norms", "--quick") == 0
    path = runs / "vit" / "geometry.json"
    damaged = path.read_text()[:-3]
    path.write_text(damaged)
    capsys.readouterr()
    assert steppe("geometry", runs / "vit", "--only", "missing_rate", "--quick") == 0
    assert "geometry.json is damaged; it is kept as geometry.damaged-1.json" in capsys.readouterr().out
    assert (runs / "vit" / "geometry.damaged-1.json").read_text() == damaged
    assert "missing_rate" in json.loads(path.read_text())


def test_a_figure_of_other_settings_is_kept_beside_the_newest(runs, capsys):
    only = ("--only", "missing_rate", "--set")
    read = Run(runs / "vit").read
    assert steppe("geometry", runs / "vit", *only, "missing_rate.examples=60") == 0
    assert "earlier" not in capsys.readouterr().out
    first = read("geometry.json")["missing_rate"]
    assert steppe("geometry", runs / "vit", *only, "missing_rate.examples=40") == 0
    assert "the figure with examples=60 is kept, under 'earlier'" in capsys.readouterr().out
    found = read("geometry.json")
    assert found["missing_rate"]["settings"]["examples"] == 40
    assert found["earlier"] == {"missing_rate": [first]}
    assert steppe("geometry", runs / "vit", *only, "missing_rate.examples=60") == 0
    assert "(found before)" in capsys.readouterr().out
    again = read("geometry.json")
    assert again["missing_rate"] == first, "the last one asked for is what readers find"
    assert again["earlier"] == {"missing_rate": [found["missing_rate"]]}
    assert steppe("geometry", runs / "vit", *only, "missing_rate.examples=40", "--again") == 0
    assert read("geometry.json") == found, "no second copy of the same settings"


def test_a_file_from_before_a_setting_was_there(runs, capsys):
    run = Run(runs / "vit")
    found = run.read("geometry.json")
    assert found["noise_loss"]["made_on"]["device"] == "cpu"
    for key in ("loss", "seed"):
        del found["noise_loss"]["settings"][key]
    run.write("geometry.json", found)
    assert steppe("geometry", runs / "vit", "--only", "noise") == 0
    assert "(found before)" in capsys.readouterr().out
    assert steppe("geometry", runs / "vit", "--only", "noise", "--set", "noise.loss=trained") == 0
    assert run.read("geometry.json")["earlier"]["noise_loss"] == [found["noise_loss"]]
    assert has_measures(run, MeasureConfig()) is False, "readers would find another figure than the study asks for"
    assert steppe("geometry", runs / "vit", "--only", "noise") == 0
    assert has_measures(run, MeasureConfig())


def test_the_flatness_figure_of_a_study_stays_unless_another_is_asked_for(runs):
    run, asked = Run(runs / "resnet"), MeasureConfig(noise_draws=3)
    subject = open_run(run.path, device="cpu")
    add_measures(run, subject.dataset, asked, device="cpu")
    chosen = {name: MEASURES[name] for name in ("norms", "noise")}
    for quick in (True, False):
        assert add_results(subject, "geometry.json", chosen, quick=quick)["noise_loss"]["draws"] == 3
    assert has_measures(run, asked), "the study would measure again what it has"
    assert add_results(subject, "geometry.json", chosen, {"noise": {"noise_draws": 4}})["noise_loss"]["draws"] == 4
    assert add_results(subject, "geometry.json", choose(MEASURES, "noise"), strict=True)["noise_loss"]["draws"] == 20


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
        "batch": 512,
        "directions": "random",
    }
    assert found["landscape"]["made_on"] == {"device": "cpu", "torch": torch.__version__, "precision": "float32"}
    assert len(found["attention"]["last_layer"]) == 8
    assert found["between"]["settings"]["with"] == str(runs / "vit1")
    made = {path.name for path in (runs / "vit" / "figures").iterdir()}
    drawn = {f"{n}.{k}" for n in ("line", "landscape", "between", "attention") for k in ("png", "pdf")}
    assert made == drawn | {"attention_sheet.png"}  # bare cells, for the report
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


@pytest.mark.parametrize(("command", "measure"), [("geometry", "between"), ("evaluate", "attacks")])
def test_a_second_run_is_known_by_its_weights_not_by_its_place(runs, capsys, command, measure):
    file = {"geometry": "geometry.json", "evaluate": "robustness.json"}[command]
    sizes = {"between": ("between.points=3", "between.examples=20"), "attacks": ("attacks.examples=8",)}[measure]
    ask = ("--only", measure, *(word for size in sizes for word in ("--set", size)), "--with")

    def figure():
        return Run(runs / "vit").read(file)[measure]

    assert steppe(command, runs / "vit", *ask, runs / "vit1") == 0
    first = figure()
    assert first["settings"]["with_sha256"] == weights_sha256(str(runs / "vit1"))
    (runs / "vit1").rename(runs / "moved")
    capsys.readouterr()
    assert steppe(command, runs / "vit", *ask, runs / "moved") == 0
    assert "(found before)" in capsys.readouterr().out
    assert figure() == {**first, "settings": {**first["settings"], "with": str(runs / "moved")}}
    assert "earlier" not in Run(runs / "vit").read(file)
    shutil.copy(runs / "vit" / "weights.safetensors", runs / "moved" / "weights.safetensors")
    assert steppe(command, runs / "vit", *ask, runs / "moved") == 0
    assert "(found before)" not in capsys.readouterr().out
    assert figure()["settings"]["with_sha256"] == weights_sha256(str(runs / "vit"))
    (kept,) = Run(runs / "vit").read(file)["earlier"][measure]
    assert kept["settings"]["with_sha256"] == first["settings"]["with_sha256"]


def test_a_figure_that_does_not_know_the_second_runs_weights_is_made_again(runs, capsys):
    ask = ("--only", "between", "--set", "between.points=3", "--set", "between.examples=20", "--with", runs / "vit1")
    assert steppe("geometry", runs / "vit", *ask) == 0
    found = Run(runs / "vit").read("geometry.json")
    del found["between"]["settings"]["with_sha256"]
    Run(runs / "vit").write("geometry.json", found)
    capsys.readouterr()
    assert steppe("geometry", runs / "vit", *ask) == 0
    assert "(found before)" not in capsys.readouterr().out


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


def _diverge(run: Path) -> None:
    (run / "weights.safetensors").unlink()
    reason = "the loss is no longer a finite number; there is no checkpoint before it\n  where: here"
    (run / "summary.json").write_text(json.dumps({"status": "failed", "reason": reason}))


def _stop(run: Path) -> None:
    (run / "weights.safetensors").unlink()
    (run / "summary.json").unlink()


@pytest.mark.parametrize(
    ("spoil", "arguments", "said"),
    [
        (lambda r: (r / "weights.safetensors").unlink(), (), "has no weights: their file is gone"),
        (_diverge, (), "has no weights: it failed (the loss is no longer a finite number"),
        (_stop, (), "has no weights: it is not finished"),
        (_damage_weights, (), "NaN or infinity, in 'head.bias'"),
        (lambda r: (r / "weights.safetensors").write_bytes(b"x"), (), "weights cannot be read"),
        (lambda r: shutil.rmtree(r), (), "no such folder"),
        (lambda r: None, ("--only", "landscpe"), "did you mean 'landscape'"),
        (lambda r: None, ("--set", "landscape.pints=3"), "did you mean 'points'"),
        (lambda r: None, ("--only", "landscape", "--set", "landscape.points=1"), "landscape.points cannot be 1"),
        (lambda r: None, ("--only", "line", "--set", "line.batchnorm=odd"), "batchnorm cannot be 'odd'"),
        (lambda r: None, ("--only", "line", "--set", "line.examples=0"), "choose a number: 1 or more"),
        (lambda r: None, ("--set", "ntk.blocks=0"), "ntk.blocks cannot be 0"),
        (lambda r: None, ("--set", "lambda_max.method=magic"), "choose one of: lanczos, power"),
        (lambda r: None, ("--set", "lambda_max.precision=half"), "choose one of: float32, tf32"),
        (lambda r: None, ("--set", "noise.loss=hinge"), "choose one of: trained, cross_entropy"),
        (lambda r: None, ("--set", "missing_rate.weight=2"), "choose a number: 0 to 1"),
        (
            lambda r: None,
            ("--only", "lambda_max", "--quick", "--set", "lambda_max.top=21"),
            "12 iterations of Lanczos do not find 21 eigenvalues",
        ),
        (
            lambda r: None,
            ("--only", "lambda_max", *("--set", "lambda_max.top=2000", "--set", "lambda_max.iterations=3000")),
            "parameters, and no 2000 eigenvalues",
        ),
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


def test_the_list_says_what_settings_may_be(capsys):
    assert steppe("geometry", "--list") == 0
    out = capsys.readouterr().out
    lines = {tuple(line.split()) for line in out.splitlines()}
    assert ("method=lanczos", "lanczos", "or", "power") in lines
    assert ("blocks=8", "(--quick:", "1)", "1", "or", "more") in lines
    assert ("compiled=false", "true", "or", "false") in lines


def test_several_runs_and_a_folder_of_them(runs, capsys):
    only = ("--only", "missing_rate,attention", "--set", "missing_rate.examples=40")
    (runs / "vit1" / "weights.safetensors").unlink()
    assert steppe("geometry", runs, "--only", "missing_rate", *only[2:]) == 0
    found = capsys.readouterr()
    assert "passed over" in found.err
    assert "vit1: this run has no weights" in found.err
    rows = [line.split() for line in found.out.splitlines()]
    rates = {
        name: f"{Run(runs / name).read('geometry.json')['missing_rate']['rate']:.4g}" for name in ("vit", "resnet")
    }
    assert ["vit", rates["vit"]] in rows
    assert ["resnet", rates["resnet"]] in rows
    assert steppe("geometry", runs / "vit", runs / "vit1", "--only", "missing_rate", *only[2:]) == 2
    found = capsys.readouterr()
    assert "missing_rate: rate" in found.out, "the other one is measured all the same"
    assert "1 of 2 runs could not be measured" in found.err
    assert steppe("geometry", runs / "vit", runs / "nowhere") == 2
    assert "no such folder" in capsys.readouterr().err


def test_a_long_measure_shows_that_it_is_alive(runs, capsys, monkeypatch):
    monkeypatch.setattr("steppe.cli.show.FIRST_S", 0.2)
    many = ("--set", "noise.noise_draws=60", "--set", "noise.noise_sigma=0.02")
    assert steppe("geometry", runs / "resnet", "--only", "noise", *many) == 0
    out = capsys.readouterr().out
    assert re.search(r"noise: \d+ of 60, \d+ s so far", out)
    assert out.count("so far") == 1 + int(float(re.search(r"\((\d+\.\d) s\)", out)[1]) // 10)


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


def test_runs_of_the_same_name_are_told_apart():
    from steppe.cli.measured import short_names

    assert short_names(["runs/a/0", "runs/b/0"]) == {"runs/a/0": "a/0", "runs/b/0": "b/0"}
    assert short_names(["runs/a", "runs/b"]) == {"runs/a": "a", "runs/b": "b"}


def test_runs_side_by_side_say_which_figure_is_which(runs, capsys):
    assert steppe("evaluate", runs / "vit", runs / "resnet", *FEW, "--only", "scores,attacks") == 0
    table = capsys.readouterr().out.splitlines()[-3:]
    assert table[0].split() == ["vit", "resnet"]
    found = {line.split("  ")[0]: [float(cell) for cell in line.split()[-2:]] for line in table[1:]}
    expected = [Run(runs / name).read("robustness.json")["attacks"]["pgd"] for name in ("vit", "resnet")]
    assert found["attacks: pgd"] == pytest.approx(expected, rel=1e-3)
    assert list(found) == ["scores: top1", "attacks: pgd"]


def test_numbers_of_a_measure_of_ones_own_are_printed(runs, capsys, monkeypatch):
    """It has no headline: its first numbers are shown, on its line and side by side."""

    def work(model, dataset, settings):
        return {"mean": float(settings["examples"]), "positive": 0.25, "sure": True, "by_class": [1.0, 2.0]}

    margin = Measure(work, "", {"examples": 7})
    monkeypatch.setitem(EVALUATE, "margin", margin)
    assert steppe("evaluate", runs / "vit", runs / "resnet", "--only", "margin") == 0
    shown = capsys.readouterr().out
    assert shown.count("margin: mean 7  positive 0.25  (0.0 s)") == 2
    table = [line.split() for line in shown.splitlines()[-3:]]
    assert table == [["run", "margin:", "mean"], ["vit", "7"], ["resnet", "7"]]
    assert steppe("evaluate", runs / "vit", "--only", "margin") == 0
    assert "margin: mean 7  positive 0.25  (found before)" in capsys.readouterr().out
