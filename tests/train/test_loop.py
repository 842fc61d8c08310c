"""The loop's promises: exact resumption, clean stops, and no loss when something breaks."""

from __future__ import annotations

import json
import resource
import signal
from pathlib import Path

import pytest
import torch

import steppe.train.loop as loop
from steppe import data
from steppe.config import MINIMIZER_DEFAULTS, DataConfig, RunConfig
from steppe.errors import Interrupted, RunError, TrainingError
from steppe.minimizers import METHODS
from steppe.runs import Observer, Run
from steppe.train import build_minimizer, build_model, train


class KilledError(BaseException):
    """Stands for SIGKILL: nothing after it may run in the loop but what Python itself unwinds."""


class KillAt(Observer):
    def __init__(self, step: int, steps_per_epoch: int) -> None:
        self.step_, self.per_epoch = step, steps_per_epoch

    def step(self, epochs: float) -> None:
        if round(epochs * self.per_epoch) == self.step_:
            raise KilledError


@pytest.fixture(scope="module")
def digits():
    return data.load(DataConfig())


def make_config(**changes) -> RunConfig:
    values = {
        "batch_size": 256,
        "model": {"name": "mixer_tiny_p2", "dropout": 0.1, "drop_path": 0.1},
        "minimizer": {"name": "sam"},
        "schedule": {"name": "cosine", "warmup": 0.2},
        "augment": {"crop_padding": 1, "flip": True},
        "budget": {"epochs": 3},
    }
    return RunConfig.model_validate({**values, **changes})


def weights(run: Run) -> bytes:
    return run.weights.read_bytes()


def story(run: Run) -> list[dict]:
    return [{k: v for k, v in r.items() if k != "time_s"} for r in run.metrics()]


@pytest.mark.parametrize("model", ["mixer_tiny_p2", "resnet_tiny"])
@pytest.mark.parametrize("minimizer", ["base", "sam", "asam"])
def test_killed_anywhere_and_resumed_gives_the_same_run(digits, tmp_path, model, minimizer):
    config = make_config(
        model={"name": model, "dropout": 0.1, "drop_path": 0.1}, minimizer={"name": minimizer}, budget={"epochs": 2}
    )
    whole = train(config, digits, tmp_path / "whole")
    for kill_at in (1, 5, 7):
        out = tmp_path / f"killed-{kill_at}"
        with pytest.raises(KilledError):
            train(config, digits, out, observer=KillAt(kill_at, 5))
        resumed = train(config, digits, out)
        assert weights(resumed) == weights(whole)
        assert story(resumed) == story(whole)
        assert resumed.summary["test"] == whole.summary["test"]


def test_killed_between_record_and_checkpoint(digits, tmp_path, monkeypatch):
    config = make_config()
    whole = train(config, digits, tmp_path / "whole")
    save, calls = loop.save_checkpoint, []

    def killed_the_second_time(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise KilledError
        save(*arguments)

    monkeypatch.setattr(loop, "save_checkpoint", killed_the_second_time)
    with pytest.raises(KilledError):
        train(config, digits, tmp_path / "killed")
    assert len((tmp_path / "killed" / "metrics.jsonl").read_text().splitlines()) == 2
    resumed = train(config, digits, tmp_path / "killed")
    assert weights(resumed) == weights(whole)
    assert story(resumed) == story(whole)


def test_a_stop_in_mid_epoch_keeps_the_very_step(digits, tmp_path):
    config = make_config()
    whole = train(config, digits, tmp_path / "whole")

    class StopAt(Observer):
        def step(self, epochs: float) -> None:
            if round(epochs * 5) == 7:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match=r"step 7 .*nothing is lost"):
        train(config, digits, tmp_path / "stopped", observer=StopAt())
    assert loop.load_checkpoint(tmp_path / "stopped" / "checkpoint.safetensors")["steps"] == 7
    seen = []

    class See(Observer):
        def start(self, run: Run, total_epochs: float, done_epochs: float) -> None:
            seen.append(done_epochs)

    resumed = train(config, digits, tmp_path / "stopped", observer=See())
    assert seen == [7 / 5]
    assert weights(resumed) == weights(whole)
    assert story(resumed) == story(whole)


def test_a_finished_run_is_returned_as_it_is(digits, tmp_path):
    config = make_config(budget={"epochs": 1})
    run = train(config, digits, tmp_path / "r")
    before = {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in run.path.iterdir()}
    assert "checkpoint.safetensors" not in before
    train(config, digits, tmp_path / "r")
    assert {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in run.path.iterdir()} == before


def test_a_loss_that_turns_nan(digits, tmp_path, monkeypatch):
    plain = loop.lr_factor
    monkeypatch.setattr(loop, "lr_factor", lambda s, share: 1e30 if share > 0.5 else plain(s, share))
    with pytest.raises(TrainingError) as caught:
        train(make_config(), digits, tmp_path / "r")
    text = str(caught.value)
    assert "step 9 (epoch 2)" in text
    assert "after epoch 1, is kept" in text
    assert "smaller optimizer.lr than 0.001" in text
    run = Run(tmp_path / "r")
    assert run.summary["status"] == "failed"
    assert "step 9" in run.summary["reason"]
    kept = loop.load_checkpoint(run.checkpoint)
    assert kept["steps"] == 5
    assert all(torch.isfinite(v).all() for v in kept["model"].values())
    monkeypatch.setattr(loop, "lr_factor", plain)
    assert train(make_config(), digits, tmp_path / "r").finished


def test_a_full_disk_costs_nothing(digits, tmp_path):
    config = make_config()
    whole = train(config, digits, tmp_path / "whole")
    with pytest.raises(KilledError):
        train(config, digits, tmp_path / "r", observer=KillAt(6, 5))
    before = (tmp_path / "r" / "checkpoint.safetensors").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 * 1024, hard))
    try:
        with pytest.raises(RunError, match="disk is full"):
            train(config, digits, tmp_path / "r")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "r" / "checkpoint.safetensors").read_bytes() == before
    assert not list((tmp_path / "r").glob("*.tmp")) + list((tmp_path / "r").glob(".*.tmp"))
    resumed = train(config, digits, tmp_path / "r")
    assert weights(resumed) == weights(whole)
    assert story(resumed) == story(whole)


def test_other_data_or_a_foreign_checkpoint_is_refused(digits, tmp_path):
    config = make_config()
    with pytest.raises(KilledError):
        train(config, digits, tmp_path / "r", observer=KillAt(6, 5))
    other = data.load(DataConfig(split_seed=1))
    with pytest.raises(RunError, match="not what this run was made with"):
        train(config, other, tmp_path / "r")
    checkpoint = tmp_path / "r" / "checkpoint.safetensors"
    for content in (b"", b"junk" * 100, checkpoint.read_bytes()[:-50]):
        checkpoint.write_bytes(content)
        with pytest.raises(RunError, match="checkpoint is damaged"):
            train(config, digits, tmp_path / "r")
    tree = {"config_hash": config.hash, "model": {}, "minimizer": {}}
    loop.save_checkpoint(checkpoint, tree)
    with pytest.raises(RunError, match="does not fit"):
        train(config, digits, tmp_path / "r")


def test_a_budget_of_gradient_evaluations_is_kept(digits, tmp_path):
    for name, evaluations, steps in (("base", 7, 7), ("sam", 7, 3)):
        config = make_config(minimizer={"name": name}, budget={"gradient_evaluations": evaluations})
        summary = train(config, digits, tmp_path / name).summary
        assert summary["steps"] == steps
        assert summary["gradient_evaluations"] <= evaluations


def test_the_seed_decides_everything_and_the_callers_randomness_is_left_alone(digits, tmp_path):
    config = make_config(budget={"epochs": 1})
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one = train(config, digits, tmp_path / "1")
    assert torch.equal(torch.rand(3), expected)
    two = train(config, digits, tmp_path / "2")
    assert weights(one) == weights(two)
    other = train(config.model_copy(update={"seed": 1}), digits, tmp_path / "3")
    assert weights(other) != weights(one)


def test_training_learns(digits, tmp_path):
    config = make_config(
        model={"name": "resnet_tiny"}, batch_size=64, optimizer={"lr": 2e-3}, augment={}, budget={"epochs": 4}
    )
    run = train(config, digits, tmp_path / "r")
    assert run.summary["test"]["accuracy"] > 0.9
    assert run.summary["test"]["examples"] == 359
    records = run.metrics()
    assert records[-1]["train_loss"] < 0.3 < records[0]["train_loss"]
    assert [r["gradient_evaluations"] for r in records] == [40, 80, 120, 160]


def test_bfloat16_runs(digits, tmp_path):
    run = train(make_config(precision="bfloat16", budget={"epochs": 1}), digits, tmp_path / "r")
    assert run.finished


def test_weight_decay_spares_biases_and_norms(digits):
    config = make_config(optimizer={"name": "sgd"})
    minimizer = build_minimizer(config, build_model(config, digits))
    decays = {(p.ndim > 1, group["weight_decay"]) for group in minimizer.param_groups for p in group["params"]}
    assert decays == {(True, 5e-4), (False, 0.0)}


@pytest.mark.parametrize("name", sorted(MINIMIZER_DEFAULTS))
def test_config_and_minimizers_agree_on_defaults(name):
    own = METHODS[name].defaults
    ours = {key: value for key, value in MINIMIZER_DEFAULTS[name].items() if key != "scaling"}
    assert {key: own[key] for key in ours} == ours


def test_every_minimizer_has_a_config():
    assert set(METHODS) == set(MINIMIZER_DEFAULTS)


VARIANTS = [
    *({"name": name} for name in MINIMIZER_DEFAULTS),
    {"name": "sam", "ascent_fraction": 0.25},
    {"name": "asam", "m": 64, "scaling": "layer"},
    {"name": "sam", "sharp_every": 3, "replay_rng": True},
    {"name": "sam", "sharp_last": 0.5},
]


@pytest.mark.parametrize("minimizer", VARIANTS, ids=lambda v: "-".join(map(str, v.values())))
def test_every_method_trains_and_resumes_exactly(digits, tmp_path, minimizer):
    config = make_config(minimizer=minimizer, optimizer={"name": "sgd", "lr": 0.05}, budget={"epochs": 2})
    whole = train(config, digits, tmp_path / "whole")
    with pytest.raises(KilledError):
        train(config, digits, tmp_path / "killed", observer=KillAt(8, 5))
    resumed = train(config, digits, tmp_path / "killed")
    assert weights(resumed) == weights(whole)
    assert story(resumed) == story(whole)
    spent = whole.summary["gradient_evaluations"] / whole.summary["steps"]
    if minimizer["name"] != "aesam":
        assert spent == pytest.approx(config.minimizer.expected_gradients, abs=0.21)


def test_metrics_are_plain_json(digits, tmp_path):
    run = train(make_config(budget={"epochs": 1}), digits, tmp_path / "r")
    for path in Path(run.path).glob("*.json"):
        json.loads(path.read_text(), parse_constant=pytest.fail)
