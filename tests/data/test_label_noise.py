"""Wrong training labels: as many as were asked for, the same for every run, and in training alone."""

import json

import pytest
import torch

from steppe import data
from steppe.config import DataConfig, RunConfig, parse
from steppe.errors import ConfigError
from steppe.train import train


@pytest.fixture(scope="module")
def clean():
    return data.load(DataConfig(name="digits"))


@pytest.fixture(scope="module")
def noisy():
    return data.load(DataConfig(name="digits", label_noise=0.3))


def test_label_noise_replaces_the_share_by_other_classes(clean, noisy):
    wrong = noisy.train.labels != clean.train.labels
    assert int(wrong.sum()) == noisy.wrong_labels == round(0.3 * len(clean.train))
    assert noisy.train.labels.min() == 0
    assert noisy.train.labels.max() == 9
    shifts = (noisy.train.labels - clean.train.labels)[wrong] % 10
    assert torch.bincount(shifts, minlength=10)[1:].min() > 0.05 * wrong.sum()  # each other class alike


def test_label_noise_leaves_images_and_other_splits_alone(clean, noisy):
    assert torch.equal(noisy.train.images, clean.train.images)
    for split in ("val", "test"):
        assert getattr(noisy, split).fingerprints() == getattr(clean, split).fingerprints()
    assert (noisy.mean, noisy.std) == (clean.mean, clean.std)
    assert noisy.fingerprint != clean.fingerprint


def test_label_noise_is_drawn_by_the_split_seed(noisy):
    again = data.load(DataConfig(name="digits", label_noise=0.3))
    assert torch.equal(again.train.labels, noisy.train.labels)
    shares = [data.load(DataConfig(name="digits", label_noise=0.3, split_seed=seed)) for seed in (1, 2)]
    assert not torch.equal(shares[0].train.labels, shares[1].train.labels)


def test_label_noise_is_in_the_hash_and_in_data_json(tmp_path, noisy):
    values = {"data": {"name": "digits", "label_noise": 0.3}, "model": {"name": "mlp_8"}, "budget": {"epochs": 1}}
    config = parse(RunConfig, values, where="test")
    plain = parse(RunConfig, values | {"data": {"name": "digits"}}, where="test")
    assert config.run_id != plain.run_id
    run = train(config, noisy, tmp_path / "run", device="cpu")
    assert json.loads((run.path / "data.json").read_text())["wrong_labels"] == noisy.wrong_labels


def test_label_noise_refuses_to_learn_from_right_validation_labels():
    with pytest.raises(ConfigError, match="label_noise leaves validation labels right"):
        parse(DataConfig, {"label_noise": 0.2, "learn_from_val": True}, where="test")
