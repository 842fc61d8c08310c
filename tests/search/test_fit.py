"""Whole searches by `steppe fit`: time, epochs and a kill -9 are respected, and what is left afterwards."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from optuna.trial import TrialState
from PIL import Image
from rich.console import Console

from steppe import data
from steppe.config import DataConfig
from steppe.errors import ConfigError, RunError
from steppe.report import print_table, summarise, write_report
from steppe.runs import Run, find_runs, read_json
from steppe.search import chosen, space, trial_search
from steppe.search.budget import Budget, Clock, read_about
from steppe.search.fitting import Wanted, fit
from steppe.search.journal import open_journal
from steppe.search.observer import SearchObserver
from steppe.search.trial_search import Search


def test_the_clock_counts_earlier_sessions():
    kept = []
    clock = Clock(time.monotonic() - 5, 10.0, kept.append)
    clock.beat(now=True)
    clock.beat()
    assert kept == pytest.approx([15.0], abs=0.5)


def test_the_clock_of_a_search_that_is_over_stands_still():
    clock = Clock(time.monotonic() - 5, 10.0, pytest.fail, over=True)
    clock.beat(now=True)
    assert clock.elapsed_s == 10.0


def digits_from_scratch(*models: str, seed: int = 0) -> Wanted:
    return Wanted(DataConfig(name="digits"), models, weights="none", seed=seed)


class Killed(BaseException):
    """What a kill is to a process that shall live to look at what it left."""


def test_time_counts_from_the_first_moment_whenever_a_session_is_killed(tmp_path, monkeypatch):
    """While models are timed, and while the images of a search that goes on are read: that may take minutes."""
    wanted, asked = digits_from_scratch("mlp_8", "mlp_16", "mlp_32"), {"device": "cpu"}

    def elapsed(age_s: float) -> float:
        with pytest.raises(Killed):
            fit(wanted, 600, tmp_path, began=time.monotonic() - age_s, **asked)
        return read_json(tmp_path / "fit.json")["elapsed_s"]

    timed = []

    def time_epoch(*_):
        if timed:
            raise Killed
        return timed.append(1) or 0.01

    def load(config, root, progress, keeping):
        monkeypatch.setattr(time, "monotonic", lambda: now() + 10)  # ten seconds of reading, then one image
        progress("reading", 1, 2)
        raise Killed

    now = time.monotonic
    monkeypatch.setattr(space, "_time_epoch", time_epoch)
    first = elapsed(7)
    assert 7 <= first < 17, "what the machine itself takes on top is its own affair"
    monkeypatch.setattr(data, "load", load)
    assert first + 20 + 10 <= elapsed(20) < first + 20 + 10 + 10
    monkeypatch.undo()
    search = Search(
        wanted,
        Budget(600),
        tmp_path,
        data.load(wanted.data),
        torch.device("cpu"),
        None,
        SearchObserver(),
        time.monotonic() - 1,
        about=read_about(tmp_path),
    )
    assert search.clock.elapsed_s == pytest.approx(38, abs=2), "no session twice"


def test_folders_of_other_things_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="holds no steppe search"):
        fit(digits_from_scratch(), 60, tmp_path)
    (tmp_path / "notes.txt").unlink()
    (tmp_path / "fit.json").write_text(json.dumps(digits_from_scratch(seed=4).to_json()))
    with pytest.raises(RunError, match="another seed: 4 there, 0 here"):
        fit(digits_from_scratch(), 60, tmp_path)


def test_too_short_a_budget_is_told_with_a_longer_one(tmp_path):
    with pytest.raises(ConfigError, match="leaves no time to learn") as caught:
        fit(digits_from_scratch("resnet_tiny"), 0.5, tmp_path / "f")
    assert "--budget 10s" in caught.value.fix
    assert not (tmp_path / "f" / "fit.json").exists(), "the longer one shall find its time whole"


@pytest.mark.long
def test_fit_keeps_its_budget_and_leaves_everything(tmp_path):
    began = time.monotonic()
    found = fit(digits_from_scratch("resnet_tiny", "mixer_tiny_p2"), 20, tmp_path / "f")
    assert time.monotonic() - began < 21
    runs = find_runs([tmp_path / "f"])
    values = {run.id: run.summary["val"]["accuracy"] for run in runs if run.finished}
    assert values[found.best.id] == max(values.values())
    assert found.best.summary["test"]["accuracy"] > 0.9
    about = read_json(tmp_path / "f" / "fit.json")
    assert about["best"] == found.best.id
    assert (tmp_path / "f" / "best").resolve() == found.best.path.resolve()
    seconds = {run.config.budget.seconds for run in runs}
    assert len(seconds) >= 3, "budgets grow, and the winner has its own"
    assert len(values) == len((tmp_path / "f" / "pareto.csv").read_text().splitlines()) - 1
    again = time.monotonic()
    same = fit(digits_from_scratch("resnet_tiny", "mixer_tiny_p2"), 20, tmp_path / "f")
    assert same.best.id == found.best.id
    assert time.monotonic() - again < 5
    assert len(find_runs([tmp_path / "f"])) == len(runs), "nothing more is tried"


COMMAND = [sys.executable, "-m", "steppe", "fit", "digits", "--weights", "none", "--model", "resnet_tiny"]


def first_finished_trial(folder: Path, limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not list(folder.glob("*/summary.json")):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.long
def test_a_slow_forward_pass_is_not_made_when_time_is_out(tmp_path, monkeypatch):
    """The winner's flatness and its answers to thousands of test images may take longer than all of its training."""
    timed = []
    monkeypatch.setattr(trial_search, "time_forward", lambda run, *_: timed.append(run.id) or 0.1)
    monkeypatch.setattr(chosen, "VAL_EXAMPLES", 100)
    found = fit(digits_from_scratch("mlp_8"), 15, tmp_path, device="cpu")
    assert timed
    assert not (found.best.path / "geometry.json").exists()
    assert found.best.summary["test"]["accuracy"] > 0.5
    assert 90 <= found.best.summary["test"]["examples"] <= 110, "of 359"
    assert "of 359 test images, which decided nothing" in found.answer
    assert not (found.best.path / "answers.safetensors").exists()


@pytest.mark.long
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_search_goes_on_within_its_budget(tmp_path, kind):
    command = [*COMMAND, "--budget", "40s", "-o", "f"]
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first_finished_trial(tmp_path / "f")
    time.sleep(1.0)
    process.send_signal(kind)
    _, told = process.communicate(timeout=30)
    first_s = time.monotonic() - began
    if kind == signal.SIGINT:
        assert process.returncode == 130
        assert "nothing is lost" in told
    done = {run.id: run.weights.stat().st_mtime_ns for run in find_runs([tmp_path / "f"]) if run.finished}
    began = time.monotonic()
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert first_s + time.monotonic() - began < 42 + 2, "two seconds may pass between two notes of the time"
    runs = find_runs([tmp_path / "f"])
    assert all(Run(tmp_path / "f" / name).weights.stat().st_mtime_ns == at for name, at in done.items())
    states = [t.state for t in open_journal(tmp_path / "f").get_trials()]
    assert TrialState.RUNNING not in states
    assert sum("earlier" in run.read("env.json") for run in runs) <= 1, "only the interrupted run was begun twice"
    assert (tmp_path / "f" / "report.html").is_file()


@pytest.mark.long
def test_fit_on_a_folder_of_images(tmp_path):
    rng = np.random.default_rng(0)
    for label, low in (("dark", 0), ("light", 120)):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for n in range(60):
            pixels = rng.integers(low, low + 136, (24, 24, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{n}.png")
    command = [sys.executable, "-m", "steppe", "fit", "photos", "--weights", "none", "--image-size", "24"]
    command += ["--budget", "40s"]
    began = time.monotonic()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "COLUMNS": "160"})
    assert time.monotonic() - began < 42
    assert done.returncode == 0, done.stderr
    best = Run(tmp_path / "runs" / "fit-photos" / "best")
    assert best.summary["test"]["accuracy"] > 0.9
    assert "on the validation images" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("digits", "--budget", "soon"), "'soon' is not a time"),
        (("digitz",), "did you mean 'digits'"),
        (("./nowhere/at_all",), "there is no such folder"),
        (("./nowhere",), "there is no such folder"),
        (("digits", "--image-size", "0"), "image_size"),
        (("digits", "--model", "resnet_tinny"), "did you mean 'resnet_tiny'"),
        (("digits", "--weights", "nowhere.pth", "--model", "resnet_tiny"), "nowhere.pth"),
        (("digits", "--weights", "efficientnet_lite9"), "efficientnet_lite1"),
    ],
)
def test_wrong_input_is_one_message(arguments, expected, tmp_path, monkeypatch, capsys):
    from steppe.cli import main

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(["fit", *arguments])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert expected in said
    assert "Traceback" not in said
    assert not (tmp_path / "runs" / "fit-digits" / "fit.json").exists()


class Killer:
    """Ends a search at a write to its files, just before it or just after."""

    def __init__(self, monkeypatch):
        from optuna.storages.journal import JournalFileBackend

        self.left, self.writes = None, 0
        for owner, name in ((JournalFileBackend, "append_logs"), (os, "replace"), (Run, "append_metrics")):
            monkeypatch.setattr(owner, name, self._deadly(getattr(owner, name)))

    def _deadly(self, write):
        def once(*arguments):
            self.writes += 1
            if self.left is None:
                return write(*arguments)
            self.left -= 1
            if self.left == 0 and self.writes % 2:
                raise Killed
            write(*arguments)
            if self.left == 0:
                raise Killed

        return once


def what_a_search_left(folder):
    """All that must not depend on kills."""
    trials = [
        (t.params, t.state, t.value, t.intermediate_values, {k: v for k, v in t.user_attrs.items() if k != "cost"})
        for t in open_journal(folder).get_trials()
    ]
    about = {k: v for k, v in read_json(folder / "fit.json").items() if k != "moments" and not k.endswith("_s")}
    runs = [Run(path.parent) for path in sorted(folder.glob("*/config.toml")) if not path.parent.is_symlink()]
    weights = {run.id: run.weights.read_bytes() for run in runs if run.finished}
    records = {run.id: [record["val_loss"] for record in run.metrics()] for run in runs}
    return {"trials": trials, "about": about, "weights": weights, "records": records}


@pytest.mark.long
def test_a_search_within_epochs_ends_alike_however_often_it_is_killed(tmp_path, monkeypatch):
    wanted, budget = digits_from_scratch("mlp_8", seed=2), Budget(60, "epochs")
    killer = Killer(monkeypatch)
    whole = fit(wanted, budget, tmp_path / "whole", device="cpu")
    assert whole.spent <= 60
    kills, rng = 0, np.random.default_rng(0)
    while True:
        killer.left = int(rng.integers(3, 24))
        try:
            killed = fit(wanted, budget, tmp_path / "killed", device="cpu")
            break
        except Killed:
            kills += 1
    killer.left = None  # reading the journal below appends to it, too
    assert kills >= 20
    one, other = what_a_search_left(tmp_path / "whole"), what_a_search_left(tmp_path / "killed")
    for part in one:
        assert one[part] == other[part], part
    assert (killed.best.id, killed.answer, killed.spent) == (whole.best.id, whole.answer, whole.spent)
    states = {t[1] for t in one["trials"]}
    assert {TrialState.COMPLETE, TrialState.PRUNED} <= states, "both kinds of ends were met"
    assert any("of" in t[4] for t in one["trials"]), "and a promotion"


def test_only_the_chosen_run_is_tested(tmp_path, monkeypatch):
    for module in ("trial", "chosen"):
        monkeypatch.setattr(f"steppe.search.{module}.VAL_EXAMPLES", 100)
    wanted = digits_from_scratch("mlp_8", "mlp_16")
    found = fit(wanted, Budget(20, "epochs"), tmp_path / "f", device="cpu")
    tested = [run.id for run in found.runs if "test" in run.read_or_empty("summary.json")]
    assert tested == [found.best.id]
    assert re.search(r"of 143 validation images \(\d+\.\d % on all\) after", found.answer)
    assert "on the test images, which decided nothing" in found.answer
    assert found.best.read("geometry.json"), "without a clock there is time"
    rows = summarise([run for run in found.runs if run.finished], read_json(tmp_path / "f" / "study.json"))
    shown = io.StringIO()
    print_table(rows, Console(file=shown, width=160))
    assert "Val. acc %" in shown.getvalue()
    page = write_report(found.runs, tmp_path / "p.html", study=read_json(tmp_path / "f" / "study.json")).read_text()
    blob = json.loads(re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.S)[1])
    assert blob["judged"] == {"digits": "val_accuracy"}
    on_front = {row["run"] for row in read_json(tmp_path / "f" / "pareto.json")["fronts"]["gradient_evaluations"]}
    assert {rows[i].run_ids[0] for i in blob["fronts"]["gradient_evaluations"]["digits"]} == on_front


def test_epochs_are_not_overspent_and_more_of_them_go_on(tmp_path):
    wanted = digits_from_scratch("mlp_8")
    with pytest.raises(ConfigError, match="nothing to choose from") as caught:
        fit(wanted, Budget(4, "epochs"), tmp_path / "f", device="cpu")
    assert "--budget 10epochs" in caught.value.fix
    first = fit(wanted, Budget(12, "epochs"), tmp_path / "f", device="cpu")
    more = fit(wanted, Budget(24, "epochs"), tmp_path / "f", device="cpu")
    trained = {run.id: run.metrics()[-1]["gradient_evaluations"] / (1294 // run.config.batch_size) for run in more.runs}
    assert sum(trained.values()) == pytest.approx(more.spent)
    assert 11 < first.spent <= 12
    assert 23 < more.spent <= 24
    with pytest.raises(RunError, match="a budget of epochs, not of seconds"):
        fit(wanted, 60, tmp_path / "f", device="cpu")


def test_a_search_that_is_over_starts_no_cluster(tmp_path, monkeypatch):
    wanted = digits_from_scratch("mlp_8")
    first = fit(wanted, Budget(12, "epochs"), tmp_path / "f", device="cpu")
    monkeypatch.setitem(sys.modules, "ray", None)
    again = fit(wanted, Budget(12, "epochs"), tmp_path / "f", device="cpu", on_ray=True)
    assert (again.best.id, again.answer) == (first.best.id, first.answer)
    with pytest.raises(ConfigError, match="not installed"):
        fit(wanted, Budget(13, "epochs"), tmp_path / "f", device="cpu", on_ray=True)
