"""Trials of a search on a real local Ray cluster: spread, killed and stopped."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lock_holders import lock_holders

from steppe import data
from steppe.errors import Interrupted
from steppe.jobs import ENDS
from steppe.runs import Run
from steppe.train import train


@pytest.mark.long
def test_trials_of_a_search_are_spread(cluster, tmp_path):
    from steppe.config import DataConfig
    from steppe.search.fitting import Wanted, fit
    from steppe.search.journal import open_journal
    from steppe.search.observer import SearchObserver

    class Watch(SearchObserver):
        def say(self, text):
            threads.append(torch.get_num_threads())

    began = time.monotonic()
    wanted = Wanted(DataConfig(name="digits"), ("resnet_tiny",), weights="none")
    threads = [torch.get_num_threads()]
    torch.set_num_threads(3)
    try:
        found = fit(wanted, 40, tmp_path / "f", device="cpu", on_ray=True, observer=Watch())
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads.pop(0))
    assert time.monotonic() - began < 42
    assert set(threads) == {1}, "what is timed here must hold for the workers"
    assert found.best.summary["test"]["accuracy"] > 0.9
    trials = open_journal(tmp_path / "f").get_trials()
    spans = [(t.datetime_start, t.datetime_complete) for t in trials]
    at_once = max(sum(start <= moment < end for start, end in spans) for moment, _ in spans)
    assert at_once <= 2, "a core for each; on a busy machine the second worker may be ready only when all is done"
    folders = [t.user_attrs["run"] for t in trials if t.state.name == "COMPLETE"]
    assert all(Run(tmp_path / "f" / name).finished for name in folders)


@pytest.mark.long
def test_a_search_whose_folder_is_not_seen_ends_with_an_error(cluster, tmp_path, monkeypatch, capsys):
    from steppe.cli import main
    from steppe.jobs import ray as module

    class Blind(module.Worker):  # inside of a function, so that it travels by value
        def get_ready(self):
            host, _ = super().get_ready()
            return host, False

    monkeypatch.setattr(module, "Worker", Blind)
    folder = tmp_path / "f"
    with pytest.raises(SystemExit) as caught:
        main(["fit", "digits", "--weights", "none", "--on", "ray", "--device", "cpu", "--out", str(folder)])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert "does not see the search's folder" in said
    assert "Traceback" not in said


@pytest.fixture
def workers(cluster, tmp_path):
    """A search's folder with a trial in its journal, and workers that are slow to start."""
    from steppe.config import DataConfig
    from steppe.data import Keeping
    from steppe.jobs import ray as module
    from steppe.search.journal import begin_trial, choose, open_journal
    from steppe.search.space import Space

    class Slow(module.Worker):
        def get_ready(self):
            time.sleep(SLOW_S)
            return super().get_ready()

    study = open_journal(tmp_path)
    begin_trial(study, choose(study, Space(("mlp_8",)), 0, None), {"rung": 0})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Worker", Slow)
        images = DataConfig(), None, Keeping()
        with module.RayWorkers(tmp_path, 1, 2, device="cpu", images=images) as opened:
            yield opened


SLOW_S = 5.0


def trial_job(tmp_path, trial=True, **budget):
    from steppe.config import DataConfig, RunConfig
    from steppe.jobs import Job
    from steppe.search.journal import open_journal
    from steppe.search.trial import TrialSettings, make_trial

    config = RunConfig.model_validate({"model": {"name": "mlp_8"}, "budget": budget})
    trial_id = open_journal(tmp_path).get_trials()[0]._trial_id if trial else None
    return Job(config, tmp_path / config.run_id, make_trial, TrialSettings(DataConfig(), trial_id), allowed_s=600)


def nothing() -> None:
    """What a search does meanwhile."""


def wait_for(path: Path) -> None:
    until = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.01)


def ended(opened):
    until = time.monotonic() + 300
    while not (found := [event for event in opened.wait() if event.name in ENDS]):
        assert time.monotonic() < until
    return found


@pytest.mark.long
def test_what_a_worker_takes_to_start_is_no_part_of_a_trial(workers, tmp_path):
    assert not workers.has_room(nothing, 0.5), "nobody is ready yet"
    for seconds in (0.2, 0.3, 0.4):
        assert workers.has_room(nothing, 120)
        began = time.monotonic()
        workers.submit(trial_job(tmp_path, seconds=seconds))
        (event,) = ended(workers)
        assert event.name == "done"
        assert event.details.state == "complete"
        assert event.details.factor is not None
        assert time.monotonic() - began < SLOW_S
    workers.submit(trial_job(tmp_path, trial=False, seconds=0.5))
    workers.dismiss()
    assert not workers.has_room(nothing, 0), "while the winner is trained the other workers are gone"
    assert ended(workers)[0].details.state == "complete"


@pytest.mark.long
def test_a_trial_whose_worker_is_killed_goes_on_in_another(workers, tmp_path):
    job = trial_job(tmp_path, trial=False, gradient_evaluations=1200)
    assert workers.has_room(nothing, 120)
    workers.submit(job)
    run = tmp_path / job.config.run_id
    wait_for(run / "checkpoint.safetensors")
    (worker,) = lock_holders(run / ".lock")
    os.kill(worker, signal.SIGKILL)
    assert ended(workers)[0].details.state == "complete"
    assert len(Run(run).read("env.json")["earlier"]) == 1
    whole = train(job.config, data.load(job.config.data), tmp_path / "whole", device="cpu")
    assert Run(run).weights.read_bytes() == whole.weights.read_bytes()


@pytest.mark.long
def test_a_trial_that_outstays_its_time_is_stopped(workers, tmp_path):
    def sleep_on(job, link):  # inside of a function, so that it travels by value
        time.sleep(600)

    job = replace(trial_job(tmp_path, gradient_evaluations=10**8), make=sleep_on)
    assert workers.has_room(nothing, 120)
    workers.submit(replace(job, allowed_s=0.5))
    assert [event.name for event in ended(workers)] == ["stopped"]


@pytest.mark.long
def test_a_trial_that_is_stopped_is_kept(workers, tmp_path):
    job = trial_job(tmp_path, gradient_evaluations=10**8)
    assert workers.has_room(nothing, 120)
    workers.submit(job)
    run = tmp_path / job.config.run_id
    wait_for(run / "checkpoint.safetensors")
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(Interrupted):
        ended(workers)
    assert not lock_holders(run / ".lock")
    assert (run / "checkpoint.safetensors").exists()
