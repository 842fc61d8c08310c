"""Exported networks answer as the run does: by onnxruntime, by timm alone, and by steppe once more."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

from steppe import data, models
from steppe.config import DataConfig, ModelConfig, RunConfig
from steppe.deploy import FORMATS, Trained, export, get_calibration, open_trained
from steppe.deploy.checking import compare, sample_images
from steppe.deploy.timm_format import write_timm
from steppe.deploy.trained import describe_images
from steppe.errors import ConfigError, RunError
from steppe.train import train

CPU = torch.device("cpu")


def images_and_logits(trained: Trained, count: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randn(count, *trained.images.train.shape[:1], trained.images.image_size, trained.images.image_size)
    with torch.no_grad():
        return images, trained.model(images)


@pytest.mark.parametrize("name", ["resnet", "vit", "photos"])
def test_onnxruntime_agrees_for_any_number_of_images(name, runs, tmp_path):
    trained = open_trained(runs / name, device="cpu")
    made = export(trained, tmp_path / "out", format="onnx")
    assert made.files == ("config.json", "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx", providers=["CPUExecutionProvider"])
    for count in (1, 2, 9):
        images, own = images_and_logits(trained, count)
        (found,) = session.run(["logits"], {"images": images.numpy()})
        np.testing.assert_allclose(found, own.numpy(), rtol=0, atol=1e-4)
    assert made.difference is not None
    assert made.difference < 1e-4


def test_onnx_metadata_prepare_an_image_without_steppe(runs, tmp_path):
    trained = open_trained(runs / "resnet", device="cpu")
    calibration = get_calibration(trained)
    assert not isinstance(calibration, str)
    export(trained, tmp_path / "out", format="onnx", calibration=calibration)
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx", providers=["CPUExecutionProvider"])
    about = {key: json.loads(value) for key, value in session.get_modelmeta().custom_metadata_map.items()}
    digits = data.load(DataConfig(name="digits"))
    pixels = digits.test.images[:20]
    mean, std = (np.array(about[key], np.float32).reshape(1, -1, 1, 1) for key in ("mean", "std"))
    x = (pixels.numpy().astype(np.float32) / about["divide_by"] - mean) / std
    (logits,) = session.run(["logits"], {"images": x})
    with torch.no_grad():
        own = trained.model(data.Normalise(digits, CPU)(pixels))
    np.testing.assert_allclose(logits, own.numpy(), rtol=0, atol=1e-4)
    assert about["classes"] == list("0123456789")
    assert (about["channels"], about["image_size"], about["resize_first_to"]) == (1, 8, 8)
    assert about["temperature"] == calibration.temperature
    assert about["steppe"] == json.loads((tmp_path / "out" / "config.json").read_text())["steppe"]


def test_a_frozen_run_is_used_without_what_it_began_from(runs, tmp_path):
    model = {"name": "vit_tiny_p2", "mode": "frozen", "weights": str(runs / "vit")}
    config = RunConfig.model_validate({"model": model, "batch_size": 512, "budget": {"epochs": 1}})
    train(config, data.load(config.data), tmp_path / "tuned")
    shutil.rmtree(runs / "vit")
    trained = open_trained(tmp_path / "tuned", device="cpu")
    for format in ("onnx", "timm"):
        made = export(trained, tmp_path / format, format=format)
        assert made.difference is not None
        assert made.difference < 1e-4


TIMM_ALONE = """
import json, sys
import numpy as np, PIL.Image, timm, timm.data, torch
folder, images, picture = sys.argv[1:]
model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
config = timm.data.resolve_data_config(model=model)
transform = timm.data.create_transform(**config)
with torch.no_grad():
    logits = model(torch.from_numpy(np.load(images)))
    prepared = transform(PIL.Image.open(picture).convert("L"))
assert "steppe" not in sys.modules
print(json.dumps([logits.tolist(), prepared.tolist(), list(model.pretrained_cfg["label_names"])]))
"""


def test_timm_alone_loads_it_and_prepares_images_alike(runs, tmp_path):
    trained = open_trained(runs / "vit", device="cpu")
    made = export(trained, tmp_path / "out", format="timm")
    assert made.files == ("config.json", "model.safetensors")
    images, own = images_and_logits(trained)
    np.save(tmp_path / "images.npy", images.numpy())
    digits = data.load(DataConfig(name="digits"))
    Image.fromarray(digits.test.images[0, 0].numpy()).save(tmp_path / "digit.png")
    command = [sys.executable, "-c", TIMM_ALONE, tmp_path / "out", tmp_path / "images.npy", tmp_path / "digit.png"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    logits, prepared, names = json.loads(done.stdout)
    torch.testing.assert_close(torch.tensor(logits), own, rtol=0, atol=1e-4)
    torch.testing.assert_close(torch.tensor(prepared)[None], data.Normalise(digits, CPU)(digits.test.images[:1]))
    assert names == list("0123456789")


@pytest.mark.parametrize("format", ["safetensors", "timm"])
def test_steppe_reads_what_it_exported(format, runs, tmp_path):
    trained = open_trained(runs / "vit", device="cpu")
    calibration = get_calibration(trained)
    assert not isinstance(calibration, str)
    export(trained, tmp_path / "out", format=format, calibration=calibration)
    again = open_trained(tmp_path / "out", device="cpu")
    images, own = images_and_logits(trained)
    with torch.no_grad():
        torch.testing.assert_close(again.model(images), own, rtol=0, atol=0)
    assert again.images.describe() == trained.images.describe()
    assert get_calibration(again) == calibration
    assert again.odd_images == trained.odd_images


def fresh(name: str, size: int, channels: int = 3) -> Trained:
    """A network with random weights, none of them zero: timm begins some heads with zeros."""
    torch.manual_seed(0)
    model = models.build(ModelConfig(name=name), image_size=size, channels=channels, classes=5).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    about = {"classes": list("abcde"), "image_size": size, "stored_size": size, "channels": channels}
    about |= {"mean": [0.5] * channels, "std": [0.2] * channels}
    images = describe_images(about, "")
    return Trained(Path("run"), "run", ModelConfig(name=name), model, images, "refuse", Path("weights"), CPU)


@pytest.mark.parametrize(
    ("name", "size", "channels"),
    [
        ("vit_2l_2h_128", 32, 3),
        ("vit_ti_p8", 32, 1),
        ("vit_2l_2h_64_mlp96_mean", 32, 3),
        ("swin_tiny_p2", 8, 1),
        ("swin_t_p4", 64, 3),
        ("mixer_s_p16", 32, 3),
        ("resnet18", 96, 3),
        ("timm:resnet18", 32, 1),
        ("r50_vit_s_p16", 96, 3),
        ("mobilenetv3_small_050", 32, 2),
        ("tiny_vit_5m_224", 64, 3),
    ],
)
def test_networks_that_timm_builds(name, size, channels, tmp_path):
    trained = fresh(name, size, channels)
    assert write_timm(trained, tmp_path, {}) < 1e-4
    with torch.no_grad():
        assert trained.model(sample_images(trained)).std() > 0.05  # else agreement would say nothing


@pytest.mark.parametrize(
    ("name", "size", "said"),
    [
        ("resnet_tiny", 8, "a network of steppe's own"),
        ("resnet50_v1", 96, "stride in its second convolution"),
        ("resnet18", 32, "its stem is one 3×3 convolution"),
        ("r50_vit_s_p16", 32, "its stem is one 3×3 convolution"),
        ("wrn_10_1", 8, "a network of steppe's own"),
        ("mlp_16", 8, "a network of steppe's own"),
        ("vit_2l_2h_128_free", 8, "no attention without softmax"),
        ("vit_2l_2h_64_conv", 8, "no ViT with this convolutional stem"),
        ("cct_2_3x1", 8, "a network of steppe's own"),
        ("mixer_tiny_p2", 8, "cannot be told another size"),
        ("swin_t_p2", 28, "a grid of them has an odd side"),
    ],
)
def test_networks_that_timm_cannot_build_are_refused(name, size, said, tmp_path):
    with pytest.raises(ConfigError) as caught:
        export(fresh(name, size), tmp_path / "out", format="timm")
    assert said in caught.value.what
    assert "--format onnx" in str(caught.value.fix)
    assert not list(tmp_path.iterdir())


def test_another_answer_is_noticed():
    trained = fresh("mlp_16", 8)
    images = sample_images(trained)
    with torch.no_grad():
        own = trained.model(images)
    assert compare(own, trained, images, "x") == 0
    with pytest.raises(ConfigError, match="differ by"):
        compare(own + 1e-2, trained, images, "x")
    with pytest.raises(ConfigError, match="differ by"):
        compare(own * float("nan"), trained, images, "x")
    with pytest.raises(ConfigError, match="shape"):
        compare(own[:1], trained, images, "x")


def test_nothing_is_overwritten_unless_asked(runs, tmp_path):
    trained, other = (open_trained(runs / name, device="cpu") for name in ("vit", "resnet"))
    out = tmp_path / "out"
    export(trained, out, format="safetensors")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(RunError, match="not empty"):
        export(other, out, format="safetensors")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    export(other, out, format="onnx", replace=True)
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.onnx"]  # no weights of the first
    (out / "mine.txt").write_text("notes")
    with pytest.raises(RunError, match=r"more than an export: mine\.txt"):
        export(trained, out, format="timm", replace=True)
    with pytest.raises(RunError, match="a run's folder"):
        export(trained, runs / "vit", format="timm", replace=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="a file, not a folder"):
        export(trained, tmp_path / "file", format="timm")
    with pytest.raises(ConfigError, match="there is no format 'tflite'"):
        export(trained, tmp_path / "other", format="tflite")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "out", "runs"]


def test_a_folder_that_is_there_and_empty_is_filled_not_replaced(runs, tmp_path):
    (tmp_path / "out").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "out")
    (tmp_path / "out" / ".steppe-export-left").mkdir()  # by one that was killed
    before = (tmp_path / "out").stat()
    export(open_trained(runs / "vit", device="cpu"), tmp_path / "link", format="safetensors")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "out").stat().st_ino == before.st_ino
    assert open_trained(tmp_path / "out", device="cpu").name == "vit"


def test_what_appears_in_the_folder_meanwhile_is_left_alone(runs, tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    write, use = FORMATS["safetensors"]

    def slowly(trained, folder, about):
        (tmp_path / "out" / "model.safetensors").write_text("somebody else's")
        return write(trained, folder, about)

    monkeypatch.setitem(FORMATS, "safetensors", (slowly, use))
    with pytest.raises(RunError, match="not empty"):
        export(open_trained(runs / "vit", device="cpu"), tmp_path / "out", format="safetensors")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.safetensors"]
    assert (tmp_path / "out" / "model.safetensors").read_text() == "somebody else's"


def test_an_export_that_fails_leaves_the_earlier_one(runs, tmp_path):
    export(open_trained(runs / "vit", device="cpu"), tmp_path / "out", format="timm")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(ConfigError, match="steppe's own"):
        export(open_trained(runs / "resnet", device="cpu"), tmp_path / "out", format="timm", replace=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data": None}, "does not say what the network's images are"),
        ({"model": ""}, "does not say which network"),
        ({"model": "vit_2l_2h_128"}, "does not fit|belong to another model"),
    ],
)
def test_damaged_exports(change, said, runs, tmp_path):
    export(open_trained(runs / "vit", device="cpu"), tmp_path / "out", format="safetensors")
    place = tmp_path / "out" / "config.json"
    about = json.loads(place.read_text())
    place.write_text(json.dumps({"steppe": about["steppe"] | change}))
    with pytest.raises(RunError, match=said):
        open_trained(tmp_path / "out", device="cpu")
