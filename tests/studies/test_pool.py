from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

import pytest
import torch
from small_study import make_study

from steppe.config import ModelConfig, plan
from steppe.errors import Interrupted
from steppe.jobs.slots import device_of_worker, threads_for
from steppe.models import build
from steppe.runs import Run
from steppe.studies import estimate_runs, execute, find_study, list_studies, run_study


def test_runs_are_made_once_and_measured(tmp_path):
    study = make_study()
    planned = plan(study)
    events: list[tuple[str, str]] = []

    def notify(event, run, details):
        events.append((event, run.labels["how"]))

    assert run_study(study, planned, tmp_path, workers=2, notify=notify) == {}
    assert {e for e in events if e[0] == "done"} == {("done", "base"), ("done", "sam")}
    assert ("epoch", "sam") in events
    about = json.loads((tmp_path / "study.json").read_text())
    assert [r["labels"]["how"] for r in about["runs"]] == ["base", "sam"]
    for p in planned:
        run = Run(tmp_path / p.config.run_id)
        assert run.finished
        assert run.read("cost.json")["parameters"] == 77754
        assert run.read("geometry.json")["noise_loss"]["draws"] == 2
        assert run.read("env.json")["threads"] == 1
        assert run.read("env.json")["command"][1:] == sys.argv[1:]
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/*.json")}
    events.clear()
    run_study(study, planned, tmp_path, workers=2, notify=notify)
    assert sorted(events) == [("kept", "base"), ("kept", "sam")]
    assert {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/*.json")} == stamps


def test_a_worker_gives_what_one_process_gives(tmp_path):
    study = make_study(axes={})
    (planned,) = plan(study)
    run_study(study, [planned], tmp_path / "study", workers=os.cpu_count())  # so one thread each, as in these tests
    direct = execute(planned.config, tmp_path / "direct")
    assert (
        direct.weights.read_bytes() == (tmp_path / "study" / planned.config.run_id / "weights.safetensors").read_bytes()
    )


def test_a_failed_run_does_not_stop_the_others(tmp_path):
    study = make_study(
        axes={"m": {"bad": {"model": {"name": "no_such_model"}}, "nan": {"optimizer": {"lr": 1e30}}, "good": {}}}
    )
    planned = plan(study)
    failed = run_study(study, planned, tmp_path, workers=os.cpu_count())
    by_label = {p.labels["m"]: p.config.run_id for p in planned}
    assert set(failed) == {by_label["bad"], by_label["nan"]}
    assert "unknown model 'no_such_model'" in failed[by_label["bad"]]
    assert "no longer a finite number" in failed[by_label["nan"]]
    assert Run(tmp_path / by_label["good"]).finished


@pytest.mark.long
def test_a_killed_worker_costs_nothing_once_and_is_told_twice(tmp_path):
    study = make_study(axes={}, base={"batch_size": 64, "model": {"name": "resnet_tiny"}, "budget": {"epochs": 8}})
    (planned,) = plan(study)
    kills, notes = [], []

    def kill_worker(event, run, details):
        if event == "note":
            notes.append(details["text"])
        if event == "epoch" and details["epoch"] >= 2 and len(kills) < kill_worker.times:
            pids = [int(p) for p in os.listdir("/proc") if p.isdigit() and is_worker(int(p))]
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            kills.append(details["epoch"])

    kill_worker.times = 1
    assert run_study(study, [planned], tmp_path / "once", workers=os.cpu_count(), notify=kill_worker) == {}
    assert kills
    assert notes == ["the worker process died (signal SIGKILL); trying once more, from the last checkpoint"]
    assert run_study(study, [planned], tmp_path / "whole", workers=os.cpu_count()) == {}
    once, whole = (Run(tmp_path / name / planned.config.run_id) for name in ("once", "whole"))
    assert once.weights.read_bytes() == whole.weights.read_bytes()
    assert [r["val_loss"] for r in once.metrics()] == [r["val_loss"] for r in whole.metrics()]
    kills.clear()
    kill_worker.times = 2
    failed = run_study(study, [planned], tmp_path / "twice", workers=os.cpu_count(), notify=kill_worker)
    assert "died twice (signal SIGKILL), as the system does when memory runs out" in failed[planned.config.run_id]


def is_worker(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
        with open(f"/proc/{pid}/stat") as file:
            parent = int(file.read().rsplit(")", 1)[1].split()[1])
    except OSError:
        return False
    return b"steppe.jobs.worker" in words and parent == os.getpid()


def test_ctrl_c_stops_every_worker_and_the_study_goes_on(tmp_path):
    base = {"batch_size": 64, "data": {"fraction": 0.5}, "model": {"name": "resnet_tiny"}, "budget": {"epochs": 8}}
    study = make_study(base=base)
    planned = plan(study)
    started = threading.Event()

    def notify(event, run, details):
        if event == "epoch" and details["epoch"] >= 2:
            started.set()

    def press() -> None:
        started.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    with pytest.raises(Interrupted, match="2 of 2 runs to go"):
        run_study(study, planned, tmp_path, workers=2, notify=notify)
    time.sleep(0.1)
    assert not [p for p in os.listdir("/proc") if p.isdigit() and is_worker(int(p))]
    assert any((tmp_path / p.config.run_id / "checkpoint.safetensors").exists() for p in planned)
    assert run_study(study, planned, tmp_path, workers=2) == {}
    assert run_study(study, planned, tmp_path.with_name("whole"), workers=2) == {}
    for p in planned:
        paths = [folder / p.config.run_id / "weights.safetensors" for folder in (tmp_path, tmp_path.with_name("whole"))]
        assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.long
def test_other_measure_settings_are_measured_again(tmp_path):
    planned = plan(make_study(axes={}))
    path = tmp_path / planned[0].config.run_id
    for measure in ({"noise_draws": 2}, {"noise_draws": 3}, {"noise_draws": 3, "noise_examples": 50}):
        run_study(make_study(axes={}, measure=measure), planned, tmp_path, workers=os.cpu_count())
        found = Run(path).read("geometry.json")["noise_loss"]
        assert found["draws"] == measure["noise_draws"]
        assert found["examples"] == measure.get("noise_examples", 1000)


def test_fresh_data_is_read_for_every_run(tmp_path):
    import numpy as np

    from steppe.config import RunConfig

    rng = np.random.default_rng(0)
    prints = []
    for seed in (0, 1):
        np.savez(tmp_path / "d.npz", x_train=rng.integers(0, 256, (40, 8, 8), np.uint8), y_train=np.arange(40) % 2)
        values = {"seed": seed, "data": {"name": str(tmp_path / "d.npz")}, "model": {"name": "resnet_tiny"}}
        config = RunConfig.model_validate({**values, "budget": {"epochs": 1}})
        prints.append(execute(config, tmp_path / str(seed)).read("data.json")["fingerprint"])
    assert prints[0] != prints[1]


def test_estimates_count_gradients_and_take_time():
    planned = plan(make_study(axes={"how": {"base": {}, "sam": {"minimizer": {"name": "sam"}}}}))
    base, sam = estimate_runs(planned)
    assert (base.gradient_evaluations, sam.gradient_evaluations) == (5, 10)
    assert sam.flops == 2 * base.flops == 3 * 1527040 * 256 * 10
    assert 0 < base.time_s < sam.time_s


def test_estimates_of_a_head_alone_count_its_body_once(tmp_path):
    torch.save(
        build(ModelConfig(name="resnet_tiny"), image_size=8, channels=1, classes=10).state_dict(), tmp_path / "w.pth"
    )
    model = {"name": "resnet_tiny", "mode": "frozen", "weights": str(tmp_path / "w.pth")}
    how = {
        "one epoch": {},
        "four, SAM": {"budget": {"epochs": 4}, "minimizer": {"name": "sam"}},
        "four, SAM, mirrors": {"budget": {"epochs": 4}, "minimizer": {"name": "sam"}, "augment": {"flip": True}},
        "dropout": {"model": {**model, "dropout": 0.2}, "budget": {"epochs": 40}, "minimizer": {"name": "sam"}},
        "attacked": {"objective": {"name": "adversarial"}, "budget": {"epochs": 40}},
    }
    planned = plan(make_study(axes={"how": {name: {"model": model, **change} for name, change in how.items()}}))
    one, four, moved, dropped, attacked = estimate_runs(planned)
    assert [found.gradient_evaluations for found in (one, four, moved)] == [5, 40, 40]
    assert four.time_s == one.time_s
    assert moved.time_s == pytest.approx(4 * one.time_s)
    assert min(dropped.time_s, attacked.time_s) > 10 * one.time_s, "eighty epochs' passes, not one's"


def test_shipped_studies_are_found_and_planned():
    assert "quickstart" in list_studies()
    for name in list_studies():
        study, path = find_study(name)
        assert plan(study, where=str(path))
        assert study.question
        assert find_study(str(path))[0] == study


def test_quickstart_is_what_its_page_says():
    study, _ = find_study("quickstart")
    planned = plan(study)
    cases = {(p.config.model.name.split("_")[0], p.config.data.label_noise) for p in planned}
    assert cases == {("resnet", None), ("vit", None), ("resnet", 0.3)}
    for family, noise in cases:
        runs = [p for p in planned if p.config.model.name.startswith(family) and p.config.data.label_noise == noise]
        epochs = {(p.config.minimizer.name, p.config.budget.epochs) for p in runs}
        once = 30 if noise else 15
        assert epochs == {("base", once), ("sam", once), ("asam", once), ("base", 2 * once)}
    assert sum(1 for p in planned if p.config.seed == 2) == 3 * 4


def test_gpus_are_shared_out_to_the_slots():
    assert [device_of_worker(None, n, 3) for n in range(4)] == ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]
    assert [device_of_worker("cuda", n, 2) for n in range(2)] == ["cuda:0", "cuda:1"]
    assert device_of_worker("cuda:1", 0, 4) == "cuda:1"
    assert device_of_worker("cpu", 1, 4) == "cpu"
    assert device_of_worker(None, 1, 1) is None
    assert device_of_worker(None, 1, 0) is None


def test_threads_are_a_share_of_the_cores_and_no_more_than_asked(monkeypatch):
    monkeypatch.setattr("steppe.jobs.slots.available_cores", lambda: 8)
    for asked, workers, threads in (("", 2, 4), ("3", 2, 3), ("16", 2, 4), ("0", 2, 1), ("many", 4, 2), ("", 16, 1)):
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
        assert threads_for(workers) == threads
