"""Exact resumption, clean stops, and no loss when something breaks."""

from __future__ import annotations

import resource
import signal

import pytest
import torch
from training import KillAt, KilledError, make_config, story, weights

import steppe.train.loop as loop
from steppe import data
from steppe.config import DataConfig
from steppe.errors import ConfigError, DataError, Interrupted, RunError, TrainingError
from steppe.runs import Observer, Run
from steppe.train import train


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
    monkeypatch.setattr(loop.Training, "_save_is_due", lambda self: True)  # on a slow disk, too
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
    with pytest.raises(DataError, match="not those this run was made with: the training images are others"):
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
