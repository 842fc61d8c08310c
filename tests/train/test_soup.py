"""Soups: averages of the weights of runs, judged like any run."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_pretrained import load, probe_config
from torch import nn

from steppe import models
from steppe.config import RunConfig
from steppe.data import as_learned
from steppe.deploy import open_trained
from steppe.errors import ConfigError
from steppe.evaluate import measure_accuracy
from steppe.models.weights import average_states
from steppe.studies.subjects import load_model
from steppe.train import train


def soup_config(like: RunConfig, *runs: str, **sections) -> RunConfig:
    model = {"name": "test_resnet", "weights": "soup:" + ",".join(f"run:{run}" for run in runs), "mode": "soup"}
    return RunConfig.model_validate({"data": like.data, "model": model} | sections)


@pytest.fixture(scope="module")
def made(tmp_path_factory, colour_images, tiny_weights):
    """A folder with two probes of one network and their soup, and the images."""
    folder = tmp_path_factory.mktemp("soup")
    configs = [probe_config(colour_images, tiny_weights, "test_resnet", model={"penalty": p}) for p in (1e-1, 1e-4)]
    dataset = load(configs[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPPE_CACHE", str(folder / "cache"))
        runs = [train(config, dataset, folder / f"r{i}", device="cpu") for i, config in enumerate(configs)]
        with models.runs_beside(folder):
            soup = train(soup_config(configs[0], "r0", "r1"), dataset, folder / "soup", device="cpu")
    return folder, dataset, runs, soup


def test_weights_are_the_average_of_the_runs(made):
    _, _, runs, soup = made
    one, other, found = (load_file(run.weights) for run in (*runs, soup))
    assert set(found) == set(one)
    assert not torch.equal(one["fc.weight"], other["fc.weight"])
    for key, value in found.items():
        if "running" not in key and "tracked" not in key:
            torch.testing.assert_close(value, (one[key] + other[key]) / 2)


def test_batchnorm_statistics_are_those_of_the_training_images(made):
    _, dataset, _, soup = made
    dataset = as_learned(dataset, soup.read("data.json"))
    seen: list[torch.Tensor] = []
    model = load_model(soup, dataset)
    norm = next(module for module in model.modules() if isinstance(module, nn.BatchNorm2d))
    norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    measure_accuracy(model, dataset.train, dataset, device=torch.device("cpu"))
    values = torch.cat(seen).transpose(0, 1).flatten(1)
    torch.testing.assert_close(norm.running_mean, values.mean(1), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(norm.running_var, values.var(1), rtol=2e-2, atol=1e-4)


def test_figures_are_those_of_the_network(made):
    _, dataset, _, soup = made
    model = open_trained(soup.path, device="cpu").model
    dataset = as_learned(dataset, soup.read("data.json"))
    for name, split in (("val", dataset.val), ("test", dataset.test)):
        found = measure_accuracy(model, split, dataset, device=torch.device("cpu"))
        assert soup.summary[name]["accuracy"] == found["accuracy"]
        assert soup.summary[name]["loss"] == pytest.approx(found["loss"], abs=1e-5)


def test_soup_that_is_compared_sees_no_test_images(made, tmp_path):
    folder, dataset, runs, _ = made
    with models.runs_beside(folder):
        run = train(soup_config(runs[0].config, "r0", "r1"), dataset, tmp_path / "s", device="cpu", val_examples=5)
    assert "test" not in run.summary
    assert run.summary["val"]["examples"] < len(dataset.val)


def test_soup_of_one_is_that_one_with_other_statistics(made, tmp_path):
    folder, dataset, runs, _ = made
    with models.runs_beside(folder):
        run = train(soup_config(runs[0].config, "r0"), dataset, tmp_path / "s", device="cpu")
    assert torch.equal(load_file(run.weights)["fc.weight"], load_file(runs[0].weights)["fc.weight"])


def test_weights_of_different_networks_are_refused(made, tmp_path):
    _, dataset, runs, _ = made
    state = load_file(runs[0].weights)
    (tmp_path / "r0").mkdir()
    (tmp_path / "other").mkdir()
    save_file(state, tmp_path / "r0" / "weights.safetensors")
    save_file({key: value for key, value in state.items() if key != "fc.bias"}, tmp_path / "other/weights.safetensors")
    with models.runs_beside(tmp_path), pytest.raises(ConfigError, match="different networks"):
        train(soup_config(runs[0].config, "r0", "other"), dataset, tmp_path / "s", device="cpu")


def test_changed_ingredient_is_another_soup(made):
    folder, _, _, _ = made
    with models.runs_beside(folder):
        digests = {models.weights_sha256(f"soup:{runs}") for runs in ("run:r0,run:r1", "run:r1,run:r1", "run:r0")}
    assert len(digests) == 3


def test_whole_numbers_are_those_of_the_first():
    states = [{"count": torch.tensor(n), "w": torch.full((2,), float(n), dtype=torch.float16)} for n in (1, 4)]
    found = average_states(states, "two")
    assert found["count"] == 1
    assert torch.equal(found["w"], torch.full((2,), 2.5, dtype=torch.float16))


@pytest.mark.parametrize(
    "section",
    [{"label_smoothing": 0.1}, {"augment": {"flip": True}}, {"minimizer": {"name": "sam"}}, {"ema": 0.9}],
)
def test_settings_of_training_are_refused(made, section):
    with pytest.raises(ValueError, match="soup"):
        soup_config(made[2][0].config, "r0", "r1", **section)


@pytest.mark.parametrize("model", [{"mode": "soup", "weights": "run:a"}, {"mode": "finetune", "weights": "soup:run:a"}])
def test_mode_and_weights_go_together(model):
    with pytest.raises(ValueError, match="go together"):
        RunConfig.model_validate({"model": {"name": "test_resnet"} | model})
