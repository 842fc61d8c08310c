"""Searches among tiny pretrained networks: what is tried and chosen, stopped, changed, deployed and measured."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from commands import launch, read_until, steppe
from PIL import Image
from safetensors.torch import load_file

from steppe.config import DataConfig
from steppe.deploy import open_trained
from steppe.errors import ConfigError, DataError, Interrupted, RunError
from steppe.runs import Run, create_run, read_json
from steppe.search import finetune_search, pretrained_search
from steppe.search.budget import Budget
from steppe.search.fitting import Fitted, Wanted, fit
from steppe.search.observer import SearchObserver
from steppe.search.probe_search import IMAGE_SIZES, Candidate, Found, ProbeSearch, Rate

pytestmark = pytest.mark.usefixtures("only_tiny_weights")


class Heard(SearchObserver):
    """Keeps the lines of a search; calls `then` after one that says `at`."""

    def __init__(self, at: str = "", then=lambda: None) -> None:
        self.lines: list[str] = []
        self.at, self.then = at, then

    def say(self, text: str) -> None:
        self.lines.append(text)
        if self.at and self.at in text:
            self.then()


def wanted(images: Path, **values) -> Wanted:
    return Wanted(DataConfig(name=str(images), image_size=32, val_fraction=0.3), **values)


def search(images: Path, folder: Path, amount: float = 2, observer: SearchObserver | None = None, **values) -> Fitted:
    return fit(wanted(images, **values), Budget(amount, "epochs"), folder, device="cpu", observer=observer)


@pytest.fixture(scope="module")
def made(tmp_path_factory, colour_images, tiny_weights):
    """A folder with the searches `single`, of one network, and `beside`, won by two side by side."""
    folder = tmp_path_factory.mktemp("searches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPPE_WEIGHTS", str(tiny_weights))
        patch.setenv("STEPPE_CACHE", str(folder / "cache"))
        search(colour_images, folder / "single", 1, models=("test_resnet",))
        found = search(colour_images, folder / "beside", 6)
        assert "+" in found.best.config.model.name, "two side by side win"
    return folder


@pytest.fixture
def won(made, tmp_path, request):
    """The winner of a search, in a copy that a test may add to."""
    shutil.copytree(made / request.param, tmp_path / request.param, symlinks=True)
    return Run((tmp_path / request.param / "best").resolve())


# -- what is tried -------------------------------------------------------------------------------------------------


def plan(colour_images, found=(), **seconds: float) -> ProbeSearch:
    """The choice between three networks that take so long for an image."""
    from steppe import data
    from steppe.config import available

    rates = {name: Rate(s, s) for name, s in seconds.items()}
    about = {"probes": [one.to_json() for one in found]}
    return ProbeSearch(available(), rates, data.load(DataConfig(name=str(colour_images))), about)


def test_the_first_candidate_is_one_that_is_quick_enough(colour_images):
    choice = plan(colour_images, test_resnet=0.01, test_efficientnet=10.0, test_vit=10.0)
    first = choice.next(0.0, 600.0)
    assert first.parts == ("test_resnet",)
    assert choice.cost_s(first) <= 45.0


def test_the_first_candidate_is_the_quickest_where_none_is_quick(colour_images):
    choice = plan(colour_images, test_resnet=30.0, test_efficientnet=10.0, test_vit=20.0)
    assert choice.next(0.0, 600.0) == Candidate(("test_efficientnet",), 96)
    assert choice.next(0.0, 5.0) is None


def test_nothing_is_begun_that_does_not_fit_into_the_time_with_its_test(colour_images):
    first = Found(Candidate(("test_resnet",), 160), "r", 0.6, 1.0, 0.05, 0.1)
    choice = plan(colour_images, [first], test_resnet=0.1, test_efficientnet=0.2, test_vit=0.5)
    for budget_s in (3.0, 10.0, 30.0, 100.0):
        if candidate := choice.next(1.0, budget_s):
            assert 1.0 + choice.cost_s(candidate) + choice.test_s(candidate) <= budget_s
    assert choice.next(1.0, 3.0) is None
    assert choice.next(1.0, 1e9) is not None


def test_a_candidate_is_not_tried_twice(colour_images, tmp_path):
    found = search(colour_images, tmp_path / "f", 50)
    tried = [(tuple(one["parts"]), one["image_size"]) for one in read_json(tmp_path / "f" / "fit.json")["probes"]]
    assert len(set(tried)) == len(tried) == len(found.runs) >= 2
    assert len({run.id for run in found.runs}) == len(tried)


def test_only_the_named_weights_are_tried(colour_images, tiny_weights, tmp_path):
    heard = Heard()
    source = str(tiny_weights / "test_resnet.safetensors")
    found = search(colour_images, tmp_path / "f", 5, heard, weights=source)
    assert {run.config.model.name for run in found.runs} == {"test_resnet"}


def test_weights_that_cannot_be_read_are_left_out_and_named(colour_images, tiny_weights, tmp_path, monkeypatch):
    shutil.copytree(tiny_weights, tmp_path / "w")
    cut = tmp_path / "w" / "test_efficientnet.safetensors"
    cut.write_bytes(cut.read_bytes()[:10_000])
    monkeypatch.setenv("STEPPE_WEIGHTS", str(tmp_path / "w"))
    heard = Heard()
    found = search(colour_images, tmp_path / "f", 3, heard)
    assert any(line.startswith("test_efficientnet is left out") for line in heard.lines)
    assert "efficientnet" not in " ".join(run.config.model.name for run in found.runs)


def test_no_weights_that_can_be_used_are_an_error(colour_images, tiny_weights, tmp_path):
    path = tmp_path / "test_resnet.safetensors"
    shutil.copy(tiny_weights / "test_resnet.json", tmp_path)
    path.write_bytes((tiny_weights / path.name).read_bytes()[:10_000])
    with pytest.raises(ConfigError):
        search(colour_images, tmp_path / "f", weights=str(path))


def test_image_size_is_chosen_by_the_search_unless_given(colour_images, tiny_weights, tmp_path):
    fit(
        Wanted(DataConfig(name=str(colour_images), val_fraction=0.3)), Budget(1, "epochs"), tmp_path / "f", device="cpu"
    )
    about = read_json(tmp_path / "f" / "fit.json")
    assert about["settled"]["image_size"] == 224, "where photographs are kept is no choice of theirs"
    assert about["probes"][0]["image_size"] in set(IMAGE_SIZES) - {224}


def test_without_weights_training_is_from_scratch(colour_images, tmp_path):
    found = search(colour_images, tmp_path / "f", 12, weights="none", models=("mlp_8",))
    assert {run.config.model.mode for run in found.runs} == {None}
    assert read_json(tmp_path / "f" / "fit.json")["kind"] == "scratch"


def test_grey_images_are_learned_from_scratch(tmp_path):
    digits = Wanted(DataConfig(name="digits"), models=("mlp_8",))
    found = fit(digits, Budget(12, "epochs"), tmp_path / "f", device="cpu")
    assert found.best.config.model.weights is None


def test_weights_named_for_grey_images_are_refused(tiny_weights, tmp_path):
    digits = Wanted(DataConfig(name="digits"), weights=str(tiny_weights / "test_resnet.safetensors"))
    with pytest.raises(ConfigError, match="need colour photographs") as caught:
        fit(digits, Budget(12, "epochs"), tmp_path / "f", device="cpu")
    assert "--weights none" in caught.value.fix
    assert not (tmp_path / "f").exists()


def test_a_candidate_that_cannot_be_made_costs_itself_alone(colour_images, tmp_path, monkeypatch):
    from steppe.train import probe

    make, made = probe.Probe.complete, []

    def complete(own):
        made.append(own.config.model.name)
        if len(made) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        make(own)

    monkeypatch.setattr(probe.Probe, "complete", complete)
    heard = Heard()
    found = search(colour_images, tmp_path / "f", 3, heard)
    assert any("is left out: the memory ran out" in line for line in heard.lines)
    assert len(made) == len(set(made)) == 1 + len(found.runs) > 2
    again = search(colour_images, tmp_path / "f", 4)
    assert made.count(made[1]) == 1, "it is not tried again"
    assert again.best.finished


def test_networks_of_files_are_named_without_their_folders(made):
    rows = (made / "beside" / "pareto.csv").read_text()
    assert "test_efficientnet + test_resnet" in rows
    assert ".safetensors" not in rows


# -- what is chosen ------------------------------------------------------------------------------------------------


def test_the_winner_alone_has_a_test_accuracy(colour_images, tmp_path):
    found = search(colour_images, tmp_path / "f", 3)
    tested = [run.id for run in found.runs if "test" in run.summary]
    assert tested == [found.best.id]
    judged = {one["run"]: (one["accuracy"], -one["loss"]) for one in read_json(tmp_path / "f" / "fit.json")["probes"]}
    assert max(judged, key=judged.__getitem__) == found.best.id == read_json(tmp_path / "f" / "fit.json")["best"]
    assert (tmp_path / "f" / "best").resolve() == found.best.path.resolve()
    assert found.answer.startswith(f"{found.best.summary['test']['accuracy']:.1%}".replace("%", " %"))


def what_is_left(folder: Path) -> dict:
    """All that must not depend on kills or on the clock."""
    about = {k: v for k, v in read_json(folder / "fit.json").items() if not k.endswith("_s") and k != "rates"}
    for key, of_the_clock in (("probes", "solve_s"), ("moments", "at_s")):
        about[key] = [{k: v for k, v in one.items() if k != of_the_clock} for one in about[key]]
    runs = [Run(path.parent) for path in sorted(folder.glob("*/config.toml")) if not path.parent.is_symlink()]
    return {"about": about, "weights": {run.id: run.weights.read_bytes() for run in runs}}


def test_no_clock_has_a_part_in_a_search_within_epochs(colour_images, tmp_path, monkeypatch):
    speeds = iter([(1e-3, 5.0, 1e-4), (7.0, 1e-4, 1e-2)])

    def time_networks(backbones, *_, **__):
        return {one.name: Rate(s, s) for one, s in zip(backbones, next(speeds), strict=True)}

    monkeypatch.setattr(pretrained_search, "time_networks", time_networks)
    one, other = (search(colour_images, tmp_path / name, 4) for name in ("one", "other"))
    assert what_is_left(tmp_path / "one") == what_is_left(tmp_path / "other")
    assert one.answer == other.answer


class Killed(BaseException):
    """What a kill is to a process that shall live to look at what it left."""


@pytest.mark.slow
def test_a_search_within_epochs_ends_alike_however_often_it_is_killed(colour_images, tmp_path, monkeypatch):
    whole = search(colour_images, tmp_path / "whole", 4)
    left = [0]

    def deadly(write):
        def once(*arguments):
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            return write(*arguments)

        return once

    for owner, name in ((os, "replace"), (Run, "append_metrics")):
        monkeypatch.setattr(owner, name, deadly(getattr(owner, name)))
    kills, allowed = 0, 5
    while True:
        left[0] = allowed = allowed + 1
        try:
            killed = search(colour_images, tmp_path / "killed", 4)
            break
        except Killed:
            kills += 1
    left[0] = 0
    assert kills >= 3
    assert what_is_left(tmp_path / "whole") == what_is_left(tmp_path / "killed")
    assert (killed.best.id, killed.answer) == (whole.best.id, whole.answer)


def test_more_epochs_go_on_with_what_was_found(colour_images, tmp_path):
    first = search(colour_images, tmp_path / "f", 1)
    stamp = first.best.weights.stat().st_mtime_ns
    more = search(colour_images, tmp_path / "f", 3)
    assert len(first.runs) == 1 < len(more.runs)
    assert Run(first.best.path).weights.stat().st_mtime_ns == stamp
    again = search(colour_images, tmp_path / "f", 3)
    assert [run.id for run in again.runs] == [run.id for run in more.runs]


def test_a_search_goes_on_as_it_began(colour_images, tmp_path):
    search(colour_images, tmp_path / "f", 1)
    with pytest.raises(RunError, match="another seed: 0 there, 1 here"):
        search(colour_images, tmp_path / "f", 1, seed=1)
    with pytest.raises(RunError, match="another weights: 'auto' there, 'none' here"):
        search(colour_images, tmp_path / "f", 1, weights="none")
    with pytest.raises(RunError, match="a budget of epochs, not of seconds"):
        fit(wanted(colour_images), 60, tmp_path / "f", device="cpu")


def put_foreign_run(folder: Path, model: str, minimizer: str) -> Run:
    """A finished run of somebody else, more accurate than any of the search."""
    from steppe.config import RunConfig

    config = RunConfig.model_validate({"seed": 7, "model": {"name": model}, "minimizer": {"name": minimizer}})
    run = create_run(folder / "foreign", config)
    best = {split: {"accuracy": 1.0, "loss": 0.0, "examples": 10} for split in ("train", "val", "test")}
    spent = {"time_s": 0.1, "gradient_evaluations": 1.0, "epochs": 1.0, "steps": 1}
    run.write("summary.json", {"status": "finished", "config_sha256": run.config_sha256, **spent, **best})
    run.write("cost.json", {"parameters": 1, "flops_per_image": 1})
    run.weights.write_bytes(b"weights")
    return run


@pytest.mark.parametrize("minimizer", ["base", "looksam"])
@pytest.mark.parametrize("weights", ["auto", "none"])
def test_a_foreign_run_in_the_folder_is_neither_ranked_nor_chosen(colour_images, tmp_path, weights, minimizer):
    values = {"weights": weights} if weights == "auto" else {"weights": weights, "models": ("mlp_8",)}
    amount = 1 if weights == "auto" else 12
    search(colour_images, tmp_path / "f", amount, **values)
    foreign = put_foreign_run(tmp_path / "f", "mlp_8", minimizer)
    for more in (amount, 2 * amount):
        found = search(colour_images, tmp_path / "f", more, **values)
        assert found.best.id != foreign.id
        assert foreign.id not in [run.id for run in found.runs]
        assert "foreign" not in (tmp_path / "f" / "pareto.csv").read_text()
        assert "foreign" not in json.dumps(read_json(tmp_path / "f" / "study.json"))
        assert (tmp_path / "f" / "best").resolve() != foreign.path.resolve()


# -- stopped, changed and shared -----------------------------------------------------------------------------------


def interrupt() -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in what a shell has put into the background
        raise KeyboardInterrupt
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_leaves_the_best_so_far_as_a_finished_model(colour_images, tmp_path):
    heard = Heard("(frozen ", interrupt)
    with pytest.raises(Interrupted, match="the best so far") as caught:
        search(colour_images, tmp_path / "f", 4, heard)
    best = Run((tmp_path / "f" / "best").resolve())
    assert best.finished
    assert "test" not in best.summary, "it is not tested before the search is over"
    assert str(best.path.name) in str(caught.value)
    assert open_trained(tmp_path / "f" / "best", device="cpu").model is not None
    found = search(colour_images, tmp_path / "f", 4)
    whole = search(colour_images, tmp_path / "whole", 4)
    assert (found.best.id, found.answer) == (whole.best.id, whole.answer)


def test_ctrl_c_amid_a_run_keeps_what_was_found(colour_images, tmp_path, monkeypatch):
    seen = []

    def status(own, now):
        seen.append(now)
        if own.probes.found:
            interrupt()

    monkeypatch.setattr(pretrained_search.PretrainedSearch, "status", status)
    with pytest.raises(Interrupted, match="the best so far"):
        search(colour_images, tmp_path / "f", 4)
    monkeypatch.undo()
    assert Run((tmp_path / "f" / "best").resolve()).finished


@pytest.mark.parametrize("weights", ["auto", "none"])
def test_an_image_deleted_between_kill_and_resumption_is_refused_and_named(colour_images, tmp_path, weights, capsys):
    images = shutil.copytree(colour_images, tmp_path / "images")
    models = ("mlp_8",) if weights == "none" else ()
    asked = Wanted(DataConfig(name=str(images), image_size=32), models, weights)

    def kill() -> None:
        raise Killed

    with pytest.raises(Killed):
        fit(asked, Budget(12, "epochs"), tmp_path / "f", device="cpu", observer=Heard("%", kill))
    count = read_json(tmp_path / "f" / "fit.json")["recorded"]["examples"]["train"]
    kept = {path: path.read_bytes() for path in (images / "rows").glob("*.png")}
    for path in kept:  # take one that was a training image
        path.unlink()
        with pytest.raises(DataError, match="the images have changed since the search began") as caught:
            fit(asked, Budget(12, "epochs"), tmp_path / "f", device="cpu")
        if f"{count} training images then, {count - 1} now" in str(caught.value):
            break
        path.write_bytes(kept[path])
    words = ["--image-size", 32, "--weights", weights, *(["--model", "mlp_8"] if models else [])]
    assert steppe("fit", images, "--budget", "12epochs", *words, "--device", "cpu", "-o", tmp_path / "f") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "the images have changed since the search began" in said
    assert f"{count} training images then, {count - 1} now" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_two_processes_in_one_folder_are_refused(colour_images, tmp_path, capsys):
    words = ["fit", colour_images, "--image-size", 32, "--device", "cpu", "-o", tmp_path / "f"]
    first = launch(*words, "--budget", "10m")
    try:
        read_until(first, "frozen")
        first.send_signal(signal.SIGSTOP)
        assert steppe(*words, "--budget", "10m") == 2
        assert "another process" in capsys.readouterr().err
    finally:
        first.send_signal(signal.SIGCONT)
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=60)


@pytest.mark.slow
def test_a_search_within_seconds_keeps_its_budget(colour_images, tmp_path):
    began = time.monotonic()
    found = fit(wanted(colour_images), 15, tmp_path / "f", device="cpu")
    assert time.monotonic() - began < 16
    assert found.best.summary["test"]["accuracy"] > 0.5


def test_search_that_has_nothing_left_to_try_ends_early_and_says_so(colour_images, tmp_path, monkeypatch):
    monkeypatch.setattr(finetune_search, "expect_share", lambda epochs: 2.0)
    heard = Heard()
    found = fit(wanted(colour_images, models=("test_resnet",)), 60, tmp_path / "f", device="cpu", observer=heard)
    assert found.clock.elapsed_s < 50
    assert any("nothing more promises to be better" in line for line in heard.lines)


# -- the winner in use ---------------------------------------------------------------------------------------------

WINNERS = pytest.mark.parametrize("won", ["single", "beside"], indirect=True)


@WINNERS
def test_winner_predicts_the_probabilities_of_its_network(won, colour_images, capsys):
    assert steppe("predict", won.path, colour_images, "--json", "--top", 3, "--device", "cpu") == 0
    said = json.loads(capsys.readouterr().out)
    assert len(said["images"]) == 45
    assert said["temperature"] == won.read("calibration.json")["temperature"] > 0
    trained, about = open_trained(won.path, device="cpu"), won.read("data.json")
    pixels = np.stack([np.asarray(Image.open(one["image"])) for one in said["images"]]) / 255
    normalised = torch.tensor((pixels - about["mean"]) / about["std"], dtype=torch.float32).permute(0, 3, 1, 2)
    with torch.no_grad():
        expected = (trained.model(normalised) / said["temperature"]).softmax(1).numpy()
    found = [{it["class"]: it["probability"] for it in one["predictions"]} for one in said["images"]]
    found = np.array([[row[name] for name in about["classes"]] for row in found])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


@WINNERS
@pytest.mark.parametrize("format", ["onnx", "safetensors"])
def test_winner_exported_answers_alike(won, format, tmp_path, capsys):
    out = tmp_path / "out"
    assert steppe("export", won.path, "-o", out, "--format", format, "--device", "cpu") == 0
    trained = open_trained(won.path, device="cpu")
    images = torch.randn(5, 3, 32, 32)
    with torch.no_grad():
        own = trained.model(images)
        if format == "onnx":
            session = onnxruntime.InferenceSession(out / "model.onnx", providers=["CPUExecutionProvider"])
            (found,) = session.run(["logits"], {"images": images.numpy()})
        else:
            found = open_trained(out, device="cpu").model(images).numpy()
    np.testing.assert_allclose(found, own.numpy(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("won", ["beside"], indirect=True)
def test_networks_side_by_side_are_not_exported_as_timms(won, tmp_path, capsys):
    assert steppe("export", won.path, "-o", tmp_path / "out", "--format", "timm", "--device", "cpu") == 2
    said = capsys.readouterr().err
    assert "timm" in said
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("won", ["single"], indirect=True)
def test_a_single_network_is_exported_as_timms(won, tmp_path):
    assert steppe("export", won.path, "-o", tmp_path / "out", "--format", "timm", "--device", "cpu") == 0
    import timm

    model = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        own = open_trained(won.path, device="cpu").model(images)
        torch.testing.assert_close(model(images), own, rtol=0, atol=1e-4)


@WINNERS
def test_winner_is_reported(won, tmp_path, capsys):
    assert steppe("report", won.path, "-o", tmp_path / "page.html") == 0
    assert "Traceback" not in capsys.readouterr().err
    assert (tmp_path / "page.html").stat().st_size > 10_000


@WINNERS
def test_winner_is_evaluated(won, capsys):
    before = won.summary["test"]
    assert steppe("evaluate", won.path, "--quick", "--only", "scores", "--device", "cpu") == 0
    found = json.loads((won.path / "robustness.json").read_text())["scores"]
    assert found["top1"] == pytest.approx(before["accuracy"], abs=1e-4)
    assert found["nll"] == pytest.approx(before["loss"], abs=1e-4)


@WINNERS
def test_flatness_of_the_winner_is_measured(won, capsys):
    names = ["lambda_max", "sharpness", "norms", "noise"]
    assert steppe("geometry", won.path, "--quick", "--only", ",".join(names), "--device", "cpu") == 0
    assert set(names[:3]) <= set(won.read("geometry.json"))
    assert "could not be measured" not in capsys.readouterr().err


@WINNERS
def test_cost_of_the_winner_is_counted(won, capsys):
    assert steppe("cost", won.path, "--device", "cpu", "--seconds", 0.1, "--json") == 0
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    sizes = sum(v.numel() for k, v in load_file(won.weights).items() if "running" not in k and "num_batches" not in k)
    counted = won.read("cost.json")["parameters"]
    assert 0.99 * sizes <= counted <= sizes


def test_a_winner_is_the_start_of_another_training(made, colour_images, tmp_path, capsys):
    best = (made / "single" / "best").resolve()
    data = ["--data", colour_images, "--image-size", 32, "--weights", best, "--mode", "finetune"]
    assert steppe("train", *data, "--epochs", 1, "--batch-size", 8, "--device", "cpu", "-o", tmp_path / "r") == 0
    assert Run(tmp_path / "r").finished
    assert Run(tmp_path / "r").read("data.json")["mean"] == Run(best).read("data.json")["mean"]
