"""`steppe compare A B`, on runs that were trained for real."""

from __future__ import annotations

import json
import shutil

import pytest
from typer.testing import CliRunner

from steppe.cli.main import app
from steppe.config import RunConfig
from steppe.studies import execute


def steppe(*words: str):
    """The command's exit code and what it printed; an error of ours comes back as its text."""
    result = CliRunner().invoke(app, list(words))
    return result, result.output + (str(result.exception) if result.exception else "")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for minimizer, lr in (("base", 2e-3), ("sam", 1e-6)):
        for seed in (0, 1):
            values = {
                "seed": seed,
                "data": {"name": "digits", "fraction": 0.3},
                "model": {"name": "mlp_8"},
                "minimizer": {"name": minimizer},
                "optimizer": {"lr": lr},
                "budget": {"epochs": 3},
            }
            execute(RunConfig.model_validate(values), folder / minimizer / f"s{seed}")
    return folder


def test_groups_and_single_runs(runs, tmp_path):
    out = tmp_path / "found.json"
    _, text = steppe("compare", str(runs / "base"), str(runs / "sam"), "-o", str(out))
    assert "seeds 0, 1" in text
    assert "95 % over seeds, paired" in text
    found = json.loads(out.read_text())
    assert found["accuracy"]["difference"] < 0  # what hardly learned is worse
    assert found["conclusion"] in text.replace("\n", " ")
    _, text = steppe("compare", str(runs / "base/s0"), str(runs / "sam/s1"))
    assert "another seed may turn it round" in text.replace("\n", " ")


def test_missing_answers_are_made_from_the_weights(runs, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(runs / "base/s0", copy)
    (copy / "answers.safetensors").unlink()
    _, text = steppe("compare", str(runs / "base/s0"), str(copy))
    assert "making the answers of copy" in text
    assert "0 images are right in A alone, 0 in B alone" in text
    assert (copy / "answers.safetensors").read_bytes() == (runs / "base/s0/answers.safetensors").read_bytes()


def test_labels_of_a_study_choose(runs, tmp_path):
    folder = tmp_path / "study"
    shutil.copytree(runs, folder)
    labels = {"base": "AdamW, plain", "sam": "SAM"}
    listed = [
        {"run_id": f"s{seed}", "labels": {"training": labels[name]}, "seed": seed}
        for name in ("base",)
        for seed in (0, 1)
    ]
    (folder / "study.json").write_text(json.dumps({"runs": listed}))
    shutil.rmtree(folder / "sam")
    _, text = steppe("compare", f"{folder}:training=AdamW, plain", f"{folder}:training=AdamW, plain")
    assert "No difference is shown: 0.00 points" in text
    _, text = steppe("compare", f"{folder}:training=none", str(runs / "sam"))
    assert "no finished run has training=none" in text
    assert "training=AdamW, plain" in text


def test_wrong_input_gets_one_clear_message(runs, tmp_path):
    for words, what in (
        ((str(runs), str(runs / "sam")), "differ in more than their seed: minimizer.name"),
        ((str(tmp_path / "nothing"), str(runs)), "no such folder"),
        ((f"{runs}:training", str(runs)), "no study whose labels"),
    ):
        result, text = steppe("compare", *words)
        assert result.exit_code != 0
        assert what in text
    config = RunConfig.model_validate({"data": {"split_seed": 1}, "model": {"name": "mlp_8"}, "budget": {"epochs": 1}})
    execute(config, tmp_path / "other")
    _, text = steppe("compare", str(tmp_path / "other"), str(runs / "sam"))
    assert "not tested on the same images" in text
