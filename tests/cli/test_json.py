"""`--json`: what a command prints as a table, for programs."""

from __future__ import annotations

import json

import pytest
from commands import steppe

from steppe.config import RunConfig
from steppe.report.table import MEASURES
from steppe.runs import create_run


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
    assert listed["quickstart"]["runs"] == 32
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
