"""`steppe cost` as a person meets it."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from commands import steppe

from steppe.config import RunConfig
from steppe.runs import Run
from steppe.studies import Images, costs
from steppe.studies.costs import measure_step
from steppe.train import features
from steppe.train.steps import CompiledStep


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
        (("--minimizer", "sam", "--sharp-last", 0.75), 1.75),
        (("--minimizer", "sam", "--ascent-fraction", 0.25), 1.25),
    ],
)
@pytest.mark.parametrize("seconds", [0.2, 1e-9])
def test_steps_are_timed_in_the_mixture_of_training(tmp_path, flags, gradients, seconds, monkeypatch):
    """As many sharp ones as in a whole training, however long they take."""
    monkeypatch.setattr("steppe.studies.costs.STEPS_S", seconds)
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


def test_the_body_of_a_head_alone_is_computed_once_a_step(tmp_path, monkeypatch, run):
    asked = []
    ask = features.Body.__call__
    monkeypatch.setattr(features.Body, "__call__", lambda body, images: asked.append(1) or ask(body, images))
    flags = ("--model", "resnet_tiny", "--mode", "frozen", "--weights", run.path, "--epochs", 1, "--minimizer", "sam")
    assert steppe("train", *flags, "--batch-size", 256, "-o", tmp_path / "head") == 0
    asked.clear()
    assert steppe("cost", tmp_path / "head", run.path, "--seconds", 0.1) == 0
    step = Run(tmp_path / "head").read("cost.json")["training_step"]
    assert step["gradients"] == 2.0
    assert step["timed_steps"] <= len(asked) <= step["timed_steps"] + 10
    assert step["memory_mib"] < run.read("cost.json")["training_step"]["memory_mib"]


def test_steps_as_they_are_recorded_on_a_gpu(monkeypatch):
    """The same steps without recording: what is built and counted is what CUDA has."""
    made = []

    def uncaptured(*arguments, **options):
        made.append(CompiledStep(*arguments, **options, compiled=False))
        return made[-1]

    monkeypatch.setattr(costs, "can_capture", lambda config, device: True)
    monkeypatch.setattr(costs, "CompiledStep", uncaptured)
    wanted = {"model": {"name": "resnet_tiny"}, "minimizer": {"name": "looksam"}, "accumulate": 2, "batch_size": 16}
    config, images = RunConfig.model_validate(wanted), Images(8, 1, 10, 160)
    found = measure_step(config, images, device="cpu", seconds=0.05)
    assert found["gradients"] == pytest.approx(1.2)
    assert found["captured"] is True
    assert found["epoch_s"] == pytest.approx(10 * found["time_s"])
    assert made[0].step.micro == 8

    def refuse(*arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(costs, "CompiledStep", refuse)
    found = measure_step(config, images, device="cpu", seconds=0.05)
    assert found["captured"] is False, "a training goes on with eager steps, too"
    assert found["gradients"] == pytest.approx(1.2)
    monkeypatch.setattr(costs, "can_capture", lambda config, device: False)
    monkeypatch.setattr(costs, "_step_time", refuse)
    found = measure_step(config, images, device="cpu", seconds=0.05)
    assert found["time_reason"] == "CUDA out of memory"
    assert found["memory_mib"] > 0
    assert "reason" not in found


def test_several_are_set_side_by_side(run, capsys):
    assert steppe("cost", "mlp_8_8", "mixer_tiny_p2", "--data", "digits", "--seconds", 0.1) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.startswith(("mlp_8_8", "mixer_tiny_p2"))]
    assert [row[:2] for row in rows] == [["mlp_8_8", "682"], ["mixer_tiny_p2", "72.7k"]]
    assert steppe("cost", run.path, run.path, "--seconds", 0.1, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["target"] for one in found] == [str(run.path)] * 2
    assert found[1]["training_step"] == run.read("cost.json")["training_step"]


def test_a_mistake_among_several_is_told_before_anything_is_measured(run, capsys, monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("measured")

    monkeypatch.setattr(costs, "_fresh_model", refuse)
    assert steppe("cost", run.path, "nowhere") == 2
    assert steppe("cost", "resnet_tiny", "resnet_tinny", "--data", "digits") == 2
    assert "did you mean" in capsys.readouterr().err


def test_two_of_one_name_keep_their_rows(run, tmp_path, capsys):
    shutil.copytree(run.path, tmp_path / "elsewhere" / "r")
    assert steppe("cost", "./r", "elsewhere/r", "--seconds", 0.1, "--price-per-hour", 1) == 0
    out = capsys.readouterr().out
    assert all(any(line.startswith(f"{folder} ") for line in out.splitlines()) for folder in ("./r", "elsewhere/r"))
    assert "a million answers" in out


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


def test_run_that_cannot_be_written_is_refused_before_measuring(run, capsys, monkeypatch):
    monkeypatch.setattr(costs, "measure_cost", lambda *_, **__: pytest.fail("it was measured"))
    (run.path / ".lock").unlink(missing_ok=True)
    (run.path / ".lock").mkdir()
    assert steppe("cost", run.path) == 2
    assert "cannot be written" in capsys.readouterr().err
