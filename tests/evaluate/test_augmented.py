"""Test-time augmentation: what it shows a network, and that the plain figure stays beside it."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from commands import steppe
from torch import nn

from steppe import data
from steppe.config import DataConfig, RunConfig
from steppe.evaluate import VIEWS, Augmented, measure_accuracy
from steppe.evaluate.augmented import shift
from steppe.report import summarise, write_report
from steppe.studies.measures import read_measure
from steppe.train import train


class Flat(nn.Module):
    """Answers with the pixels themselves: shows which images a network saw, and with which weight."""

    def forward(self, images):
        return images.flatten(1)


def test_flip_answers_with_the_mean_of_image_and_mirror():
    images = torch.rand(2, 3, 4, 4)
    expected = (images + images.flip(3)).flatten(1) / 2
    assert torch.allclose(Augmented(Flat(), "flip")(images), expected)


def test_flip_translate_weighs_six_views_as_the_speed_records_do():
    images = torch.rand(2, 3, 6, 6)
    padded = F.pad(images, (1, 1, 1, 1), mode="reflect")
    views = {images: 0.5, padded[:, :, :6, :6]: 0.25, padded[:, :, 2:, 2:]: 0.25}
    expected = sum(weight * (view + view.flip(3)) / 2 for view, weight in views.items()).flatten(1)
    assert torch.allclose(Augmented(Flat(), "flip_translate")(images), expected, atol=1e-6)


def test_a_shift_moves_the_picture_and_reflects_its_edge():
    image = torch.arange(9.0).view(1, 1, 3, 3)
    assert shift(image, (1, 0))[0, 0].tolist() == [[3, 4, 5], [0, 1, 2], [3, 4, 5]]
    assert shift(image, (0, -1))[0, 0].tolist() == [[1, 2, 1], [4, 5, 4], [7, 8, 7]]
    assert shift(image, (0, 0)) is image


def test_weights_of_all_views_add_up_to_one():
    assert all(sum(views.values()) == pytest.approx(1) for views in VIEWS.values())


@pytest.fixture(scope="module")
def digits():
    return data.load(DataConfig())


@pytest.fixture(scope="module")
def run(digits, tmp_path_factory):
    values = {"model": {"name": "resnet_tiny"}, "budget": {"epochs": 1}, "test": {"tta": "flip"}, "batch_size": 128}
    return train(RunConfig.model_validate(values), digits, tmp_path_factory.mktemp("runs") / "r", device="cpu")


def test_a_run_reports_both_accuracies(run, digits, tmp_path):
    from steppe.studies.subjects import load_model

    model = load_model(run, digits)
    cpu = torch.device("cpu")
    for key, network in (("test", model), ("test_tta", Augmented(model, "flip"))):
        expected = measure_accuracy(network, digits.test, digits, device=cpu)
        assert run.summary[key]["accuracy"] == expected["accuracy"]
    assert run.summary["test_tta"]["views"] == "flip"
    assert read_measure(run, "test_accuracy_tta") == run.summary["test_tta"]["accuracy"]
    assert "with TTA %" in write_report([run], tmp_path / "page.html").read_text()


def test_table_has_a_column_only_where_a_run_was_augmented(run, digits, tmp_path, capsys):
    from rich.console import Console

    from steppe.report import print_table

    plain = RunConfig.model_validate({**run.config.model_dump(), "test": {}})
    other = train(plain, digits, tmp_path / "plain", device="cpu")
    print_table(summarise([other]), Console())
    assert "TTA" not in capsys.readouterr().out
    print_table(summarise([run, other]), Console())
    assert "TTA" in capsys.readouterr().out
    assert other.summary["test"] == run.summary["test"], "the plain figure does not depend on the second test"


def test_evaluate_measures_it_on_any_run(run):
    assert steppe("evaluate", run.path, "--only", "tta", "--set", "tta.views=flip", "--device", "cpu") == 0
    found = json.loads((run.path / "robustness.json").read_text())["tta"]
    assert found["augmented"] == pytest.approx(run.summary["test_tta"]["accuracy"])
    assert found["plain"] == pytest.approx(run.summary["test"]["accuracy"])


def test_no_augmentation_does_not_rename_a_run():
    plain = RunConfig.model_validate({})
    assert RunConfig.model_validate({"test": {"tta": "none"}}) == plain
    assert RunConfig.model_validate({"test": {"tta": "flip"}}).hash != plain.hash
