"""`--json`: what a command prints as a table, for programs."""

from __future__ import annotations

import importlib
import json
import math
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from commands import steppe

from steppe.cli.main import app
from steppe.cli.show import json_text
from steppe.config import RunConfig
from steppe.report.rows import MEASURES
from steppe.runs import Run, create_run


@pytest.fixture
def printed(capsys):
    """Call a command with --json and read what it prints."""

    def call(*arguments):
        assert steppe(*arguments, "--json") == 0
        return json.loads(capsys.readouterr().out)

    return call


@pytest.mark.parametrize(
    ("command", "key", "name"), [("models", "model", "vit_tiny_p2"), ("data", "data set", "digits")]
)
def test_lists(printed, command, key, name):
    assert name in [row[key] for row in printed(command)]


def test_minimizers_with_numbers(printed):
    flags = {row["minimizer"]: row["flags and their defaults"] for row in printed("minimizers")}
    assert flags["esam"] == {"--rho": 0.05, "--beta": 0.6, "--minimizer-gamma": 0.5}


def test_long_texts_are_not_cut(printed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    assert any(len(row["what it is"]) > 40 for row in printed("models", "vit"))
    assert printed("env", "--device", "cpu")["versions"]["torch"]


def test_studies(printed):
    listed = {row["name"]: row for row in printed("study", "list")}
    assert listed["quickstart"]["runs"] == 36
    shown = printed("study", "show", "rescaling", "--scale", "smoke")
    assert shown["scale"] == "smoke"
    assert set(shown["scales"]) == set(listed["rescaling"]["scales"])
    assert len(shown["planned"]) == shown["runs"]
    assert shown["claims"]


def test_cost_of_a_model(printed):
    found = printed("cost", "mlp_8_8", "--data", "digits", "--device", "cpu", "--seconds", 0.1)
    assert found["parameters"] > 100


def test_the_table_of_a_report(printed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed, accuracy in ((0, 0.9), (1, 0.8)):
        run = create_run(tmp_path / "runs" / str(seed), RunConfig(seed=seed))
        run.write("summary.json", {"status": "finished", "epochs": 2, "test": {"accuracy": accuracy}})
    found = printed("report", "runs")
    assert found["report"] == "report.html"
    assert (tmp_path / "report.html").is_file()
    (row,) = found["rows"]
    assert row["seeds"] == [0, 1]
    assert row["test_accuracy"] == {"mean": pytest.approx(0.85), "std": pytest.approx(0.0707, abs=1e-4), "n": 2}
    assert set(row) & set(MEASURES) == {"test_accuracy", "epochs"}
    assert steppe("report", "runs", "--serve", "--json") == 2


# -- commands that work before they print ---------------------------------------------------------------------------


@pytest.fixture
def spoken(capfd, tmp_path, monkeypatch):
    """Call a command with --json in an empty folder: its exit code, its document, and what it says beside it."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = steppe(*arguments, "--json")
        said = capfd.readouterr()
        return code, json.loads(said.out, parse_constant=pytest.fail) if said.out else None, said.err

    return call


QUICK = ("--model", "mlp_8", "--batch-size", 256, "--epochs", 1)
STUDY = """
name = "mini"
[base]
batch_size = 256
model = { name = "mlp_8" }
budget = { epochs = 1 }
[axes.how.base]
[axes.how.sam]
minimizer = { name = "sam" }
"""


def test_training_as_a_process_of_its_own(tmp_path):
    command = [sys.executable, "-m", "steppe", "train", *map(str, QUICK), "-o", "é:cat:", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8", check=True)
    found = json.loads(done.stdout)
    assert found["run"] == "é:cat:", "no name is taken for an emoji"
    (row,) = found["rows"]
    assert row["test_accuracy"]["n"] == 1
    assert "epoch   1/1" in done.stderr


def test_a_reader_that_has_left_one_stream_takes_nothing_from_the_other():
    read, write = os.pipe()
    os.close(read)
    code = "from steppe.cli.show import console, errors; errors.print('nobody reads'); console.print('kept')"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=write, text=True, check=True)
    os.close(write)
    assert done.stdout == "kept\n"


@pytest.mark.parametrize(("words", "colours"), [((), True), (("--json",), False)])
def test_a_log_of_messages_has_no_colours_though_the_output_is_a_terminal(words, colours):
    code = """
import typer
from steppe.cli.show import JsonOption, console, errors, print_json
def command(json: JsonOption = False) -> None:
    console.print("failed", style="bold red")
    errors.print("[red]error[/red]")
    if json:
        print_json({"key": 1})
typer.run(command)
"""
    screen, terminal = pty.openpty()
    chosen = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE")
    environment = {key: value for key, value in os.environ.items() if key not in chosen} | {"TERM": "xterm-256color"}
    process = subprocess.run(
        [sys.executable, "-c", code, *words], stdout=terminal, stderr=subprocess.PIPE, env=environment, check=True
    )
    shown = os.read(screen, 10_000)
    os.close(screen)
    os.close(terminal)
    assert b"error" in process.stderr
    assert b"\x1b" not in process.stderr
    assert (b"failed" in process.stderr) is not colours  # messages are in the log with --json, else on the terminal
    assert (b"\x1b" in shown) is colours


def test_what_libraries_print_is_no_part_of_the_document(spoken, monkeypatch):
    monkeypatch.setattr("steppe.cli.show.TrainingProgress.start", lambda *_: print("hello from a library"))
    code, found, said = spoken("train", *QUICK, "-o", "r")
    assert (code, found["run"]) == (0, "r")
    assert "hello from a library" in said


def test_errors_are_told_as_ever(spoken):
    for wrong in (("train", "--model", "no_such"), ("train", *QUICK, "--lr", 1e30), ("study", "run", "no_such")):
        code, found, said = spoken(*wrong)
        assert (code, found) == (2, None)
        assert "error" in said


def test_a_study_and_its_plan(spoken, tmp_path):
    (tmp_path / "mini.toml").write_text(STUDY)
    code, found, _ = spoken("study", "run", "mini.toml", "--dry-run")
    assert code == 0
    assert [row["labels"] for row in found["rows"]] == [{"how": "base"}, {"how": "sam"}]
    assert found["gradient_evaluations"] == sum(row["gradient_evaluations"] for row in found["rows"]) > 0
    code, found, said = spoken("study", "run", "mini.toml")
    assert code == 0
    assert [row["labels"]["how"] for row in found["rows"]] == ["base", "sam"]
    assert all(row["finished"] == 1 for row in found["rows"])
    assert (tmp_path / found["report"]).is_file()
    assert found["failed"] == {}
    assert "[2/2] " in said
    assert spoken("study", "run", "mini.toml", "--dry-run")[1]["finished_before"] == 2


def test_a_plan_with_a_run_that_cannot_be_made(spoken, tmp_path):
    (tmp_path / "mini.toml").write_text(STUDY + '[axes.how.bad]\nmodel = { name = "no_such" }\n')
    code, found, _ = spoken("study", "run", "mini.toml", "--dry-run")
    assert code == 0
    base, _, bad = found["rows"]
    assert base["time_s"] > 0
    assert base["problem"] is None
    assert (bad["gradient_evaluations"], bad["flops"], bad["time_s"]) == (None, None, None)
    assert "no_such" in bad["problem"]


@pytest.mark.long
def test_a_study_with_a_failing_run(spoken, tmp_path):
    (tmp_path / "mini.toml").write_text(STUDY + '[axes.how.bad]\nmodel = { name = "no_such" }\n')
    code, found, said = spoken("study", "run", "mini.toml")
    assert code == 2
    assert [row["finished"] for row in found["rows"]] == [1, 1]
    assert [reason for reason in found["failed"].values() if "no_such" in reason]
    assert "1 of 3 runs failed" in said


def test_measures_of_several_runs(spoken, runs):
    few = ("--only", "lambda_max,attention", "--quick", "--set", "lambda_max.parts=whole")
    few = (
        *few,
        "--set",
        "lambda_max.examples=8",
        "--set",
        "lambda_max.iterations=2",
        "--set",
        "lambda_max.tolerance=1e-6",
    )
    code, found, said = spoken("geometry", runs / "vit", runs / "resnet", *few)
    assert code == 2, "a ResNet pays no attention"
    vit, resnet = found["rows"]
    assert (vit["run"], vit["results"]) == (str(runs / "vit"), str(runs / "vit" / "geometry.json"))
    assert vit["figures"] == str(runs / "vit" / "figures")
    top = Run(runs / "vit").read("geometry.json")["lambda_max"]["parts"]["whole"]["lambda_max"]
    shown = vit["measures"]["lambda_max"]
    assert shown["values"]["whole lambda max"] == top["value"]
    assert "whole lambda max" in shown["not_converged"]
    assert shown["time_s"] > 0
    assert set(resnet["passed_over"]) == {"attention"}
    assert set(found["failed"]) == {str(runs / "resnet")}
    assert "could not be measured" in said
    again = spoken("geometry", runs / "vit", *few)[1]["rows"][0]["measures"]
    assert again["lambda_max"] == {**shown, "time_s": None}, "found before"


def test_scores_and_the_list_of_measures(spoken, runs):
    code, found, said = spoken("evaluate", runs / "vit", "--only", "scores")
    assert code == 0
    values = found["rows"][0]["measures"]["scores"]["values"]
    assert values["top1"] == pytest.approx(Run(runs / "vit").summary["test"]["accuracy"])
    assert "scores: " in said
    listed = {row["measure"]: row for row in spoken("geometry", "--list")[1]}
    assert listed["lambda_max"]["settings"]["iterations"]["default"] > 0
    assert spoken("evaluate", runs / "nothing")[:2] == (2, None)


def test_two_runs_compared_and_images_classified(spoken, runs, tmp_path):
    code, found, _ = spoken("compare", runs / "vit", runs / "resnet", "-o", "found.json")
    assert code == 0
    assert found["accuracy"]["seeds"] is None
    assert json.loads((tmp_path / "found.json").read_text()) == found
    np.save("images.npy", np.zeros((2, 8, 8), np.uint8))
    code, found, _ = spoken("predict", runs / "vit", "images.npy")
    assert code == 0
    assert len(found["images"]) == 2
    assert spoken("predict", runs / "vit", "images.npy", "--format", "csv")[:2] == (2, None)


@pytest.mark.long
def test_a_search_and_a_second_look_at_it(spoken, tmp_path):
    for slow_to_import in ("optuna", "timm", "steppe.search.fitting"):  # it would take from the search's time
        importlib.import_module(slow_to_import)
    code, found, said = spoken("fit", "digits", "--model", "mlp_8", "--budget", "8s", "-o", "f")
    assert code == 0
    assert {"best", "pareto", "report"} <= set(found)
    assert (tmp_path / found["best"] / "summary.json").is_file()
    assert found["rows"][0]["runs"] == [Path(found["best"]).name]
    assert "reaches" in found["answer"]
    assert "[1] mlp_8" in said
    kept = (tmp_path / "f" / "fit.json").read_text()
    assert found["took_s"] == pytest.approx(json.loads(kept)["elapsed_s"], abs=0.5)
    code, again, _ = spoken("fit", "digits", "--model", "mlp_8", "--budget", "7s", "-o", "f")
    assert code == 0
    assert again["took_s"] == json.loads(kept)["elapsed_s"], "looking takes no time of the search"
    assert (again["budget_s"], again["answer"]) == (8, found["answer"]), "nor does it change what it was given"
    assert (tmp_path / "f" / "fit.json").read_text() == kept


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_cannot_hold(value):
    odd = {"a": [value, (Path("b"), 1.5)], "name": os.fsdecode(b"\xff"), 3: True}
    read = json.loads(json_text(odd), parse_constant=pytest.fail)
    assert read == {"a": [None, ["b", 1.5]], "name": os.fsdecode(b"\xff"), "3": True}


def test_every_command_that_prints_a_table_has_it():
    """The others write files and say where they are."""
    commands = typer.main.get_command(app).commands
    every = {**commands, **{f"study {name}": one for name, one in commands["study"].commands.items()}}
    without = {name for name, one in every.items() if not any("--json" in p.opts for p in one.params)}
    assert without == {"study", "weights", "export", "symmetry", "study figures", "study publish"}
