"""The loop's promises: exact resumption, clean stops, and no loss when something breaks."""

from __future__ import annotations

import json
import math
import resource
import signal
from pathlib import Path

import pytest
import torch

import steppe.train.loop as loop
import steppe.train.objectives as objectives
from steppe import data
from steppe.config import MINIMIZER_DEFAULTS, OPTIMIZER_DEFAULTS, DataConfig, RunConfig
from steppe.errors import ConfigError, Interrupted, RunError, TrainingError
from steppe.minimizers import METHODS
from steppe.runs import Observer, Run
from steppe.train import build_minimizer, build_model, train
from steppe.train.averaging import WeightAverage


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


def test_ctrl_c_in_the_final_evaluation_is_obeyed(digits, tmp_path, capfd):
    config = make_config(budget={"epochs": 1})
    whole = train(config, digits, tmp_path / "whole")
    told: list[tuple[int, int]] = []

    class StopThere(Observer):
        def evaluate(self, done: int, total: int) -> None:
            told.append((done, total))
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="nothing is lost"):
        train(config, digits, tmp_path / "stopped", observer=StopThere())
    splits = (digits.train, digits.val, digits.test)
    assert told[0][1] == sum(map(len, splits))
    assert len(told) == 1, "it stops there, not at the end"
    assert "stopping" in capfd.readouterr().err
    assert not Run(tmp_path / "stopped").finished
    resumed = train(config, digits, tmp_path / "stopped")
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


def test_ctrl_c_after_a_ruinous_step_keeps_no_ruins(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "lr_factor", lambda s, share: 1e30)

    class StopAtOnce(Observer):
        def step(self, epochs: float) -> None:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(TrainingError, match="no checkpoint before it"):
        train(make_config(), digits, tmp_path / "r", observer=StopAtOnce())
    assert not Run(tmp_path / "r").checkpoint.exists()


def test_a_mistake_leaves_no_folder(digits, tmp_path):
    for changes in (
        {"model": {"name": "no_such"}},
        {"minimizer": {"name": "msam"}, "optimizer": {"name": "sgd", "momentum": 0}},
    ):
        with pytest.raises(ConfigError):
            train(make_config(**changes), digits, tmp_path / "r")
        assert not (tmp_path / "r").exists()


def test_leftovers_of_a_kill_are_swept_up(digits, tmp_path):
    config = make_config(budget={"epochs": 1})
    with pytest.raises(KilledError):
        train(config, digits, tmp_path / "r", observer=KillAt(2, 5))
    (tmp_path / "r" / ".checkpoint.safetensors.abc.tmp").write_bytes(b"half")
    run = train(config, digits, tmp_path / "r")
    assert not list(run.path.glob(".*.tmp"))
    assert len(run.read("env.json")["earlier"]) == 1


def test_a_finished_run_without_weights_is_trained_again(digits, tmp_path):
    config = make_config(budget={"epochs": 1})
    run = train(config, digits, tmp_path / "r")
    before = weights(run)
    run.weights.unlink()
    assert not run.finished
    assert weights(train(config, digits, tmp_path / "r")) == before


def test_a_changed_bit_in_a_checkpoint_is_noticed(digits, tmp_path):
    config = make_config()
    with pytest.raises(KilledError):
        train(config, digits, tmp_path / "r", observer=KillAt(6, 5))
    checkpoint = tmp_path / "r" / "checkpoint.safetensors"
    content = bytearray(checkpoint.read_bytes())
    content[-1000] ^= 1
    checkpoint.write_bytes(content)
    with pytest.raises(RunError, match="digest"):
        train(config, digits, tmp_path / "r")


def test_one_image_at_a_time_does_not_suit_batchnorm(tmp_path):
    tiny = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
    split = data.Split(tiny, torch.arange(4) % 2)
    dataset = data.divide(data.Source(("a", "b"), split, split, split), DataConfig(name="x"))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2), torch.nn.BatchNorm1d(2))
    config = make_config(model={"name": "resnet_tiny"}, batch_size=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "build_model", lambda *_: model)
        with pytest.raises(TrainingError, match="one image at a time"):
            train(config, dataset, tmp_path / "r")
    assert Run(tmp_path / "r").summary["status"] == "failed"


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
    every_second = {"name": "sam", "sharp_every": 2}
    cases = [({"name": "base"}, 7, 7), ({"name": "sam"}, 7, 3), (every_second, 7, 4), (every_second, 6, 4)]
    for number, (minimizer, evaluations, expected) in enumerate(cases):
        config = make_config(minimizer=minimizer, budget={"gradient_evaluations": evaluations})
        summary = train(config, digits, tmp_path / str(number)).summary
        assert summary["steps"] == expected
        assert summary["gradient_evaluations"] <= evaluations
    with pytest.raises(TrainingError, match="does not pay for one step"):
        train(make_config(budget={"gradient_evaluations": 1}), digits, tmp_path / "none")


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


@pytest.mark.parametrize(
    ("optimizer", "decays"),
    [
        ({"name": "adamw"}, {(True, 0.05), (False, 0.0)}),
        ({"name": "sgd"}, {(True, 5e-4), (False, 5e-4)}),
        ({"name": "sgd", "decay_norms": False}, {(True, 5e-4), (False, 0.0)}),
    ],
)
def test_whether_biases_and_norms_decay(digits, optimizer, decays):
    config = make_config(model={"name": "resnet_tiny"}, optimizer=optimizer)
    minimizer = build_minimizer(config, build_model(config, digits))
    assert {(p.ndim > 1, group["weight_decay"]) for group in minimizer.param_groups for p in group["params"]} == decays


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


def test_micro_batches_give_the_same_update(digits, tmp_path):
    """No BatchNorm, no dropout: only the order of additions differs."""
    model = {"name": "mixer_tiny_p2"}
    for minimizer in ({"name": "base"}, {"name": "sam"}, {"name": "asam"}, {"name": "sam", "ascent_fraction": 0.5}):
        runs = []
        for parts in (None, 3):
            config = make_config(
                model=model,
                minimizer=minimizer,
                accumulate=parts,
                optimizer={"name": "sgd", "lr": 0.05},
                budget={"epochs": 1},
            )
            runs.append(train(config, digits, tmp_path / f"{minimizer['name']}-{len(minimizer)}-{parts}"))
        whole, *split = (run.metrics() for run in runs)
        for other in split:
            for key in ("train_loss", "val_loss", "train_accuracy"):
                assert [r[key] for r in other] == pytest.approx([r[key] for r in whole], rel=1e-3)
            assert [r["gradient_evaluations"] for r in other] == [r["gradient_evaluations"] for r in whole]


def test_running_out_of_memory_splits_the_batch(digits, tmp_path, monkeypatch):
    plain = objectives.example_losses
    said = []

    def limited(logits, targets, config):
        if len(targets) > 100:
            raise torch.OutOfMemoryError("out of memory")
        return plain(logits, targets, config)

    class Listen(Observer):
        def say(self, text: str) -> None:
            said.append(text)

    config = make_config(model={"name": "mixer_tiny_p2"})
    whole = train(config, digits, tmp_path / "whole")
    monkeypatch.setattr(objectives, "example_losses", limited)
    split = train(config, digits, tmp_path / "split", observer=Listen())
    assert said == [
        "memory ran out: going on with 2 micro-batches a step, which is the same update",
        "memory ran out: going on with 4 micro-batches a step, which is the same update",
    ]
    assert split.metrics()[-1]["val_loss"] == pytest.approx(whole.metrics()[-1]["val_loss"], rel=1e-3)
    monkeypatch.setattr(objectives, "example_losses", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("none")))
    with pytest.raises(TrainingError, match="even in parts"):
        train(config, digits, tmp_path / "none")


def test_a_budget_of_seconds_is_kept_and_the_schedule_follows_it(digits, tmp_path):
    config = make_config(budget={"seconds": 1.0}, schedule={"name": "linear"})
    run = train(config, digits, tmp_path / "r")
    assert 1.0 <= run.summary["time_s"] < 1.5
    last = run.metrics()[-1]
    assert last["lr"] < 0.2 * config.optimizer.lr
    rates = [r["lr"] for r in run.metrics()]
    assert rates == sorted(rates, reverse=True)


def test_early_stopping(digits, tmp_path, monkeypatch):
    losses = iter([3.0, 2.0, 2.5, 2.1, 1.0, 9.0])
    monkeypatch.setattr(
        loop, "measure_accuracy", lambda *_, **__: {"loss": next(losses, 5.0), "accuracy": 0.5, "examples": 1}
    )
    run = train(make_config(patience=2, budget={"epochs": 10}), digits, tmp_path / "r")
    assert run.summary["epochs"] == 4


def test_the_average_of_the_weights_is_kept_and_resumed(digits, tmp_path):
    config = make_config(ema=0.9, minimizer={"name": "base"})
    whole = train(config, digits, tmp_path / "whole")
    assert weights(whole) != weights(train(make_config(minimizer={"name": "base"}), digits, tmp_path / "plain"))
    with pytest.raises(KilledError):
        train(config, digits, tmp_path / "killed", observer=KillAt(8, 5))
    resumed = train(config, digits, tmp_path / "killed")
    assert weights(resumed) == weights(whole)
    assert story(resumed) == story(whole)


def test_the_average_follows_its_formula():
    model = torch.nn.Linear(2, 1, bias=False).double()
    average = WeightAverage(model, 0.5)
    expected = model.weight.detach().clone()
    for step in range(1, 30):
        torch.nn.init.normal_(model.weight)
        average.update()
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * model.weight.detach()
    own = model.weight.detach().clone()
    with average.in_place():
        torch.testing.assert_close(model.weight.detach(), expected)
    assert torch.equal(model.weight, own)


def test_the_radius_can_fall(digits, tmp_path):
    config = make_config(minimizer={"name": "sam", "rho": 0.1, "rho_final": 0.5})
    rhos = [r["rho"] for r in train(config, digits, tmp_path / "r").metrics()]
    expected = [0.1 * (0.5 + 0.25 * (1 + math.cos(math.pi * step / 15))) for step in (4, 9, 14)]
    assert rhos == pytest.approx(expected)


@pytest.mark.parametrize("name", sorted(OPTIMIZER_DEFAULTS))
def test_every_optimizer_learns_and_resumes(digits, tmp_path, name):
    config = make_config(
        model={"name": "resnet_tiny"}, minimizer={"name": "sam"}, optimizer={"name": name}, batch_size=128, augment={}
    )
    whole = train(config, digits, tmp_path / "whole")
    assert whole.metrics()[-1]["train_loss"] < 1.5
    with pytest.raises(KilledError):
        train(config, digits, tmp_path / "killed", observer=KillAt(15, 10))
    assert weights(train(config, digits, tmp_path / "killed")) == weights(whole)


def test_losses():
    logits = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).float()
    labels = torch.tensor([0, 2, 1, 1, 0])
    hot = torch.nn.functional.one_hot(labels, 3).float()
    plain = objectives.example_losses(logits, labels, make_config())
    torch.testing.assert_close(plain, -(logits.log_softmax(1) * hot).sum(1))
    torch.testing.assert_close(plain, objectives.example_losses(logits, hot, make_config()))
    wanted = hot * 0.9 + 0.1 / 3
    by_hand = -(wanted * logits.sigmoid().log() + (1 - wanted) * (1 - logits.sigmoid()).log()).sum(1)
    config = make_config(sigmoid_loss=True, label_smoothing=0.1)
    torch.testing.assert_close(objectives.example_losses(logits, labels, config), by_hand)
    torch.testing.assert_close(objectives.example_losses(logits, hot, config), by_hand)
    assert (
        objectives.count_hits(logits, labels)
        == objectives.count_hits(logits, hot)
        == (logits.argmax(1) == labels).sum()
    )


def test_metrics_are_plain_json(digits, tmp_path):
    run = train(make_config(budget={"epochs": 1}), digits, tmp_path / "r")
    for path in Path(run.path).glob("*.json"):
        json.loads(path.read_text(), parse_constant=pytest.fail)
