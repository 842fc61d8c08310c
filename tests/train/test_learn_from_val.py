"""A run that learns its validation images: more to learn, and nothing is judged by them."""

from __future__ import annotations

import pytest
import torch
from training import KillAt, make_config, story, train_whole_and_resumed, weights

from steppe.cli.show import epoch_line
from steppe.config import RunConfig
from steppe.data import Keeping, load
from steppe.deploy import get_calibration, open_trained
from steppe.errors import ConfigError, TrainingError
from steppe.report import summarise, write_report
from steppe.studies.costs import describe_training
from steppe.train import train

LEARNS_ALL = {"learn_from_val": True}


@pytest.fixture(scope="module")
def run(digits, tmp_path_factory):
    return train(make_config(data=LEARNS_ALL, batch_size=128), digits, tmp_path_factory.mktemp("runs") / "r")


def test_training_goes_over_training_and_validation_images(digits, run):
    both = len(digits.train) + len(digits.val)
    assert run.metrics()[0]["steps"] == both // 128 > len(digits.train) // 128
    assert run.summary["train"]["examples"] == both
    assert run.summary["test"]["examples"] == len(digits.test)
    assert describe_training(run)["images_per_s"] > 0


def test_nothing_is_validated(run):
    assert [(r["val_loss"], r["val_accuracy"]) for r in run.metrics()] == [(None, None)] * 3
    assert run.summary["val"] is None


def test_joined_images_are_those_of_both_splits(digits, colour_images):
    streamed = load(RunConfig.model_validate({"data": {"name": str(colour_images)}}).data, keeping=Keeping("stream"))
    for dataset in (digits, streamed):
        learned = dataset.learn_from_val()
        assert torch.equal(learned.train.images, torch.cat([dataset.train.images, dataset.val.images]))
        assert torch.equal(learned.train.labels, torch.cat([dataset.train.labels, dataset.val.labels]))
        assert learned.train.in_memory == dataset.train.in_memory
        assert (len(learned.val), learned.mean) == (0, dataset.mean)


def test_it_resumes_to_the_same_weights(digits, tmp_path):
    whole, resumed = train_whole_and_resumed(make_config(data=LEARNS_ALL), digits, tmp_path, KillAt(8, 5))
    assert weights(resumed) == weights(whole)
    assert story(resumed) == story(whole)


def test_a_head_on_kept_features_learns_them_too(digits, tmp_path, tiny_weights, colour_images):
    config = make_config(
        batch_size=16,
        data={"name": str(colour_images), **LEARNS_ALL},
        model={"name": "test_resnet", "mode": "frozen", "weights": str(tiny_weights / "test_resnet.safetensors")},
        minimizer={},
        augment={},
    )
    dataset = load(config.data)
    run = train(config, dataset, tmp_path / "r")
    assert run.summary["train"]["examples"] == len(dataset.train) + len(dataset.val)


def test_weights_that_the_last_step_ruined_are_not_kept(digits, tmp_path):
    config = make_config(
        data=LEARNS_ALL,
        minimizer={},
        optimizer={"name": "sgd", "lr": 1e38},
        schedule={"name": "constant"},
        budget={"gradient_evaluations": 1},
    )
    with pytest.raises(TrainingError, match="no longer a finite number"):
        train(config, digits, tmp_path / "r")


def test_no_temperature_is_fitted_on_images_that_were_learned(run):
    found = get_calibration(open_trained(run.path, device="cpu"))
    assert found == "it learned its validation images, so they do not tell how sure to be"


def test_patience_is_refused():
    with pytest.raises(ValueError, match="patience needs validation images"):
        make_config(data=LEARNS_ALL, patience=2)


def test_a_search_cannot_judge_by_them(digits, tmp_path):
    with pytest.raises(ConfigError, match="no validation images to judge"):
        train(make_config(data=LEARNS_ALL), digits, tmp_path / "r", val_examples=10)
    assert not (tmp_path / "r").exists()


def test_run_that_is_not_judged_learns_all_and_sees_no_test_images(digits, tmp_path):
    config = make_config(data=LEARNS_ALL, batch_size=128, budget={"epochs": 1})
    run = train(config, digits, tmp_path / "r", val_examples=0)
    assert run.metrics()[0]["steps"] == (len(digits.train) + len(digits.val)) // 128
    assert run.summary["val"] is None
    assert "test" not in run.summary


def test_terminal_table_and_page_say_no_validation_figure(run, tmp_path):
    line = epoch_line(run.metrics()[-1], 3)
    assert "val" not in line
    assert "train acc" in line
    (row,) = summarise([run])
    assert (row.val_accuracy.mean, row.test_accuracy.mean) == (None, run.summary["test"]["accuracy"])
    page = write_report([run], tmp_path / "page.html").read_text()
    assert f"{run.summary['train']['examples']:,} training" in page
