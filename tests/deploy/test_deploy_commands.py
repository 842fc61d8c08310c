"""`steppe predict` and `steppe export` as a person meets them."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from commands import steppe
from PIL import Image
from safetensors.torch import load_file, save_file

from steppe.cli import show
from steppe.deploy import find_pictures, look_at, onnx_format, open_trained


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)


def test_a_table_of_a_folder(runs, photos, capsys):
    assert steppe("predict", "runs/photos", photos, "--top", 2) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split() == ["image", "class", "probability", "(not", "calibrated)", "then"]
    assert len(lines) == 1 + 24
    assert lines[1].startswith(f"{photos}/blue & green/00.png")  # whole, however narrow the terminal
    assert "not calibrated: all 6 validation images are answered right" in err


def test_json_on_the_standard_output_and_nothing_else(runs, photos, capsys, monkeypatch):
    hours = itertools.count(0, 3600)
    monkeypatch.setattr(show, "time", SimpleNamespace(monotonic=lambda: next(hours)))
    (Path("bad.png")).write_text("no image")
    assert steppe("predict", "runs/resnet", photos, "bad.png", "--format", "json", "-k", 4, "--batch-size", 5) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["run"] == "resnet"
    assert found["calibrated"] is True
    assert found["temperature"] == json.loads(Path("runs/resnet/calibration.json").read_text())["temperature"]
    assert len(found["images"]) == 24
    assert {len(one["predictions"]) for one in found["images"]} == {4}
    assert all(0 < one["predictions"][0]["probability"] <= 1 for one in found["images"])
    assert found["skipped"] == [{"image": "bad.png", "reason": "cannot identify image file"}]
    assert "calibrated: temperature" in err
    assert "classifying: 10 of 25" in err  # progress
    assert "24 classified, 1 skipped" in err


def test_csv_into_a_file(runs, photos, capsys):
    assert steppe("predict", "runs/vit", photos, "--out", "answers.csv", "--top", 2) == 0
    rows = list(csv.DictReader(io.StringIO(Path("answers.csv").read_text())))
    assert len(rows) == 24
    assert list(rows[0]) == ["image", "class_1", "probability_1", "class_2", "probability_2"]
    assert float(rows[0]["probability_1"]) >= float(rows[0]["probability_2"])
    out, err = capsys.readouterr()
    assert out == ""
    assert "written: answers.csv" in err


def test_the_classes_are_the_runs(runs, photos, capsys):
    assert steppe("predict", "runs/photos", photos, "--format", "csv", "-k", 9) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["class_1"] for row in rows} | {row["class_2"] for row in rows} == {"blue & green", "red"}


def test_hostile_names_neither_move_the_cursor_nor_stop_it(runs, photos, capsys):
    picture = (photos / "red" / "00.png").read_bytes()
    Path("odd").mkdir()
    for name in (b":smile:.png", b"[red]\x1b[31m.png", b"\xff.png", b"new\nline.png", b"=1+1.png"):
        Path(os.fsdecode(b"odd/" + name)).write_bytes(picture)
        Path(os.fsdecode(b"odd/bad" + name)).write_bytes(b"no image")
    for kind in ("table", "csv", "json"):
        assert steppe("predict", "runs/photos", "odd", "--format", kind) == 0
        out, err = capsys.readouterr()
        assert ":smile:.png" in out
        assert "bad:smile:.png" in err
        assert "\x1b" not in err
        assert kind == "csv" or "\x1b" not in out
    assert len(json.loads(out)["images"]) == 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("missing.png",), "there is no such file or folder"),
        (("empty",), "there are no images in this folder"),
        (("*.jpg", "bad.png"), "no image could be classified; 2 skipped"),
    ],
)
def test_where_no_image_can_be_read_the_code_is_2(words, said, runs, capsys):
    Path("empty").mkdir()
    Path("bad.png").write_text("no image")
    assert steppe("predict", "runs/photos", *words, "--out", "x.json") == 2
    assert said in capsys.readouterr().err
    assert not Path("x.json").exists()


def _nan(run: Path) -> None:
    weights = load_file(run / "weights.safetensors")
    spoilt = {key: value * float("nan") if value.is_floating_point() else value for key, value in weights.items()}
    save_file(spoilt, run / "weights.safetensors")


@pytest.mark.parametrize(
    ("harm", "arguments", "said"),
    [
        (lambda run: (run / "weights.safetensors").unlink(), (), "this run has no weights"),
        (_nan, (), "the weights hold NaN or infinity"),
        (lambda run: (run / "data.json").write_text("{"), (), "this is not valid JSON"),
        (lambda run: None, ("--device", "warp"), "device 'warp' cannot be used"),
        (lambda run: None, ("--out", "somewhere"), "it is not clear what to write"),
        (lambda run: None, ("--out", "runs"), "this is a folder, not a file"),
        (lambda run: None, ("--top", 0), "Invalid value for '--top'"),
    ],
)
def test_mistakes_exit_with_2_and_one_screen(harm, arguments, said, runs, photos, capsys):
    harm(runs / "resnet")
    assert steppe("predict", "runs/resnet", photos, *arguments) == 2
    err = capsys.readouterr().err
    assert said in " ".join(err.split())
    assert "Traceback" not in err
    assert len(err.splitlines()) < 12


def test_a_run_that_is_none(capsys, photos):
    for command in (("predict", "nothing", photos), ("export", "nothing", "-o", "out")):
        assert steppe(*command) == 2
        assert "there is no such run folder" in capsys.readouterr().err
    assert not Path("out").exists()


def _run_as_printed(out: str, picture: Path) -> list[str]:
    """What the printed lines print, run in a new process as they stand, with image.png beside them."""
    Image.open(picture).save("image.png")
    program = out.split("use it:\n")[1]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    name, _, probability = done.stdout.strip().rpartition(" ")
    return [name, probability]


def _answer(folder: str, capsys) -> list[str]:
    """What `steppe predict` says of the same image."""
    assert steppe("predict", folder, "image.png", "--json") == 0
    (first, *_) = json.loads(capsys.readouterr().out)["images"][0]["predictions"]
    return [first["class"], first["probability"]]


def test_export_says_what_it_did_and_how_to_use_it(runs, photos, capsys):
    assert steppe("export", "runs/vit", "-o", "out/vit", "--format", "timm") == 0
    out, err = capsys.readouterr()
    assert "exported: out/vit (config.json, model.safetensors)" in out
    assert "loaded by timm, its logits differ from the run's by at most" in out
    assert "calibrated: temperature" in err
    name, probability = _run_as_printed(out, photos / "red" / "00.png")
    assert name in map(str, range(10))
    assert 0.1 < float(probability) <= 1
    assert steppe("predict", "out/vit", photos / "red" / "00.png") == 0
    assert "not calibrated" not in "".join(capsys.readouterr())


def test_onnx_usage_runs_as_it_is_printed(runs, photos, capsys):
    """On a network of grey images and on one of colour that resizes twice: the answers of `steppe predict`."""
    for run, picture in (("resnet", "red/00.png"), ("photos", "blue & green/01.jpg")):
        assert steppe("export", f"runs/{run}", "-o", f"out/{run}") == 0
        out = capsys.readouterr().out
        name, probability = _run_as_printed(out, photos / picture)
        expected = _answer(f"runs/{run}", capsys)
        assert name == expected[0]
        assert float(probability) == pytest.approx(expected[1], abs=0.01)
    assert "note: it learned images kept at 24×24 and brought to 16×16: resize to 24 first" in out
    assert steppe("export", "runs/photos", "-o", "out/photos") == 2
    assert "this folder is not empty" in capsys.readouterr().err
    assert steppe("export", "runs/photos", "-o", "out/photos", "--format", "safetensors", "--replace") == 0


def test_what_timm_cannot_build_is_refused_in_one_message(runs, capsys):
    assert steppe("export", "runs/resnet", "-o", "out", "--format", "timm") == 2
    err = capsys.readouterr().err
    assert "timm cannot build 'resnet_tiny' for 8×8 images" in err
    assert "fix:   use --format onnx, or --format safetensors, which steppe itself reads" in err
    assert not Path("out").exists()


def test_missing_packages_are_named(runs, capsys, monkeypatch):
    monkeypatch.setattr(onnx_format, "NEEDED", ("onnx", "a_package_that_is_not_there"))
    assert steppe("export", "runs/resnet", "-o", "out") == 2
    err = capsys.readouterr().err
    assert "not installed: a_package_that_is_not_there" in err
    assert "pip install 'steppe[onnx]'" in err


def test_an_onnx_folder_is_not_for_predict(runs, photos, capsys):
    assert steppe("export", "runs/resnet", "-o", "out") == 0
    assert steppe("predict", "out", photos) == 2
    assert "it is for onnxruntime" in capsys.readouterr().err


def test_attention_is_drawn_where_there_is_some(runs, photos, capsys):
    Path("bad.png").write_text("no image")
    assert steppe("predict", "runs/vit", "bad.png", photos, "--attention", "look.PNG") == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1 + 24  # the answers, as ever
    assert "attention: look.png" in err
    with Image.open("look.png") as picture:
        assert picture.width > 3 * picture.height  # twelve columns, three rows
    assert steppe("predict", "runs/resnet", photos, "--attention", "look2.pdf") == 2
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1 + 24
    assert "has no attention to show" in err
    assert steppe("predict", "runs/vit", photos, "--attention", "look") == 2
    assert "call it FILE.png or FILE.pdf" in capsys.readouterr().err
    assert not list(Path().glob("look2*"))


def test_maps_are_those_of_the_pictures_that_can_be_read(made, photos):
    trained = open_trained(made / "vit")
    pictures, _ = find_pictures([photos])
    images, maps = look_at(trained, pictures[:3])
    assert images.shape == (3, 1, 8, 8)
    assert images.dtype == np.uint8
    for found in maps.values():
        assert found.shape == (3, 8, 8)
        assert found.min() == 0
        assert found.max() == 1
    other = look_at(trained, pictures[2:3])[1]
    np.testing.assert_allclose(other["rollout"][0], maps["rollout"][2], atol=1e-5)


def test_onnx_usage_of_a_network_of_points_runs_too(tmp_path, photos, capsys):
    words = ("--data", "toy_moons", "--model", "mlp_4", "--epochs", 1, "-o", "runs/points")
    assert steppe("train", *words) == 0
    assert steppe("export", "runs/points", "-o", "out") == 0
    name, _ = _run_as_printed(capsys.readouterr().out, photos / "red" / "00.png")
    assert name
