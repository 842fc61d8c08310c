"""A run that begins from a file of weights remembers which one that was."""

from __future__ import annotations

import hashlib
import signal

import pytest
from safetensors.torch import load_file, save_file

from steppe.config import RunConfig
from steppe.errors import Interrupted, RunError
from steppe.models import weights_sha256
from steppe.runs import Observer
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


def make_config(weights) -> RunConfig:
    model = {"name": "resnet_tiny", "mode": "finetune", "weights": str(weights)}
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


def test_a_run_folder_counts_by_its_weights_and_a_hub_has_versions_of_its_own(weights, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "weights.safetensors").write_bytes(weights.read_bytes())
    assert weights_sha256(str(tmp_path / "run")) == weights_sha256(str(weights))
    assert weights_sha256("timm:resnet18") is weights_sha256("hf-hub:timm/resnet18.a1_in1k") is None
    assert weights_sha256("timm") is None


def test_a_run_from_scratch_has_no_digest(digits, tmp_path):
    config = make_config("x").model_copy(update={"model": RunConfig().model.model_copy(update={"name": "resnet_tiny"})})
    run = train(config, digits, tmp_path / "r")
    assert "weights_sha256" not in run.read("data.json")
