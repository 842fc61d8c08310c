"""The command line as a person meets it: flags, files, errors on one screen, Ctrl-C and SIGKILL."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import launch, read_until, steppe
from PIL import Image

from steppe import data, models
from steppe.config import load_run_config, names
from steppe.config.keys import KEYS, flag_of
from steppe.runs import Run


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


def test_train_takes_data_in_the_place_of_a_file(tmp_path):
    make_images(tmp_path / "photos")
    assert steppe("train", "photos/", *QUICK, "-o", "a") == 0
    assert steppe("train", "--data", "photos", *QUICK, "-o", "b") == 0
    assert Run(tmp_path / "a").config == Run(tmp_path / "b").config


def test_train_refuses_data_that_are_named_twice(capsys):
    assert steppe("train", "digits", "--data", "mnist") == 2
    assert "the data are named twice: 'digits' and 'mnist'" in capsys.readouterr().err


def test_train_takes_a_toml_file_of_any_name(tmp_path):
    (tmp_path / "settings").write_text("seed = 7\n")
    assert steppe("train", "settings", *QUICK, "-o", "r") == 0
    assert Run(tmp_path / "r").config.seed == 7


def test_predict_refuses_names_of_which_none_is_there(capsys):
    assert steppe("train", *QUICK, "-o", "r") == 0
    assert steppe("predict", "r", "x.jpg") == 2
    assert "there is no such file or folder\n  where: x.jpg" in capsys.readouterr().err


def test_models_are_searched_in_any_spelling(capsys):
    assert steppe("models", "ResNet-18") == 0
    assert "resnet18" in capsys.readouterr().out


def test_every_key_has_a_flag_and_help_shows_its_default(capsys):
    flags = [flag_of(key) for key in KEYS]
    assert len(set(flags)) == len(flags)
    assert steppe("train", "--help") == 0
    out = capsys.readouterr().out
    for key, flag in zip(KEYS, flags, strict=True):
        assert flag in out, key
    text = " ".join(out.replace("│", " ").split())
    for key, field in KEYS.items():
        if isinstance(field.default, str | int | float) and "default: " not in (field.description or ""):
            shown = f"{field.default:.4g}" if isinstance(field.default, float) else str(field.default)
            assert f"[{key}, default: {shown.lower()}]" in text, key
    assert "training images; default: 20" in text
    assert "default: 0.05; 0.5 for asam and samon, 0.3 for lesam, 3 for msam (0.3 over Adam)" in text


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


def test_a_flag_that_two_sections_share_is_answered_with_both(capsys):
    assert steppe("train", "--minimizer", "esam", "--gamma", 0.5) == 2
    said = capsys.readouterr().err
    assert "say --minimizer-gamma (esam's γ" in said
    assert "or --schedule-gamma (step: factor of each drop)" in said
    assert "--sigma" not in said
    assert not Path("runs").exists()
    assert steppe("train", "--help") == 0
    assert " --gamma" not in capsys.readouterr().out


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
        (("study", "show", "quickstart"), "ResNet, noisy"),
        (("--version",), "steppe 0."),
    ):
        assert steppe(*arguments) == 0
        assert expected in capsys.readouterr().out
    assert steppe("models", "zzzz") == 2
    assert steppe("study", "show", "quickstar") == 2
    assert "did you mean 'quickstart'" in capsys.readouterr().err


def test_help_is_written_for_people(capsys):
    for words in ((), ("report",), ("predict",), ("compare",), ("study",), ("study", "run")):
        assert steppe(*words, "--help") == 0
        out = capsys.readouterr().out
        assert "<bool>" not in out
        assert not re.search(r"Usage:.*[{}]", out)
    assert steppe("report", "--help") == 0
    assert "report [OPTIONS] RUNS..." in capsys.readouterr().out


def test_the_package_knows_its_version():
    import importlib.metadata

    import steppe as package

    assert package.__version__ == importlib.metadata.version("steppe")


FINE = ["--version", "--help", "train --help", "geometry --help", "study --help", "study list", "weights list"]
MISTAKES = [
    *("train --lr -1", "study run nosuch", "study show quickstart --scale nosuch", "geometry nosuch"),
    *(
        "train nosuch/",
        "train nosuch.toml",
        "train --data nosuch",
        "train digits --data mnist",
        "train --model resnet19x",
    ),
    *(
        "train --weights nosuch",
        "train --device tpu",
        "train --track nosuch",
        "models nosuch",
        "weights get nosuch",
        "study compare toys nosuch",
    ),
    *(
        "predict nosuch x.jpg",
        "export nosuch -o x",
        "report nosuch",
        "compare nosuch nosuch",
        "evaluate nosuch nosuch2",
    ),
    *("cost nosuch", "cost resnet18 --data nosuch", "cost resnet19x --data digits"),
    "evaluate --model resnet19x --weights timm --data digits",
]


@pytest.mark.parametrize("words", FINE + MISTAKES)
def test_what_computes_nothing_does_not_wait_for_torch(words):
    heavy = {"torch", "timm", "torchvision", "sklearn", "scipy", "matplotlib"}
    code = f"""
import sys
from steppe.cli import main
try:
    main({words.split()!r})
except SystemExit as end:
    assert (end.code or 0) == {2 * (words in MISTAKES)}, end.code
loaded = {heavy!r} & set(sys.modules)
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "quickstart" in done.stdout or words != "study list"


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "--out", "x" * 300),
        ("train", "x" * 300 + ".toml"),
        ("train", "/etc/passwd/x.toml"),
        ("train", "--data", "x/" + "y" * 300),
        ("train", "--device", "meta"),
        ("train", "--epochs", "9" * 400),
        ("study", "show", "x" * 300),
        ("report", "x" * 300),
    ],
)
def test_odd_arguments_exit_with_2(arguments, capsys):
    assert steppe(*arguments) == 2
    assert "Traceback" not in capsys.readouterr().err


def make_images(folder: Path, classes=("cat", "dog")) -> None:
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(6):
            Image.new("RGB", (8, 8), (number * 40, 0, 0)).save(folder / name / f"{number}.png")


def spoil(folder: Path, how: str) -> None:
    if how == "one class":
        shutil.rmtree(folder / "dog")
    elif how == "empty class":
        (folder / "empty").mkdir()
    elif how == "truncated":
        Image.effect_noise((64, 64), 50).convert("RGB").save(folder / "cat" / "cut.jpg")
        content = (folder / "cat" / "cut.jpg").read_bytes()
        (folder / "cat" / "cut.jpg").write_bytes(content[: len(content) // 2])
    else:
        image = {
            "16-bit": Image.new("I;16", (8, 8)),
            "CMYK": Image.new("CMYK", (8, 8)),
            "palette": Image.new("P", (8, 8)),
        }
        image[how].save(folder / "cat" / ("odd.jpg" if how == "CMYK" else "odd.png"))


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("one class", "one class, 'cat'"),
        ("empty class", "class 'empty' has no images"),
        ("truncated", "cat/cut.jpg"),
        ("16-bit", "cat/odd.png (I;16)"),
        ("CMYK", "cat/odd.jpg (CMYK)"),
        ("palette", "cat/odd.png (P)"),
    ],
)
def test_a_bad_image_folder_exits_with_2(how, expected, capsys, tmp_path):
    make_images(tmp_path / "pets")
    spoil(tmp_path / "pets", how)
    assert steppe("train", "--data", "./pets", "--image-size", 8, *QUICK) == 2
    err = capsys.readouterr().err
    assert expected in err
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()


def test_a_good_image_folder_trains(tmp_path):
    make_images(tmp_path / "pets")
    assert steppe("train", "--data", "./pets", *QUICK) == 0


def test_a_full_disk_exits_with_2(capsys, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 * 1024, hard))
    try:
        assert steppe("train", *QUICK, "-o", "r") == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "the disk is full" in capsys.readouterr().err
    assert steppe("train", *QUICK, "-o", "r") == 0


def test_ctrl_c_before_training_says_so(tmp_path):
    process = launch("train", *QUICK)
    while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text():  # torch is being imported
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "nothing is lost" in output


LONG = (
    "train",
    "--model",
    "vit_tiny_p2",
    "--dropout",
    0.1,
    "--minimizer",
    "sam",
    "--crop-padding",
    1,
    "--epochs",
    6,
    "--fraction",
    0.4,
)


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


def test_a_mistake_that_one_process_alone_meets_is_told_by_it(tmp_path):
    command = [sys.executable, "-m", "steppe", "train", "--lr", "-1"]
    done = subprocess.run(command, env={**os.environ, "RANK": "1"}, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("process 1: error optimizer.lr = -1.0")


def test_the_minimizers_are_listed_with_flags_that_train_knows(capsys):
    assert steppe("minimizers") == 0
    listed = set(re.findall(r"--[\w-]+", capsys.readouterr().out))
    assert listed <= {flag_of(key) for key in KEYS}
    assert "--minimizer-gamma" in listed


def test_a_rate_that_a_model_lacks_is_not_blamed_on_the_image_size(capsys):
    assert steppe("train", "--model", "mlp_64_64", "--drop-path", 0.5) == 2
    said = capsys.readouterr().err
    assert "where: model.drop_path" in said
    assert "does not fit" not in said


def test_a_measure_that_is_unknown_is_answered_with_those_there_are(capsys):
    subject = ("--model", "resnet18", "--weights", "timm", "--data", "digits")
    assert steppe("geometry", *subject, "--only", "zzz") == 2
    assert "lambda_max" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("steppe train --minimizer lo", ["looksam"]),
        ("steppe train --model vit_4", ["vit_4l_4h_256"]),
        ("steppe study run sw", ["swin-finetune"]),
        ("steppe study run sharp-minima --scale sm", ["smoke", "small"]),
        ("steppe study run sharp-minima --scale cifar100 --only model=", ["model=ResNet", "model=ViT", "model=Mixer"]),
        ("steppe study run nosuch --only m", []),
    ],
)
def test_a_shell_offers_names_when_tab_is_pressed(line, offered):
    """And at once: without importing torch, so that names of models and data have a list of their own."""
    words = line.split(" ")
    asked = {"_STEPPE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    found = subprocess.run(
        [Path(sys.executable).with_name("steppe")],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout.split() == offered


def test_the_names_that_a_shell_offers_are_those_that_there_are():
    assert tuple(models.SMALL_MODELS) == names.MODELS
    assert tuple(data.DATASETS) == names.DATASETS


def test_completion_set_up_by_python_m_is_that_of_steppe():
    """And not of every `python`, which would then complete nothing any more."""
    asked = {**os.environ, "_STEPPE_COMPLETE": "source_bash"}
    script = subprocess.check_output([sys.executable, "-m", "steppe"], env=asked, text=True)
    assert script.rstrip().endswith("complete -o default -F _steppe_completion steppe")
