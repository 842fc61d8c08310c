"""The command line as a person meets it: flags, files, errors on one screen, Ctrl-C and SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from steppe.cli import main
from steppe.cli.flags import KEYS, flag_of
from steppe.config import load_run_config
from steppe.runs import Run


def steppe(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(a) for a in arguments])
    return int(caught.value.code or 0)


@pytest.fixture(autouse=True)
def wide(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)


QUICK = ("--model", "resnet_tiny", "--batch-size", 256, "--epochs", 1)


def test_train_from_flags(capsys, tmp_path):
    assert steppe("train", *QUICK, "--minimizer", "asam", "--rho", 0.3, "--flip") == 0
    out = capsys.readouterr().out
    assert "epoch   1/1" in out
    (folder,) = (tmp_path / "runs").iterdir()
    assert f"run folder: runs/{folder.name}" in out
    config = Run(folder).config
    assert (config.minimizer.name, config.minimizer.rho, config.augment.flip) == ("asam", 0.3, True)


def test_flags_override_a_file(tmp_path):
    (tmp_path / "run.toml").write_text(
        'batch_size = 128\n[model]\nname = "vit_tiny_p2"\n[minimizer]\nname = "sam"\nrho = 0.2\n[budget]\nepochs = 50\n'
    )
    assert steppe("train", "run.toml", *QUICK, "--rho", 0.1, "-o", "r") == 0
    config = Run(tmp_path / "r").config
    assert (config.model.name, config.minimizer.name, config.minimizer.rho) == ("resnet_tiny", "sam", 0.1)
    assert (config.batch_size, config.budget.epochs) == (256, 1)
    again = tmp_path / "again.toml"
    again.write_text((tmp_path / "r" / "config.toml").read_text())
    assert load_run_config(again) == config


def test_every_key_has_a_flag_and_help_shows_its_default(capsys):
    flags = [flag_of(key) for key in KEYS]
    assert len(set(flags)) == len(flags)
    assert steppe("train", "--help") == 0
    out = capsys.readouterr().out
    for key, flag in zip(KEYS, flags, strict=True):
        assert flag in out, key
    assert "default: vit_tiny_p2" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--model", "resnet_tinny"), "did you mean 'resnet_tiny'"),
        (("--data", "digitz"), "did you mean 'digits'"),
        (("--minimizer", "asm"), "did you mean 'asam'"),
        (("--minimizer", "sam", "--rho", "-0.1"), "minimizer.rho = -0.1"),
        (("--rho", "0.1"), "rho means nothing to 'base'"),
        (("--epochs", "3", "--gradient-evaluations", "10"), "one budget"),
        (("missing.toml",), "there is no such file"),
        (("--device", "warp"), "device 'warp' cannot be used"),
        (("--model", "vit_base_patch16_224"), "does not fit 8×8 images"),
    ],
)
def test_mistakes_exit_with_2_and_one_screen(arguments, expected, capsys, tmp_path):
    assert steppe("train", *arguments) == 2
    err = capsys.readouterr().err
    assert expected in " ".join(err.split())
    assert "Traceback" not in err
    assert len(err.splitlines()) < 24
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").rglob("weights*"))


def test_a_misspelt_key_in_a_file(capsys, tmp_path):
    (tmp_path / "run.toml").write_text("[optimiser]\nlr = 0.1\n")
    assert steppe("train", "run.toml") == 2
    err = capsys.readouterr().err
    assert "unknown key 'optimiser'; did you mean 'optimizer'" in err
    assert "where: run.toml" in err


def test_a_folder_of_another_run_is_not_overwritten(capsys, tmp_path):
    assert steppe("train", *QUICK, "-o", "r") == 0
    before = (tmp_path / "r" / "weights.safetensors").read_bytes()
    assert steppe("train", *QUICK, "--seed", 1, "-o", "r") == 2
    assert "seed is 0 there, 1 here" in capsys.readouterr().err
    assert (tmp_path / "r" / "weights.safetensors").read_bytes() == before


def test_a_diverging_run_exits_with_2(capsys):
    assert steppe("train", *QUICK, "--lr", 1e30, "--schedule", "constant") == 2
    err = capsys.readouterr().err
    assert "no longer a finite number" in err
    assert "step 1" in err


def test_lists(capsys):
    for arguments, expected in (
        (("models",), "mixer_tiny_p2"),
        (("models", "convnext_atto"), "convnext_atto"),
        (("data",), "fashion_mnist"),
        (("env",), "torch"),
        (("study", "list"), "quickstart"),
        (("study", "show", "quickstart"), "Mixer"),
        (("--version",), "steppe 0."),
    ):
        assert steppe(*arguments) == 0
        assert expected in capsys.readouterr().out
    assert steppe("models", "zzzz") == 2
    assert steppe("study", "show", "quickstar") == 2
    assert "did you mean 'quickstart'" in capsys.readouterr().err


STUDY = """
name = "mini"
question = "which?"
[base]
batch_size = 256
model = { name = "resnet_tiny" }
budget = { epochs = 1 }
[axes.how.base]
[axes.how.sam]
minimizer = { name = "sam" }
"""


def test_a_study_from_a_file(capsys, tmp_path):
    (tmp_path / "mini.toml").write_text(STUDY)
    assert steppe("study", "run", "mini.toml", "--dry-run") == 0
    assert "2 runs to do, 0 finished before; 15 gradient evaluations" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()
    assert steppe("study", "run", "mini.toml") == 0
    out = capsys.readouterr().out
    assert "report: runs/mini/report.html" in out
    assert "base" in out
    assert (tmp_path / "runs" / "mini" / "report.html").stat().st_size > 100_000
    assert steppe("study", "run", "mini.toml", "--dry-run") == 0
    assert "0 runs to do, 2 finished before" in capsys.readouterr().out
    assert steppe("report", "runs/mini", "-o", "page.html") == 0
    assert (tmp_path / "page.html").exists()
    assert steppe("report", "runs/none") == 2
    (tmp_path / "other.toml").write_text(STUDY.replace('"mini"', '"other"'))
    assert steppe("study", "run", "other.toml", "-o", "runs/mini") == 2
    assert "belongs to the study 'mini'" in capsys.readouterr().err


def test_a_study_with_a_failing_run_exits_with_2_and_reports_the_rest(capsys, tmp_path):
    (tmp_path / "mini.toml").write_text(STUDY + '[axes.how.bad]\nmodel = { name = "no_such" }\n')
    assert steppe("study", "run", "mini.toml") == 2
    captured = capsys.readouterr()
    assert "1 of 3 runs failed" in captured.err
    assert "unknown model 'no_such'" in captured.err
    assert (tmp_path / "runs" / "mini" / "report.html").exists()


def launch(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "steppe.cli", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


def read_until(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout
    for line in process.stdout:
        if text in line:
            return
    pytest.fail(f"never saw {text!r}")


LONG = ("train", "--model", "vit_tiny_p2", "--dropout", 0.1, "--minimizer", "sam", "--crop-padding", 1, "--epochs", 6)


@pytest.mark.slow
def test_a_killed_and_an_interrupted_process_end_in_the_same_weights(tmp_path):
    whole = launch(*LONG, "-o", "whole")
    output, _ = whole.communicate(timeout=120)
    assert whole.returncode == 0, output

    stopped = launch(*LONG, "-o", "stopped")
    read_until(stopped, "epoch   1/6")
    os.kill(stopped.pid, signal.SIGKILL)
    stopped.communicate()
    assert stopped.returncode == -signal.SIGKILL

    stopped = launch(*LONG, "-o", "stopped")
    read_until(stopped, "epoch   3/6")
    os.kill(stopped.pid, signal.SIGINT)
    rest, _ = stopped.communicate(timeout=60)
    assert stopped.returncode == 130
    assert "nothing is lost" in rest
    assert "run the same command again" in rest

    stopped = launch(*LONG, "-o", "stopped")
    rest, _ = stopped.communicate(timeout=120)
    assert stopped.returncode == 0
    assert "going on after epoch" in rest
    assert Path("stopped/weights.safetensors").read_bytes() == Path("whole/weights.safetensors").read_bytes()
    assert Run("stopped").summary["test"] == Run("whole").summary["test"]
