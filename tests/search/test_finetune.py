"""Fine-tuning within a search: where it begins, how its time is divided, and what more time brings."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
import torch
from commands import steppe
from safetensors.torch import load_file, save_file

from steppe import data
from steppe.config import DataConfig, available
from steppe.data import as_learned, in_order
from steppe.deploy import get_calibration, open_trained
from steppe.deploy.calibration import calibrate
from steppe.evaluate import measure_accuracy, predict
from steppe.report.studies import read_studies
from steppe.runs import Run, find_runs, read_json
from steppe.search import finetune_search
from steppe.search.budget import Budget
from steppe.search.final_network import FinalNetwork
from steppe.search.finetune import RECIPES, Attempt, expect_share, rank
from steppe.search.finetune_search import FineTuneSearch
from steppe.search.fitting import Wanted, fit
from steppe.search.observer import SearchObserver
from steppe.search.pretrained_search import PretrainedSearch
from steppe.search.probe_search import Candidate, Found, ProbeSearch, Rate
from steppe.train.probe import read_out_of_fold

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("only_tiny_weights")

FIRST_S = 16.0
"""Seconds of a search that fine-tunes."""
PROBES = (
    Found(Candidate(("test_resnet",), 224), "a", 0.89, 0.4, 0.005, 3.0),
    Found(Candidate(("test_resnet", "test_efficientnet"), 224), "b", 0.919, 0.3, 0.005, 3.0),
)


def plan(colour_images, *, image_s: float, left_s: float = 300.0, attempts=(), accuracy: float = 0.919):
    """Fine-tuning that has so much time, where an image takes so long; the data count as 3,680 images of Pets."""
    dataset = data.load(DataConfig(name=str(colour_images), val_fraction=0.3))
    scale = 3680 / (len(dataset.train) + len(dataset.val))
    rates = {name: Rate(scale * image_s, scale * image_s) for name in ("test_resnet", "test_efficientnet")}
    best = Found(PROBES[1].candidate, "b", accuracy, 0.3, 0.005, 3.0)
    about = {"probes": [PROBES[0].to_json(), best.to_json()], "tuning": {"attempts": list(attempts), "starts": []}}
    search = SimpleNamespace(
        about=about,
        budget=Budget(left_s),
        reserve_s=0.0,
        clock=SimpleNamespace(elapsed_s=0.0),
        dataset=dataset,
        device=torch.device("cpu"),
        probes=ProbeSearch(available(), rates, dataset, about),
    )
    return FineTuneSearch(search)


def ended(recipe: int, seconds: float, accuracy: float) -> dict:
    return {"recipe": recipe, "seconds": seconds, "backbone": "test_resnet", "image_size": 224} | {
        "run": f"r{recipe}",
        "accuracy": accuracy,
        "loss": 1 - accuracy,
    }


@pytest.mark.parametrize("image_s", [0.005, 0.02])
def test_fine_tuning_is_not_begun_where_its_few_epochs_cannot_beat_the_probe(colour_images, image_s):
    assert plan(colour_images, image_s=image_s)._plan() == []


def test_fine_tuning_is_begun_where_many_epochs_fit(colour_images):
    planned = plan(colour_images, image_s=0.00005)._plan()
    assert [one.recipe for one in planned] == list(range(len(RECIPES)))
    assert {(one.backbone, one.image_size) for one in planned} <= {("test_resnet", s) for s in (192, 224, 256, 288)}


def test_fine_tuning_is_not_begun_where_the_probe_is_never_wrong(colour_images):
    assert plan(colour_images, image_s=0.0001, accuracy=1.0)._plan() == []


def test_more_epochs_are_expected_to_leave_fewer_errors():
    shares = [expect_share(epochs) for epochs in (1, 7.9, 8, 16, 32, 1000)]
    assert shares == sorted(shares, reverse=True)
    assert shares[1] == 1.0
    assert shares[-1] > 0


def test_best_recipe_gets_the_time_that_is_left(colour_images):
    attempts = [ended(0, 30.0, 0.92), ended(1, 30.0, 0.93), ended(2, 30.0, 0.91), ended(3, 30.0, 0.90)]
    (planned,) = plan(colour_images, image_s=0.0001, left_s=150.0, attempts=attempts)._plan()
    assert planned.recipe == 1
    assert 100 < planned.seconds < 150
    assert (planned.backbone, planned.image_size) == ("test_resnet", 224)


def test_best_recipe_gets_no_time_that_is_not_longer_than_before(colour_images):
    attempts = [ended(0, 100.0, 0.95)]
    assert plan(colour_images, image_s=0.0001, left_s=90.0, attempts=attempts)._plan() == []


def test_best_recipe_far_below_the_probe_gets_no_more_time(colour_images):
    attempts = [ended(index, 30.0, 0.60) for index in range(4)]
    assert plan(colour_images, image_s=0.0001, left_s=150.0, attempts=attempts)._plan() == []


def test_much_more_time_compares_recipes_anew(colour_images):
    planned = plan(colour_images, image_s=0.00005, left_s=600.0, attempts=[ended(0, 30.0, 0.93)])._plan()
    assert [one.recipe for one in planned] == list(range(len(RECIPES)))


# -- with real runs --------------------------------------------------------------------------------------------------


def make_hopeful(patch) -> None:
    """Let fine-tuning count as always promising, with two short attempts at a time."""
    patch.setattr(finetune_search, "expect_share", lambda epochs: 1e-6)
    patch.setattr(
        finetune_search, "plan_attempts", lambda left_s, epoch_s: [Attempt(i, round(left_s / 5, 3)) for i in range(2)]
    )


def wanted(images) -> Wanted:
    return Wanted(DataConfig(name=str(images), image_size=32, val_fraction=0.3), models=("test_resnet",))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, colour_images, tiny_weights):
    """A search that has fine-tuned."""
    folder = tmp_path_factory.mktemp("tuned") / "f"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPPE_WEIGHTS", str(tiny_weights))
        patch.setenv("STEPPE_CACHE", str(folder.parent / "cache"))
        make_hopeful(patch)
        fit(wanted(colour_images), FIRST_S, folder, device="cpu")
    return folder


@pytest.mark.slow
def test_fine_tuning_that_is_slower_than_expected_keeps_the_budget(colour_images, tmp_path, monkeypatch):
    make_hopeful(monkeypatch)
    allowed, real, began = [], finetune_search.run_trial, time.monotonic()

    def run_trial(*arguments, **options):
        allowed.append((time.monotonic() - began, options["allowed_s"]))
        return real(*arguments, **options)

    too_long = lambda *_: [Attempt(index, 60.0) for index in range(2)]  # noqa: E731
    monkeypatch.setattr(finetune_search, "run_trial", run_trial)
    monkeypatch.setattr(finetune_search, "plan_attempts", too_long)
    found = fit(wanted(colour_images), 15, tmp_path / "f", device="cpu", began=began)
    assert allowed
    assert all(elapsed_s + seconds <= 15 for elapsed_s, seconds in allowed)
    assert found.clock.elapsed_s < 17
    assert found.best.config.model.mode == "probe", "what is unfinished is not chosen"


@pytest.mark.slow
def test_search_that_is_given_more_time_fine_tunes_again(colour_images, tuned, tmp_path, monkeypatch):
    shutil.copytree(tuned, tmp_path / "f", symlinks=True)
    make_hopeful(monkeypatch)
    fit(wanted(colour_images), 2.5 * FIRST_S, tmp_path / "f", device="cpu")
    before, after = (
        [one["run"] for one in read_json(folder / "fit.json")["tuning"]["attempts"] if "run" in one]
        for folder in (tuned, tmp_path / "f")
    )
    assert len(before) >= 2
    assert after[: len(before)] == before
    assert len(set(after)) == len(after) > len(before)


@pytest.mark.slow
def test_probe_that_fine_tuning_begins_with_is_no_row_of_the_report(tuned):
    about = read_json(tuned / "fit.json")
    (start,) = about["tuning"]["starts"]
    assert (tuned / start / "summary.json").is_file()
    (part,) = read_studies(find_runs([tuned]), [tuned])
    listed = {record.config.run_id for record in part.records}
    assert start not in listed
    assert {about["probes"][0]["run"], *(one["run"] for one in about["tuning"]["attempts"])} <= listed


# -- bettering the best network --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learned(tuned, tmp_path_factory, colour_images, tiny_weights):
    """A search whose fine-tuned network won, and learned the validation images, too."""
    folder = tmp_path_factory.mktemp("learned") / "f"
    shutil.copytree(tuned, folder, symlinks=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPPE_WEIGHTS", str(tiny_weights))
        patch.setenv("STEPPE_CACHE", str(folder.parent / "cache"))
        make_hopeful(patch)
        patch.setattr(PretrainedSearch, "probe_accuracy", 0.0)
        patch.setattr(finetune_search, "FINAL_SHARE", 0.5)
        fit(wanted(colour_images), 2.5 * FIRST_S, folder, device="cpu")
    return folder


@pytest.mark.slow
def test_winner_learned_the_validation_images_too(learned):
    best, about = Run((learned / "best").resolve()), read_json(learned / "fit.json")
    (final,) = [one for one in about["tuning"]["finals"] if one["run"] == best.id]
    assert final["state"] == "complete"
    assert best.config.data.learn_from_val
    assert best.config.model.weights == f"run:{final['of']}"
    assert best.summary["val"] is None
    assert best.summary["test"]["examples"] > 0
    judged = [*about["tuning"]["attempts"], *(one for one in about["tuning"]["soups"] if "run" in one)]
    assert final["of"] == max(judged, key=lambda one: (one["accuracy"], -one["loss"]))["run"]


@pytest.mark.slow
def test_answers_before_that_calibrate_the_winner(learned):
    best = Run((learned / "best").resolve())
    logits, labels = read_out_of_fold(best.path)
    before = open_trained(learned / best.config.model.weights.removeprefix("run:"), device="cpu")
    dataset = as_learned(data.load(before.run.config.data), best.read("data.json"))
    assert torch.equal(labels, dataset.val.labels)
    expected = predict(before.model, in_order(dataset.val, dataset, batch_size=64, device=torch.device("cpu")))[0]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
    found = get_calibration(open_trained(best.path, device="cpu"), say=lambda _: None)
    kept = calibrate(logits, labels, "")
    assert found == kept.why_not if kept.why_not else found.temperature == kept.temperature


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", "safetensors"])
def test_winner_that_learned_them_is_exported(learned, tmp_path, format):
    assert steppe("export", learned / "best", "-o", tmp_path / "out", "--format", format, "--device", "cpu") == 0
    torch.manual_seed(0)
    trained, images = open_trained(learned / "best", device="cpu"), torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        own = trained.model(images).numpy()
        if format == "onnx":
            session = onnxruntime.InferenceSession(tmp_path / "out/model.onnx", providers=["CPUExecutionProvider"])
            (found,) = session.run(["logits"], {"images": images.numpy()})
        else:
            found = open_trained(tmp_path / "out", device="cpu").model(images).numpy()
    np.testing.assert_allclose(found, own, rtol=0, atol=2e-6 * np.abs(own).max())  # logits are in the thousands here


@pytest.mark.slow
def test_report_lists_the_winner_first(learned, capsys):
    assert steppe("report", learned, "-o", learned.parent / "page.html") == 0
    assert "test_resnet" in capsys.readouterr().out


def put_attempts(folder: Path, start: Run, *changes: float) -> list[dict]:
    """Add runs whose heads are those of the probe plus so much noise, as if they had been fine-tuned."""
    weight = load_file(start.weights)["head.weight"]
    noise = weight.std() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    dataset, found = as_learned(data.load(start.config.data), start.read("data.json")), []
    for index, change in enumerate(changes):
        run = f"attempt{index}"
        shutil.copytree(start.path, folder / run)
        save_file(
            load_file(start.weights) | {"head.weight": weight + change * noise}, folder / run / "weights.safetensors"
        )
        val = measure_accuracy(open_trained(folder / run, device="cpu").model, dataset.val, dataset, device=CPU)
        known = {"run": run, "loss": val["loss"], "backbone": "test_vit", "image_size": 32}
        found.append(ended(index, 10.0, val["accuracy"]) | known)
    return found


@pytest.fixture
def averaging(tmp_path, colour_images):
    """A search in whose folder two attempts err in opposite directions, a third one a lot."""
    config, began = wanted(colour_images), time.monotonic()
    images = data.load(config.data)
    folder = tmp_path / "f"
    folder.mkdir()
    search = PretrainedSearch(config, Budget(600), folder, images, CPU, available(), SearchObserver(), began, about={})
    candidate = Candidate(("test_vit",), 32)
    search._make(candidate)
    search.about["tuning"] = {"attempts": [], "starts": []}
    start = Run(folder / search.tuning.start(candidate))
    search.about["tuning"]["attempts"] += put_attempts(folder, start, 4.0, -4.0, 50.0)
    return search


@pytest.mark.slow
def test_soup_takes_what_validation_images_gain_by(averaging):
    attempts = averaging.tuning.attempts
    FinalNetwork(averaging.tuning).make_soup()
    (soup,) = averaging.about["tuning"]["soups"]
    assert "attempt2" not in soup["ingredients"]
    assert len(soup["ingredients"]) >= 2
    assert rank(soup) > max(map(rank, attempts))
    assert averaging.tuning.best == soup
    assert Run(averaging.folder / soup["run"]).summary["val"]["accuracy"] == soup["accuracy"]


@pytest.mark.slow
def test_same_soup_is_made_once(averaging):
    for _ in range(2):
        FinalNetwork(averaging.tuning).make_soup()
    assert len(averaging.about["tuning"]["soups"]) == 1


@pytest.mark.slow
def test_soup_that_was_killed_is_made_again_alike(averaging):
    FinalNetwork(averaging.tuning).make_soup()
    (soup,) = averaging.about["tuning"]["soups"]
    before = load_file(averaging.folder / soup["run"] / "weights.safetensors")
    (averaging.folder / soup["run"] / "summary.json").unlink()
    averaging.about["tuning"]["soups"] = []
    FinalNetwork(averaging.tuning).make_soup()
    assert averaging.about["tuning"]["soups"] == [soup]
    after = load_file(averaging.folder / soup["run"] / "weights.safetensors")
    assert all(torch.equal(after[key], value) for key, value in before.items())
