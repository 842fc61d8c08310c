"""A run that begins from weights of elsewhere, a file or a name of the hub, remembers which they were."""

from __future__ import annotations

import hashlib
import json
import signal

import numpy as np
import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from steppe import data
from steppe.config import MINIMIZER_DEFAULTS, DataConfig, RunConfig
from steppe.deploy.trained import open_trained
from steppe.errors import Interrupted, RunError
from steppe.evaluate import measure_accuracy
from steppe.models import build, weights_sha256
from steppe.models.weights import state_sha256
from steppe.runs import Observer, Run
from steppe.studies.subjects import open_run
from steppe.train import train
from steppe.train.checkpoint import save_weights
from steppe.train.setup import build_model


class StopAtOnce(Observer):
    def epoch(self, record):
        signal.raise_signal(signal.SIGINT)


@pytest.fixture
def weights(digits, tmp_path):
    path = tmp_path / "start.safetensors"
    save_weights(path, build_model(RunConfig.model_validate({"model": {"name": "resnet_tiny"}}), digits).state_dict())
    return path


def make_config(weights, name="resnet_tiny") -> RunConfig:
    model = {"name": name, "mode": "finetune", "weights": str(weights)}
    return RunConfig.model_validate({"batch_size": 256, "model": model, "budget": {"epochs": 2}})


def test_other_weights_are_refused_when_a_run_goes_on(digits, weights, tmp_path):
    config, out = make_config(weights), tmp_path / "r"
    before = weights.read_bytes()
    with pytest.raises(Interrupted):
        train(config, digits, out, observer=StopAtOnce())
    changed = {key: value + 1 if value.is_floating_point() else value for key, value in load_file(weights).items()}
    save_file(changed, weights)
    with pytest.raises(RunError, match="the weights this run began with have changed"):
        train(config, digits, out)
    weights.write_bytes(before)
    run = train(config, digits, out)
    assert run.read("data.json")["weights_sha256"] == hashlib.sha256(before).hexdigest()
    weights.unlink()
    assert train(config, digits, out).finished  # a finished run needs them no more


def test_a_run_from_before_digests_takes_the_file_as_it_is(digits, weights, tmp_path):
    config, out = make_config(weights), tmp_path / "r"
    with pytest.raises(Interrupted):
        train(config, digits, out, observer=StopAtOnce())
    about = out / "data.json"
    about.write_text(about.read_text().replace('"weights_sha256"', '"something_else"'))
    assert train(config, digits, out).read("data.json")["weights_sha256"] == weights_sha256(str(weights))


def test_a_run_folder_counts_by_its_weights(weights, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "weights.safetensors").write_bytes(weights.read_bytes())
    assert weights_sha256(str(tmp_path / "run")) == weights_sha256(str(weights))


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A cache of the Hugging Face hub, as a machine without a network may have one; gives what puts weights there."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))

    def put(repository: str, state: dict[str, torch.Tensor]) -> None:
        folder = tmp_path / "hub" / f"models--{repository.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True, exist_ok=True)
        (folder / "refs" / "main").write_text("a" * 40)
        snapshot = folder / "snapshots" / ("a" * 40)
        snapshot.mkdir(parents=True, exist_ok=True)
        (snapshot / "config.json").write_text(json.dumps({"architecture": "test_resnet", "num_classes": 1000}))
        save_file(state, snapshot / "model.safetensors")

    return put


@pytest.mark.parametrize(
    ("source", "repository"),
    [
        ("timm", "timm/test_resnet.r160_in1k"),
        ("timm:test_resnet.r160_in1k", "timm/test_resnet.r160_in1k"),
        ("hf-hub:steppe/own", "steppe/own"),
    ],
)
def test_other_weights_under_a_name_of_the_hub_are_refused(digits, hub, tmp_path, source, repository):
    config, out = make_config(source, "timm:test_resnet"), tmp_path / "r"
    state = timm.create_model("test_resnet").state_dict()
    hub(repository, state)
    with pytest.raises(Interrupted):
        train(config, digits, out, observer=StopAtOnce())
    assert Run(out).read("data.json")["weights_sha256"] == state_sha256(state)
    hub(repository, {**state, "conv1.0.weight": state["conv1.0.weight"] + 1})
    with pytest.raises(RunError, match="the weights this run began with have changed"):
        train(config, digits, out)
    hub(repository, state)
    assert train(config, digits, out).finished


def test_what_the_hub_lacks_has_one_digest_and_draws_no_random_numbers(monkeypatch):
    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: create(name))  # a file that lacks everything
    before = torch.random.get_rng_state()
    assert weights_sha256("timm:test_vit") == weights_sha256("timm", "timm:test_vit")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_digest_of_a_state_is_of_names_types_shapes_and_numbers():
    state = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(1)}
    assert state_sha256(state) == state_sha256({"b": state["b"], "a": state["a"].t().contiguous().t()})
    others = [
        {"c": state["a"], "b": state["b"]},
        {"a": state["a"].double(), "b": state["b"]},
        {"a": state["a"].reshape(3, 2), "b": state["b"]},
        {"a": state["a"] + 1e-6, "b": state["b"]},
        {"a": state["a"]},
    ]
    assert len({state_sha256(some) for some in (state, *others)}) == 6


def test_a_run_from_scratch_has_no_digest(digits, tmp_path):
    config = make_config("x").model_copy(update={"model": RunConfig().model.model_copy(update={"name": "resnet_tiny"})})
    run = train(config, digits, tmp_path / "r")
    assert "weights_sha256" not in run.read("data.json")


@pytest.fixture
def colours(tmp_path):
    """Sixty images of 8 pixels in colour, far from what any weights expect."""
    pixels = np.random.default_rng(0).integers(100, 140, (60, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "colours.npz", x_train=pixels, y_train=np.arange(60) % 3)
    return tmp_path / "colours.npz"


def test_images_are_normalised_as_the_weights_expect_unless_told_otherwise(colours, hub, tmp_path):
    hub("timm/test_resnet.r160_in1k", timm.create_model("test_resnet").state_dict())

    def run(statistics, name, epochs=2, observer=None):
        values = make_config("timm", "timm:test_resnet").model_dump(exclude={"data", "budget"})
        values |= {"data": {"name": str(colours), "statistics": statistics}, "budget": {"epochs": epochs}}
        config = RunConfig.model_validate(values)
        return train(config, data.load(config.data), tmp_path / name, observer=observer)

    own, named = run("own", "own"), run("inception", "named")
    with pytest.raises(Interrupted):
        run(None, "told", observer=StopAtOnce())
    told = run(None, "told")  # gone on with, as it began
    assert told.read("data.json")["mean"] == [0.5] * 3
    assert told.read("data.json")["statistics"] == "timm"
    assert told.weights.read_bytes() == named.weights.read_bytes() != own.weights.read_bytes()
    assert own.read("data.json")["statistics"] == "own"
    assert own.read("data.json")["mean"] == list(data.load(own.config.data).mean)
    subject = open_run(told.path, device="cpu")
    assert (subject.dataset.mean, subject.dataset.std) == ((0.5,) * 3, (0.5,) * 3)
    assert open_trained(told.path, device="cpu").images.mean == (0.5,) * 3
    found = measure_accuracy(subject.model, subject.dataset.test, subject.dataset, device=subject.device)
    assert found["loss"] == pytest.approx(told.summary["test"]["loss"], rel=1e-5)


NO_NORMS = ("samon", "frozen")
"""It perturbs norms, and a head has none."""


@pytest.fixture(scope="module")
def few():
    return data.load(DataConfig(fraction=0.1))


@pytest.mark.parametrize(
    ("minimizer", "mode"),
    [(name, mode) for name in MINIMIZER_DEFAULTS for mode in ("finetune", "frozen") if (name, mode) != NO_NORMS],
)
def test_every_minimizer_leaves_a_head_of_zeros(few, tmp_path, minimizer, mode):
    """At first no gradient reaches the network below the head, so norms are zero that are divided by."""
    made = RunConfig.model_validate({"model": {"name": "resnet_tiny"}}).model
    start = build(made, image_size=8, channels=1, classes=3).state_dict()
    save_weights(tmp_path / "start.safetensors", start)
    values = make_config(tmp_path / "start.safetensors").model_dump(exclude={"minimizer", "budget"})
    values["model"]["mode"] = mode
    values |= {"batch_size": 32, "minimizer": {"name": minimizer}, "budget": {"gradient_evaluations": 12}}
    if minimizer == "asam":
        values["minimizer"] |= {"eta": 0.0, "scaling": "all"}  # radii of zero where weights are
    run = train(RunConfig.model_validate(values), few, tmp_path / "r")
    end = load_file(run.weights)
    assert all(bool(value.isfinite().all()) for value in end.values())
    assert end["head.weight"].any()
    assert end["head.bias"].any()
    assert torch.equal(end["conv1.weight"], start["conv1.weight"]) == (mode == "frozen")
