"""A study on a real local Ray cluster: the same results as without, through a killed worker and Ctrl-C.

With `unseen`, the workers do not see the study's folder: they work elsewhere, and bring home what they make.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from lock_holders import lock_holders
from small_study import make_study

from steppe.config import plan
from steppe.errors import ConfigError, Interrupted
from steppe.jobs.travel import SCRATCH
from steppe.runs import Run, read_json
from steppe.studies import run_study


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    study = make_study()
    with pytest.raises(ConfigError, match="not installed") as caught:
        run_study(study, plan(study), tmp_path, on_ray=True)
    assert "steppe[ray]" in caught.value.fix


def test_an_address_without_ray_is_told(capsys, tmp_path, monkeypatch):
    from steppe.cli import main

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(["study", "run", "quickstart", "--address", "10.0.0.1:6379"])
    assert caught.value.code == 2
    assert "add --on ray" in capsys.readouterr().err


def test_a_cluster_that_does_not_answer_is_told_at_once(tmp_path):
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    study = make_study()
    began = time.monotonic()
    with pytest.raises(ConfigError, match="does not answer"):
        run_study(study, plan(study), tmp_path / "s", address="127.0.0.1:1", on_ray=True)
    assert time.monotonic() - began < 20
    assert not (tmp_path / "s").exists()


def test_a_cluster_that_refuses_is_not_said_to_be_missing(tmp_path, monkeypatch):
    """Ray 2.60 says just `Failed to connect` where a token is asked for and RAY_AUTH_MODE is not set."""
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")

    def refuse(**options):
        raise ConnectionError("Failed to connect to Ray cluster")

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    study = make_study()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(ConfigError, match="does not answer") as caught:
            run_study(study, plan(study), tmp_path / "s", address=address, on_ray=True)
        assert "RAY_AUTH_MODE=token" in caught.value.fix
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        with pytest.raises(ConfigError, match="does not answer") as caught:
            run_study(study, plan(study), tmp_path / "s", address=address, on_ray=True)
        assert "ray start --head" in caught.value.fix


@pytest.fixture
def unseen(cluster, monkeypatch):
    """Workers do not find the marker; they send files home more often than usual."""
    from steppe.jobs import ray as module

    class Blind(module.Worker):  # inside of a function, so that it travels by value
        def get_ready(self):
            from steppe.jobs import travel

            travel.LEAST_S = 0.2
            host, _ = super().get_ready()
            return host, False

    monkeypatch.setattr(module, "Worker", Blind)
    return cluster


def scratch_folders(run_id: str) -> list[Path]:
    """Where workers make a run that do not see its folder."""
    return [path.parent for path in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*/{run_id}")]


def assert_same(one: Path, other: Path) -> None:
    """The same files; the same bits, but for times and machines."""
    files = [{p.relative_to(f).as_posix() for p in f.rglob("*") if p.name != ".lock"} for f in (one, other)]
    assert files[0] == files[1]
    for name in ("config.toml", "data.json", "weights.safetensors", "answers.safetensors", "geometry.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    records = [[{**r, "time_s": 0} for r in Run(folder).metrics()] for folder in (one, other)]
    assert records[0] == records[1]


@pytest.mark.long
def test_ray_gives_what_processes_give_and_nothing_twice(cluster, tmp_path):
    study = make_study()
    planned = plan(study)
    events: list[tuple[str, str]] = []

    def notify(event, run, details):
        events.append((event, run.labels["how"]))

    assert run_study(study, planned, tmp_path / "ray", workers=2, notify=notify, on_ray=True) == {}
    assert {e for e in events if e[0] in ("start", "done")} == {
        (event, how) for event in ("start", "done") for how in ("base", "sam")
    }
    assert ("epoch", "sam") in events
    assert run_study(study, planned, tmp_path / "here", workers=2) == {}
    for p in planned:
        there, here = (Run(tmp_path / name / p.config.run_id) for name in ("ray", "here"))
        assert there.weights.read_bytes() == here.weights.read_bytes()
        assert there.read("geometry.json") == here.read("geometry.json")
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "ray").glob("*/*.json")}
    events.clear()
    run_study(study, planned, tmp_path / "ray", workers=2, notify=notify, on_ray=True)
    assert sorted(events) == [("kept", "base"), ("kept", "sam")]
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "ray").glob("*/*.json")} == stamps


@pytest.mark.long
def test_a_killed_worker_costs_its_run_only_what_came_after_the_checkpoint(cluster, tmp_path):
    study = make_study(axes={}, base={"batch_size": 64, "model": {"name": "resnet_tiny"}, "budget": {"epochs": 12}})
    (planned,) = plan(study)
    run_id = planned.config.run_id
    killed: list[int] = []

    def kill_once(event, run, details):
        if event == "epoch" and not killed:
            killed.extend(lock_holders(tmp_path / "killed" / run_id / ".lock"))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    assert run_study(study, [planned], tmp_path / "killed", workers=2, notify=kill_once, on_ray=True) == {}
    assert len(killed) == 1
    assert run_study(study, [planned], tmp_path / "whole", workers=2) == {}
    run, whole = Run(tmp_path / "killed" / run_id), Run(tmp_path / "whole" / run_id)
    assert len(run.read("env.json")["earlier"]) == 1, "it was begun twice"
    assert run.weights.read_bytes() == whole.weights.read_bytes()
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    assert len(lines) <= 13, "at most the epoch after the last checkpoint was made again"


@pytest.mark.long
def test_results_come_home_from_where_the_folder_is_not_seen(unseen, tmp_path):
    study = make_study(
        runs={"begin": {"budget": {"epochs": 2}}},
        axes={"how": {"full": {"model": {"mode": "finetune", "weights": "run:begin"}}, "good": {}}},
    )
    planned = plan(study)
    events: list[tuple[str, str]] = []

    def notify(event, run, details):
        events.append((event, run.config.run_id))

    assert run_study(study, planned, tmp_path / "away", workers=2, notify=notify, on_ray=True) == {}
    assert run_study(study, planned, tmp_path / "here", workers=2) == {}
    for p in planned:
        name = p.config.run_id
        assert_same(tmp_path / "away" / name, tmp_path / "here" / name)
        assert {"start", "epoch", "done"} <= {event for event, run in events if run == name}
        assert not scratch_folders(name)
        assert not lock_holders(tmp_path / "away" / "locks" / name)
    ours = {"study.json", "locks", ".lock", *(p.config.run_id for p in planned)}
    assert {p.name for p in (tmp_path / "away").iterdir()} == ours
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "away").glob("*/*.json")}
    run_study(study, planned, tmp_path / "away", workers=2, on_ray=True)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "away").glob("*/*.json")} == stamps


@pytest.mark.long
def test_a_killed_worker_goes_on_from_what_came_home(unseen, tmp_path):
    study = make_study(axes={}, base={"batch_size": 64, "model": {"name": "resnet_tiny"}, "budget": {"epochs": 12}})
    (planned,) = plan(study)
    run_id = planned.config.run_id
    killed: list[int] = []
    at_home = []

    def kill_once(event, run, details):
        if event == "epoch" and not killed and (tmp_path / "away" / run_id / "checkpoint.safetensors").exists():
            (scratch,) = scratch_folders(run_id)
            killed.extend(lock_holders(scratch / ".lock"))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            at_home.extend(Run(tmp_path / "away" / run_id).metrics())

    assert run_study(study, [planned], tmp_path / "away", workers=2, notify=kill_once, on_ray=True) == {}
    assert len(killed) == 1
    assert run_study(study, [planned], tmp_path / "here", workers=2) == {}
    run = Run(tmp_path / "away" / run_id)
    assert len(run.read("env.json")["earlier"]) == 1, "it was begun twice"
    assert 1 <= len(at_home) < 12
    assert run.metrics()[: len(at_home)] == at_home, "with their times: what came home was not made again"
    assert_same(run.path, tmp_path / "here" / run_id)
    assert not scratch_folders(run_id), "what the killed one left is gone, too"


@pytest.mark.long
def test_a_process_at_home_and_workers_elsewhere_make_nothing_twice(unseen, tmp_path):
    study = make_study(seeds=[0, 1, 2])
    planned = plan(study)
    failed: list[dict[str, str]] = []
    at_home = threading.Thread(target=lambda: failed.append(run_study(study, planned, tmp_path, workers=1)))

    def notify(event, run, details):
        if event == "start" and not at_home.ident:
            at_home.start()

    assert run_study(study, planned, tmp_path, workers=2, notify=notify, on_ray=True) == {}
    at_home.join(120)
    assert failed == [{}]
    for p in planned:
        run = Run(tmp_path / p.config.run_id)
        assert "earlier" not in run.read("env.json")
        assert len((run.path / "metrics.jsonl").read_text().splitlines()) == 1


@pytest.mark.long
def test_what_ctrl_c_stops_elsewhere_can_go_on_at_home(unseen, tmp_path):
    study = make_study(axes={}, base={"batch_size": 64, "model": {"name": "resnet_tiny"}, "budget": {"epochs": 12}})
    (planned,) = plan(study)
    run_id = planned.config.run_id

    def stop(event, run, details):
        if event == "epoch" and details["epoch"] == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="1 of 1 runs to go"):
        run_study(study, [planned], tmp_path / "away", workers=2, notify=stop, on_ray=True)
    assert (tmp_path / "away" / run_id / "checkpoint.safetensors").exists()
    begun = Run(tmp_path / "away" / run_id).metrics()
    for folder in ("away", "here"):
        assert run_study(study, [planned], tmp_path / folder, workers=2) == {}
    run = Run(tmp_path / "away" / run_id)
    assert run.metrics()[: len(begun)] == begun
    assert_same(run.path, tmp_path / "here" / run_id)
    assert not scratch_folders(run_id)


@pytest.mark.long
def test_failures_elsewhere_are_told_with_their_folder_at_home(unseen, tmp_path):
    study = make_study(axes={}, base={"optimizer": {"lr": 1e30}, "model": {"name": "resnet_tiny"}})
    (planned,) = plan(study)
    failed = run_study(study, [planned], tmp_path, workers=2, on_ray=True)
    assert "no longer a finite number" in failed[planned.config.run_id]
    assert str(tmp_path / planned.config.run_id) in failed[planned.config.run_id]
    assert f"on:    {socket.gethostname()}" in failed[planned.config.run_id]
    assert Run(tmp_path / planned.config.run_id).summary["status"] == "failed"


@pytest.mark.long
def test_failures_are_told_and_what_needs_them_fails_too(cluster, tmp_path):
    study = make_study(
        runs={"begin": {"optimizer": {"lr": 1e30}}},
        axes={"how": {"full": {"model": {"mode": "finetune", "weights": "run:begin"}}, "good": {}}},
    )
    planned = plan(study)
    failed = run_study(study, planned, tmp_path, workers=2, on_ray=True)
    by_label = {next(iter(p.labels.values())): p.config.run_id for p in planned}
    assert set(failed) == {by_label["begin"], by_label["full"]}
    assert "no longer a finite number" in failed[by_label["begin"]]
    assert "which failed" in failed[by_label["full"]]
    assert read_json(tmp_path / "study.json")["failed"] == failed


@pytest.mark.long
def test_ctrl_c_keeps_every_run(cluster, tmp_path):
    base = {"batch_size": 64, "model": {"name": "resnet_tiny"}, "budget": {"epochs": 40}}
    study = make_study(base=base)
    planned = plan(study)
    begun = threading.Event()

    def notify(event, run, details):
        if event == "epoch":
            begun.set()

    def press() -> None:
        begun.wait(120)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    with pytest.raises(Interrupted, match="2 of 2 runs to go"):
        run_study(study, planned, tmp_path, workers=2, notify=notify, on_ray=True)
    time.sleep(0.5)
    assert not [pid for p in planned for pid in lock_holders(tmp_path / p.config.run_id / ".lock")]
    assert any((tmp_path / p.config.run_id / "checkpoint.safetensors").exists() for p in planned)
