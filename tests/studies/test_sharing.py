from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import pytest
from small_study import make_study

from steppe.config import StudyConfig, plan
from steppe.errors import Busy
from steppe.runs import Run, locked, read_json
from steppe.studies import run_study
from steppe.studies.run_queue import seed_by_seed

PROCESS = """
import json, sys, time
from pathlib import Path
from steppe.config import load_study_config, plan
from steppe.studies import run_study
study = load_study_config(sys.argv[1])
out = Path(sys.argv[2])
events = []
run_study(study, plan(study), out, workers=1, notify=lambda e, r, d: events.append([e, r.config.run_id]))
print(json.dumps(events))
"""

STUDY = """
name = "shared"
seeds = [0, 1, 2]
base = { batch_size = 256, model = { name = "resnet_tiny" }, budget = { epochs = 2 } }
measure = { noise_draws = 2 }
[axes.how.base]
[axes.how.sam]
minimizer = { name = "sam" }
"""


def test_one_seed_after_another_and_beginnings_before_what_begins_from_them():
    text = (
        STUDY
        + """
    [axes.how.begun]
    model = { weights = "run:first", mode = "finetune" }
    [runs.first]
    labels = { how = "first" }
    seeds = [7]
    budget = { epochs = 1 }
    """
    )
    order = [(p.labels["how"], p.config.seed) for p in seed_by_seed(plan(StudyConfig(**tomllib.loads(text))))]
    assert order == [("first", 7)] + [(how, seed) for seed in (0, 1, 2) for how in ("base", "sam", "begun")]


@pytest.mark.long
def test_two_processes_share_a_study_and_nothing_is_computed_twice(tmp_path):
    (tmp_path / "study.toml").write_text(STUDY)
    out = tmp_path / "out"
    command = [sys.executable, "-c", PROCESS, str(tmp_path / "study.toml"), str(out)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    events = [json.loads(p.communicate(timeout=400)[0]) for p in both]
    done = [[run for event, run in some if event == "done"] for some in events]
    assert all(done), "each made some of the runs"
    assert len(done[0]) + len(done[1]) == 6
    assert not set(done[0]) & set(done[1])
    for some in events:
        assert len([run for event, run in some if event in ("done", "kept")]) == 6
    for run in [Run(out / name) for name in [*done[0], *done[1]]]:
        assert run.finished
        assert "earlier" not in run.read("env.json"), "begun once"
        assert [record["epoch"] for record in run.metrics()] == [1, 2]
    about = read_json(out / "study.json")
    assert about["failed"] == {}


def test_a_run_that_somebody_else_trains_is_waited_for(tmp_path):
    study = make_study(axes={})
    (planned,) = plan(study)
    folder = tmp_path / planned.config.run_id
    seen: list[str] = []
    with locked(folder, "run"):
        thread = threading.Thread(
            target=run_study,
            args=(study, [planned], tmp_path),
            kwargs={"workers": 1, "notify": lambda event, run, details: seen.append(event)},
        )
        thread.start()
        while "start" not in seen:
            time.sleep(0.05)
        time.sleep(1.5)
        assert "done" not in seen
        assert "failed" not in seen
    thread.join(60)
    assert seen[-1] == "done"


def test_a_lock_that_is_held_is_told(tmp_path):
    with locked(tmp_path, "study"), pytest.raises(Busy, match="another process"), locked(tmp_path, "study", wait_s=0.2):
        pass


@pytest.mark.long
def test_threads_of_a_run_are_settled_with_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("steppe.jobs.slots.available_cores", lambda: 2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    study = make_study()
    planned = plan(study)
    run_study(study, planned[:1], tmp_path, workers=1)
    run_study(study, planned, tmp_path, workers=2)
    threads = [Run(tmp_path / p.config.run_id).read("env.json")["threads"] for p in planned]
    assert threads == [2, 2]
    assert read_json(tmp_path / "study.json")["threads"] == 2


def with_pretraining(lr: float = 1e-3) -> StudyConfig:
    return StudyConfig.model_validate(
        {
            "name": "chain",
            "seeds": [0, 1],
            "base": {"batch_size": 256, "model": {"name": "resnet_tiny"}, "budget": {"epochs": 1}},
            "runs": {"begin": {"seeds": [0], "optimizer": {"lr": lr}}},
            "axes": {
                "mode": {
                    "full": {"model": {"mode": "finetune", "weights": "run:begin"}},
                    "head": {"model": {"mode": "frozen", "weights": "run:begin"}},
                }
            },
            "measure": {"noise_draws": 2},
        }
    )


def test_a_run_begins_from_the_weights_of_another(tmp_path):
    study = with_pretraining()
    planned = plan(study)
    assert [p.labels for p in planned[:2]] == [{"run": "begin"}, {"mode": "full"}]
    begin = planned[0].config.run_id
    assert {p.needs for p in planned[1:]} == {begin}
    assert run_study(study, list(reversed(planned)), tmp_path, workers=2) == {}
    head = next(Run(tmp_path / p.config.run_id) for p in planned if p.labels == {"mode": "head"})
    digest = head.read("data.json")["weights_sha256"]
    import hashlib

    assert digest == hashlib.sha256((tmp_path / begin / "weights.safetensors").read_bytes()).hexdigest()


def test_what_needs_a_failed_run_fails_with_the_reason(tmp_path):
    study = with_pretraining(lr=1e30)
    planned = plan(study)
    failed = run_study(study, planned, tmp_path, workers=1)
    assert len(failed) == 5
    assert "which failed" in failed[planned[1].config.run_id]
    assert not Path(tmp_path / planned[1].config.run_id).exists()
