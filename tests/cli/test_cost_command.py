"""`steppe cost` as a person meets it."""

from __future__ import annotations

import json
import shutil

import pytest
from commands import steppe

from steppe.runs import Run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cost") / "r"
    arguments = ("--model", "resnet_tiny", "--batch-size", 256, "--epochs", 2, "--minimizer", "sam")
    assert steppe("train", *arguments, "-o", folder) == 0
    return folder


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)
    return Run(shutil.copytree(trained, tmp_path / "r"))


def test_the_cost_of_a_run_is_added_to_its_folder(run, capsys):
    before = run.read("cost.json")
    assert before["training"]["images_per_s"] == pytest.approx(5 * 256 / before["training"]["time_per_epoch_s"])
    run.write("cost.json", {**before, "mine": 1})
    assert steppe("cost", run.path, "--seconds", 0.5, "--price-per-hour", 3.6) == 0
    out = capsys.readouterr().out
    after = run.read("cost.json")
    assert after["mine"] == 1
    assert {key: after[key] for key in before} == before
    inference = after["inference"]
    assert inference["sweep"][0]["batch_size"] == 32
    assert str(inference["best_batch_size"]) in out
    assert "best" in out
    assert after["training_step"]["batch_size"] == 256
    assert after["training_step"]["memory_mib"] > inference["memory_mib"] * 256 / inference["best_batch_size"] / 2
    price = after["price"]
    assert price["training"] == pytest.approx(run.summary["time_s"] / 1000)
    assert price["million_images"] == pytest.approx(1000 / inference["images_per_s"])
    assert "price of the training" in out


def test_a_second_gradient_needs_no_second_batch_of_memory(run, capsys):
    """SAM keeps the weights' perturbation; its activations come one pass after the other."""
    assert steppe("cost", run.path, "--seconds", 0.1) == 0
    weights = run.read("cost.json")["parameters"] * 4 / 2**20
    sam = run.read("cost.json")["training_step"]["memory_mib"]
    text = (run.path / "config.toml").read_text()
    changed = text.replace('name = "sam"', 'name = "base"').replace("rho = 0.05\n", "")
    assert changed != text
    (run.path / "config.toml").write_text(changed)
    (run.path / "summary.json").write_text("{}")
    assert steppe("cost", run.path, "--seconds", 0.1) == 0
    base = run.read("cost.json")["training_step"]["memory_mib"]
    assert base < sam < base + 3 * weights


def test_the_data_of_a_run_need_not_be_here(run):
    about = run.read("data.json")
    run.write("data.json", {**about, "name": "gone"})
    assert steppe("cost", run.path, "--seconds", 0.1) == 0


def test_the_cost_of_a_model(run, capsys):
    assert steppe("cost", "mixer_tiny_p2", "--data", "digits", "--seconds", 0.1, "--minimizer", "asam") == 0
    out = capsys.readouterr().out
    assert "memory of a training step" in out
    assert "an epoch of such steps" in out
    assert "after the first" not in out, "nothing was trained"


@pytest.mark.parametrize(
    ("flags", "gradients"),
    [
        ((), 1.0),
        (("--minimizer", "sam"), 2.0),
        (("--minimizer", "looksam"), 1.2),
        (("--minimizer", "sam", "--sharp-every", 5), 1.2),
        (("--minimizer", "sam", "--sharp-last", 0.25), 1.25),
        (("--minimizer", "sam", "--ascent-fraction", 0.25), 1.25),
    ],
)
def test_steps_are_timed_in_the_mixture_of_training(tmp_path, flags, gradients):
    """As many sharp ones as in a whole training, however long they take."""
    assert steppe("train", "--model", "mlp_8_8", "--epochs", 1, *flags, "-o", tmp_path / "r") == 0
    run = Run(tmp_path / "r")
    assert steppe("cost", run.path, "--seconds", 0.2) == 0
    step = run.read("cost.json")["training_step"]
    assert step["gradients"] == pytest.approx(gradients)
    assert step["epoch_s"] == pytest.approx(step["time_s"] * (run.read("data.json")["examples"]["train"] // 64))
    assert step["captured"] is False


@pytest.mark.parametrize(
    ("flags", "why"),
    [(("--minimizer", "aesam"), "AE-SAM"), (("--objective", "adversarial"), "adversarial training")],
)
def test_steps_that_only_training_can_time_say_so(tmp_path, flags, why, capsys):
    assert steppe("train", "--model", "mlp_8_8", "--epochs", 1, *flags, "-o", tmp_path / "r") == 0
    assert steppe("cost", tmp_path / "r", "--seconds", 0.1) == 0
    step = Run(tmp_path / "r").read("cost.json")["training_step"]
    assert step["time_s"] is None
    assert step["memory_mib"] > 0
    assert why in step["time_reason"]


def test_several_are_set_side_by_side(run, capsys):
    assert steppe("cost", "mlp_8_8", "mixer_tiny_p2", "--data", "digits", "--seconds", 0.1) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.startswith(("mlp_8_8", "mixer_tiny_p2"))]
    assert [row[:2] for row in rows] == [["mlp_8_8", "682"], ["mixer_tiny_p2", "72.7k"]]
    assert steppe("cost", run.path, run.path, "--seconds", 0.1, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["target"] for one in found] == [str(run.path)] * 2
    assert found[1]["training_step"] == run.read("cost.json")["training_step"]


def test_a_mistake_among_several_is_told_before_anything_is_measured(run, capsys):
    before = run.read("cost.json")
    assert steppe("cost", run.path, "nowhere") == 2
    assert steppe("cost", "resnet_tiny", "resnet_tinny", "--data", "digits") == 2
    assert "inference" not in capsys.readouterr().out
    assert run.read("cost.json") == before


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("resnet_tiny",), "a model needs --data"),
        (("resnet_tinny", "--data", "digits"), "did you mean 'resnet_tiny'"),
        (("resnet_tiny", "--data", "digits", "--minimizer", "asm"), "did you mean 'asam'"),
        (("r", "--batch-size", 3), "--batch-size cannot be changed"),
        (("r", "--device", "warp"), "device 'warp' cannot be used"),
        ((".",), "not a run folder"),
    ],
)
def test_mistakes(run, arguments, expected, capsys):
    assert steppe("cost", *arguments) == 2
    err = capsys.readouterr().err
    assert expected in " ".join(err.split())
    assert "Traceback" not in err


def test_a_run_without_data_json(run, capsys):
    (run.path / "data.json").write_text(json.dumps({}))
    assert steppe("cost", run.path) == 2
    assert "data.json does not say" in capsys.readouterr().err
