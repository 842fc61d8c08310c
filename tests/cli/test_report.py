"""`steppe report` as a newcomer types it: a file, a server that renews the page, wrong flags."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from commands import steppe

from steppe.config import RunConfig
from steppe.runs import create_run

EPOCH = {"step": 1, "gradient_evaluations": 1.0, "train_loss": 1.0, "val_loss": 1.0, "val_accuracy": 0.5, "time_s": 1.0}


@pytest.fixture
def run(tmp_path):
    return create_run(tmp_path / "runs" / "one", RunConfig())


@pytest.fixture
def server(tmp_path):
    """`steppe report --serve` in a process of its own; gives (process, address)."""
    (tmp_path / "runs").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "steppe", "report", str(tmp_path / "runs"), "--serve"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "COLUMNS": "200"}
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("serving http://127.0.0.1:"), line
    yield process, line.split()[1]
    if process.poll() is None:
        process.kill()
    process.wait()
    process.stdout.close()


def get(address):
    with urllib.request.urlopen(address, timeout=20) as answer:
        return answer.read().decode()


def test_serving_renews_and_ends_cleanly(server, tmp_path):
    process, address = server
    assert "There is nothing here yet" in get(address)  # training has not begun
    before = get(address + "version")
    create_run(tmp_path / "runs" / "one", RunConfig()).append_metrics({"epoch": 1, **EPOCH})
    while (now := get(address + "version")) == before:
        pass
    page = get(address + "update")
    assert f'<meta name="steppe-version" content="{now}">' in page
    assert "epoch 1" in page
    assert "use strict" not in page  # the page that asks has it
    assert "use strict" in get(address)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0
    assert process.stdout.read() == "stopped serving; nothing was written\n"
    assert not (tmp_path / "report.html").exists()


def test_a_damaged_run_does_not_end_serving(server, run):
    process, address = server
    run.write("summary.json", {"status": "finished"})
    (run.path / "geometry.json").write_text("{")
    (run.path.parent / "study.json").write_text("[]")
    while "geometry.json: this is not valid JSON" not in get(address):
        pass
    process.terminate()
    assert process.wait(10) == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--serve", "-o", "x.html"], "a served page is not written"),
        (["--port", "8000"], "add --serve"),
        (["--open"], "add --serve"),
    ],
)
def test_flags_that_do_not_go_together(run, capsys, flags, said):
    assert steppe("report", run.path, *flags) == 2
    assert said in capsys.readouterr().err


def test_serving_what_is_not_there(tmp_path, capsys):
    assert steppe("report", tmp_path / "none", "--serve") == 2
    assert "there is no such folder" in capsys.readouterr().err


def test_a_lock_that_goes_renews_the_page(server, run):
    process, address = server
    run.append_metrics({"epoch": 1, **EPOCH})
    with run.lock():
        while "running, epoch 2 of 20" not in get(address):
            pass
    while "stopped after epoch 1 of 20" not in get(address):
        pass
    process.terminate()
    assert process.wait(10) == 0


def test_several_studies_are_told_apart(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, axis in (("first", "training"), ("second", "rho")):
        listed = []
        for label, rho in (("Adam" if axis == "training" else "1", 0.1), ("SAM" if axis == "training" else "2", 0.2)):
            config = RunConfig.model_validate({"minimizer": {"name": "sam", "rho": rho}})
            made = create_run(tmp_path / "all" / name / config.run_id, config)  # the same runs in both
            made.write("summary.json", {"status": "finished", "test": {"accuracy": rho, "examples": 100}})
            listed.append({"run_id": made.id, "labels": {axis: label}, "seed": 0})
        about = {"name": name, "title": f"The {name}", "question": f"Is it {name}?", "runs": listed}
        (tmp_path / "all" / name / "study.json").write_text(json.dumps(about))
        claims = [{"text": f"claim of {name}", "verdict": "holds"}]
        (tmp_path / "all" / name / "compare.json").write_text(json.dumps({"study": name, "claims": claims}))
    create_run(tmp_path / "all" / "loose", RunConfig())
    assert steppe("report", "all", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row.get("study"), row["labels"].get("training"), row["labels"].get("rho")) for row in rows[:4]] == [
        ("first", "Adam", None),
        ("first", "SAM", None),
        ("second", None, "1"),
        ("second", None, "2"),
    ]
    assert len({run_id for row in rows for run_id in row["runs"]}) == 5
    assert steppe("report", "all") == 0
    table = capsys.readouterr().out
    assert "first\n" in table
    assert "Training" in table
    page = Path("report.html").read_text()
    for said in ("The first", "Is it second?", "claim of first", "claim of second", "second · rho 2", "2 studies"):
        assert said in page
    assert page.count('<table class="summary sortable wraps') == 2
    assert "<strong>2 hold</strong>" in page


def test_a_studys_comparison_is_on_the_page(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = run.path.parent
    (folder / "study.json").write_text(json.dumps({"name": "mine", "runs": []}))
    claim = {"text": "it pays", "holds": "a > b", "verdict": "undecided"}
    (folder / "compare.json").write_text(json.dumps({"claims": [claim], "cells": []}))
    assert steppe("report", folder) == 0
    assert "it pays" in Path("report.html").read_text()
    (folder / "compare.json").write_text("{")
    assert steppe("report", folder) == 0
    assert "passed over" in capsys.readouterr().err
    assert "it pays" not in Path("report.html").read_text()
