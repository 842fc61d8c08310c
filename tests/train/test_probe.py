"""Probes of tiny networks: what they answer, what they keep, and what kills and damaged files cost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from small_pretrained import STATISTICS, load, probe_config

from steppe.config import RunConfig
from steppe.data import Keeping, as_learned, in_order
from steppe.deploy import get_calibration, open_trained
from steppe.deploy.calibration import calibrate
from steppe.errors import ConfigError, Interrupted, RunError, TrainingError
from steppe.models import build
from steppe.runs import OUT_OF_FOLD, Observer, Run, create_run
from steppe.train import build_model, probe, train
from steppe.train.feature_cache import Extractor, FeatureCache, make_extractors
from steppe.train.probe import read_out_of_fold

CPU = torch.device("cpu")
PAIR = ("test_resnet", "test_efficientnet")


@pytest.fixture
def keeping(tmp_path) -> Keeping:
    return Keeping(cache=tmp_path / "cache")


def make(config: RunConfig, out: Path, keeping: Keeping | None = None, observer: Observer | None = None) -> Run:
    return train(config, load(config), out, device="cpu", keeping=keeping, observer=observer)


class Heard(Observer):
    """Keeps the notes of a run."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def say(self, text: str) -> None:
        self.notes.append(text)


class At(Observer):
    """Does something when a share of the features is there."""

    def __init__(self, share: float, act) -> None:
        self.share, self.act = share, act

    def step(self, epochs: float) -> None:
        if epochs >= self.share:
            self.act()


def forbid_computing(monkeypatch) -> None:
    def fail(*_):
        raise AssertionError("features were computed")

    monkeypatch.setattr(Extractor, "__call__", fail)


# -- what it is ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("test_resnet",), ("test_vit",), PAIR])
def test_answers_of_the_network_are_those_of_the_head_on_its_features(colour_images, tiny_weights, tmp_path, names):
    config = probe_config(colour_images, tiny_weights, *names)
    run = make(config, tmp_path / "r", Keeping(cache=tmp_path))
    trained = open_trained(run.path, device="cpu")
    dataset = as_learned(load(config), run.read("data.json"))
    cache = FeatureCache(make_extractors(trained.model, config, CPU, 3, 32), dataset, CPU, tmp_path)
    head = trained.model.get_classifier()
    with torch.no_grad():
        on_features = head(cache.features(dataset.test).float())
        answers = torch.cat(
            [trained.model(images) for images, _ in in_order(dataset.test, dataset, batch_size=4, device=CPU)]
        )
    torch.testing.assert_close(on_features, answers, rtol=0, atol=5e-3)  # features are kept in half precision
    right = (answers.argmax(1) == dataset.test.labels).double().mean().item()
    assert run.summary["test"]["accuracy"] == pytest.approx(right)
    assert run.summary["test"]["accuracy"] > 0.5


def test_features_side_by_side_are_those_of_each_network_with_its_own_normalisation(colour_images, tiny_weights):
    names = ("test_vit", "test_resnet", "test_efficientnet")
    config = probe_config(colour_images, tiny_weights, *names)
    dataset = load(config)
    pixels = torch.rand(5, 3, 32, 32)

    def normalised(name: str) -> torch.Tensor:
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in STATISTICS[name])
        return (pixels - mean) / std

    beside = build_model(config, dataset).eval()
    seen = normalised(names[0])
    own = []
    for name in names:
        size = {"img_size": 32} if name == "test_vit" else {}
        alone = timm.create_model(name, num_classes=0, **size).eval()
        one = probe_config(colour_images, tiny_weights, name)
        alone.load_state_dict(
            {k: v for k, v in build_model(one, dataset).state_dict().items() if k in alone.state_dict()}
        )
        own.append(alone(normalised(name)).detach())
    kept = {}
    beside.head.register_forward_pre_hook(lambda module, inputs: kept.update(features=inputs[0]))
    with torch.no_grad():
        beside(seen)
        parts = torch.cat([extract(seen) for extract in make_extractors(beside, config, CPU, 3, 32)], 1)
    torch.testing.assert_close(kept["features"], torch.cat(own, 1), rtol=0, atol=1e-4)
    torch.testing.assert_close(parts, torch.cat(own, 1), rtol=0, atol=1e-4)


def test_a_network_side_by_side_needs_nothing_but_its_own_weights(colour_images, tiny_weights, tmp_path, keeping):
    config = probe_config(colour_images, tiny_weights, *PAIR)
    run = make(config, tmp_path / "r", keeping)
    model = build(config.model, image_size=32, channels=3, classes=3, load=False)
    assert (model.scale == 1).all()
    assert set(model.state_dict()) == set(load_file(run.weights))
    trained = open_trained(run.path, device="cpu").model
    mean, std = (torch.tensor(STATISTICS["test_efficientnet"][n]).view(3, 1, 1) for n in (0, 1))
    torch.testing.assert_close(trained.scale[1], 0.5 / std)
    torch.testing.assert_close(trained.shift[1], (0.5 - mean) / std)


def test_a_network_that_cannot_stand_beside_others_is_refused(colour_images, tiny_weights, tmp_path):
    values = {"name": "test_resnet+test_vit", "weights": str(tiny_weights / "test_resnet.safetensors")}
    config = probe_config(colour_images, tiny_weights, "test_resnet", model=values)
    with pytest.raises(ConfigError, match="2 networks side by side need 2 weights"):
        make(config, tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_network_with_another_kind_of_head_is_refused(colour_images, tmp_path, tiny_weights):
    model = timm.create_model("caformer_s18", num_classes=0, img_size=32).state_dict()
    path = tmp_path / "caformer.safetensors"
    save_file({key: value.contiguous() for key, value in model.items()}, path)
    values = {"name": "caformer_s18", "weights": str(path)}
    config = probe_config(colour_images, tiny_weights, "test_resnet", model=values)
    with pytest.raises(ConfigError, match="no single linear layer as its head"):
        make(config, tmp_path / "r")


def test_mirrored_images_are_learned_too(colour_images, tiny_weights, tmp_path, keeping):
    shares = []
    watch = At(0.0, lambda: None)
    watch.step = shares.append
    config = probe_config(colour_images, tiny_weights, "test_resnet", augment={"flip": True})
    mirrored = make(config, tmp_path / "m", keeping, watch)
    plain = make(probe_config(colour_images, tiny_weights, "test_resnet"), tmp_path / "p", keeping)
    assert shares[-1] == 1.0
    assert shares == sorted(shares)
    assert mirrored.weights.read_bytes() != plain.weights.read_bytes()
    assert mirrored.summary["probe"]["cross_validation"]["examples"] == 24, "a mirror image is no image of its own"


# -- what it is judged by ------------------------------------------------------------------------------------------


def test_validation_images_decide_nothing_unless_they_are_learned(colour_images, tiny_weights, tmp_path, keeping):
    run = make(probe_config(colour_images, tiny_weights, "test_resnet"), tmp_path / "r", keeping)
    assert run.summary["val"]["examples"] == 12
    assert run.summary["train"]["examples"] == run.summary["probe"]["cross_validation"]["examples"] == 24
    assert not (run.path / OUT_OF_FOLD).exists()


def test_figures_of_a_probe_that_learns_validation_images_are_out_of_fold(
    colour_images, tiny_weights, tmp_path, keeping
):
    data = {"learn_from_val": True}
    run = make(probe_config(colour_images, tiny_weights, "test_resnet", data=data), tmp_path / "r", keeping)
    logits, labels = read_out_of_fold(run.path)
    assert len(logits) == 36
    dataset = load(run.config)
    assert torch.equal(labels, torch.cat([dataset.train.labels, dataset.val.labels])), "validation images come last"
    right = (logits.argmax(1) == labels).double().mean().item()
    val, judged = run.summary["val"], run.summary["probe"]["cross_validation"]
    assert val["accuracy"] == pytest.approx(right) == pytest.approx(judged["accuracy"])
    assert val["loss"] == pytest.approx(judged["loss"])
    assert val["examples"] == judged["examples"] == 36
    assert run.metrics()[0]["val_accuracy"] == val["accuracy"]
    assert run.summary["train"]["accuracy"] == 1.0 > val["accuracy"]


def test_calibration_of_such_a_probe_comes_from_answers_on_images_left_out(
    colour_images, tiny_weights, tmp_path, keeping
):
    data = {"learn_from_val": True}
    run = make(probe_config(colour_images, tiny_weights, "test_resnet", data=data), tmp_path / "r", keeping)
    found = get_calibration(open_trained(run.path, device="cpu"))
    expected = calibrate(*read_out_of_fold(run.path), found.weights_sha256)
    assert found == expected
    assert found.examples == 36
    assert run.read("calibration.json")["temperature"] == found.temperature
    (run.path / "calibration.json").unlink()
    (run.path / OUT_OF_FOLD).write_bytes(b"damaged")
    with pytest.raises(RunError, match="answers cannot be read"):
        get_calibration(open_trained(run.path, device="cpu"))


def test_a_given_penalty_is_taken(colour_images, tiny_weights, tmp_path, keeping):
    config = probe_config(colour_images, tiny_weights, "test_resnet", model={"penalty": 0.5})
    run = make(config, tmp_path / "r", keeping)
    assert run.summary["probe"]["penalty"] == 0.5
    weaker = make(probe_config(colour_images, tiny_weights, "test_resnet"), tmp_path / "w", keeping)
    sizes = [load_file(one.weights)["fc.weight"].norm() for one in (run, weaker)]
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize(
    "section",
    [
        {"minimizer": {"name": "sam"}},
        {"ema": 0.9},
        {"label_smoothing": 0.1},
        {"augment": {"crop_padding": 2}},
        {"objective": {"name": "adversarial"}},
        {"patience": 3},
    ],
)
def test_settings_of_training_are_refused(colour_images, tiny_weights, section):
    with pytest.raises(ValueError, match="mode 'probe' solves a logistic regression"):
        probe_config(colour_images, tiny_weights, "test_resnet", **section)


def test_keys_of_a_probe_are_refused_elsewhere():
    with pytest.raises(ValueError, match="belongs to"):
        RunConfig.model_validate({"model": {"penalty": 0.1}})


# -- kills and interruptions ---------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import torch
from small_pretrained import load
from steppe.config import load_run_config
from steppe.data import Keeping
from steppe.runs import Observer
from steppe.train import train
torch.set_num_threads(1)
class Kill(Observer):
    def step(self, epochs):
        if epochs >= 0.6:
            os.kill(os.getpid(), signal.SIGKILL)
config = load_run_config({config!r})
train(config, load(config), {out!r}, device="cpu", keeping=Keeping(cache=Path({cache!r})), observer=Kill())
"""


@pytest.mark.slow
def test_a_run_killed_amid_its_features_ends_in_the_same_weights(
    colour_images, tiny_weights, tmp_path, keeping, monkeypatch
):
    config = probe_config(colour_images, tiny_weights, *PAIR)
    whole = make(config, tmp_path / "whole", Keeping(cache=tmp_path / "other"))
    create_run(tmp_path / "plan", config)
    places = {"config": str(tmp_path / "plan" / "config.toml"), "out": str(tmp_path / "r")}
    places |= {"cache": str(tmp_path / "cache"), "tests": str(Path(__file__).parents[1])}
    killed = subprocess.run([sys.executable, "-c", KILLED.format(**places)], capture_output=True, text=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not Run(tmp_path / "r").finished
    assert list((tmp_path / "cache" / "features").glob("*.safetensors")), "some features are there already"
    computed = []
    extract = Extractor.__call__
    monkeypatch.setattr(Extractor, "__call__", lambda own, images: computed.append(own.name) or extract(own, images))
    run = make(config, tmp_path / "r", keeping)
    assert computed == ["test_efficientnet", *PAIR], "the training images' by the first network are there already"
    assert run.weights.read_bytes() == whole.weights.read_bytes()
    assert len(run.metrics()) == 1


def test_ctrl_c_amid_the_features_keeps_what_is_there(colour_images, tiny_weights, tmp_path, keeping):
    config = probe_config(colour_images, tiny_weights, *PAIR)
    interrupt = At(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Interrupted):
        make(config, tmp_path / "r", keeping, interrupt)
    assert not Run(tmp_path / "r").finished
    run = make(config, tmp_path / "r", keeping)
    whole = make(config, tmp_path / "whole", Keeping(cache=tmp_path / "other"))
    assert run.weights.read_bytes() == whole.weights.read_bytes()


def test_features_are_computed_in_smaller_batches_where_memory_runs_out(
    colour_images, tiny_weights, tmp_path, keeping, monkeypatch
):
    config = probe_config(colour_images, tiny_weights, "test_resnet")
    whole = make(config, tmp_path / "whole", keeping)
    extract, sizes, shares = Extractor.__call__, [], []

    def run_out(own, images):
        sizes.append(len(images))
        if len(images) > 10:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return extract(own, images)

    monkeypatch.setattr(Extractor, "__call__", run_out)
    watch = Observer()
    monkeypatch.setattr(watch, "step", shares.append)
    run = make(config, tmp_path / "r", Keeping(cache=tmp_path / "other"), watch)
    assert max(sizes) > 10 > min(sizes)
    assert shares[-1] == 1.0
    assert run.summary["val"] == pytest.approx(whole.summary["val"], abs=1e-3)


def test_memory_that_runs_out_while_solving_is_one_message(colour_images, tiny_weights, tmp_path, keeping, monkeypatch):
    def run_out(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(probe, "fit_head", run_out)
    with pytest.raises(TrainingError, match="memory ran out"):
        make(probe_config(colour_images, tiny_weights, "test_resnet"), tmp_path / "r", keeping)
    assert Run(tmp_path / "r").summary["status"] == "failed"


# -- the cache -----------------------------------------------------------------------------------------------------


def test_features_are_computed_once_for_many_runs(colour_images, tiny_weights, tmp_path, keeping, monkeypatch):
    first = make(probe_config(colour_images, tiny_weights, "test_resnet"), tmp_path / "a", keeping)
    second = make(probe_config(colour_images, tiny_weights, "test_efficientnet"), tmp_path / "b", keeping)
    forbid_computing(monkeypatch)
    again = make(probe_config(colour_images, tiny_weights, "test_resnet"), tmp_path / "c", keeping)
    assert again.weights.read_bytes() == first.weights.read_bytes() != second.weights.read_bytes()
    beside = probe_config(colour_images, tiny_weights, *PAIR)
    with pytest.raises(AssertionError, match="features were computed"):
        make(beside, tmp_path / "d", keeping)  # the second sees images normalised for the first: other numbers


@pytest.mark.parametrize("change", ["weights", "images", "precision", "size"])
def test_features_of_anything_else_are_not_taken(colour_images, tiny_weights, tmp_path, keeping, change, monkeypatch):
    make(probe_config(colour_images, tiny_weights, "test_resnet"), tmp_path / "a", keeping)
    weights, sections = tiny_weights, {}
    if change == "weights":
        state = load_file(tiny_weights / "test_resnet.safetensors")
        key = next(iter(state))
        state[key] = state[key] + 1e-3
        weights = tmp_path / "weights"
        weights.mkdir()
        save_file(state, weights / "test_resnet.safetensors")
        (weights / "test_resnet.json").write_text((tiny_weights / "test_resnet.json").read_text())
    elif change == "images":
        sections = {"data": {"split_seed": 1}}
    elif change == "precision":
        sections = {"precision": "bfloat16"}
    else:
        sections = {"data": {"image_size": 24}}
    forbid_computing(monkeypatch)
    with pytest.raises(AssertionError, match="features were computed"):
        make(probe_config(colour_images, weights, "test_resnet", **sections), tmp_path / "b", keeping)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def narrow(path: Path) -> None:
    save_file({"features": load_file(path)["features"][:, :5].contiguous()}, path)


def rename(path: Path) -> None:
    save_file({"others": load_file(path)["features"]}, path)


def halve(path: Path) -> None:
    save_file({"features": load_file(path)["features"][:3].contiguous()}, path)


def spoil(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [cut, empty, narrow, rename, halve, spoil])
def test_a_damaged_part_of_the_cache_is_computed_again(colour_images, tiny_weights, tmp_path, keeping, damage):
    config = probe_config(colour_images, tiny_weights, "test_resnet")
    first = make(config, tmp_path / "a", keeping)
    part = sorted((tmp_path / "cache" / "features").glob("*.safetensors"))[0]
    damage(part)
    again = make(config, tmp_path / "b", keeping)
    assert again.weights.read_bytes() == first.weights.read_bytes()


def test_a_cache_that_cannot_be_written_costs_the_cache_alone(colour_images, tiny_weights, tmp_path, keeping):
    config = probe_config(colour_images, tiny_weights, "test_resnet")
    (tmp_path / "taken").write_text("a file")
    heard = Heard()
    run = make(config, tmp_path / "a", Keeping(cache=tmp_path / "taken"), heard)
    assert run.finished
    assert [note for note in heard.notes if "features cannot be kept" in note] == heard.notes[:1]
    assert len(heard.notes) == 1, "it is said once"
    assert run.weights.read_bytes() == make(config, tmp_path / "b", keeping).weights.read_bytes()


# -- weights -------------------------------------------------------------------------------------------------------


def put_changed(folder: Path, tiny_weights: Path, change) -> Path:
    folder.mkdir()
    change(tiny_weights / "test_resnet.safetensors", folder / "test_resnet.safetensors")
    (folder / "test_resnet.json").write_text((tiny_weights / "test_resnet.json").read_text())
    return folder


def test_weights_cut_short_are_refused_and_leave_no_folder(colour_images, tiny_weights, tmp_path):
    weights = put_changed(tmp_path / "w", tiny_weights, lambda a, b: b.write_bytes(a.read_bytes()[:20_000]))
    with pytest.raises(ConfigError, match="cannot be read"):
        make(probe_config(colour_images, weights, "test_resnet"), tmp_path / "r")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_weights_of_another_type_are_converted(colour_images, tiny_weights, tmp_path, keeping, dtype):
    def convert(source: Path, target: Path) -> None:
        state = load_file(source)
        save_file({k: v.to(dtype) if v.is_floating_point() else v for k, v in state.items()}, target)

    weights = put_changed(tmp_path / "w", tiny_weights, convert)
    run = make(probe_config(colour_images, weights, "test_resnet"), tmp_path / "r", keeping)
    plain = make(probe_config(colour_images, tiny_weights, "test_resnet"), tmp_path / "p", keeping)
    assert all(v.dtype in (torch.float32, torch.int64) for v in load_file(run.weights).values())
    assert run.summary["val"]["loss"] == pytest.approx(plain.summary["val"]["loss"], rel=0.1)
    if dtype == torch.float64:
        assert run.weights.read_bytes() == plain.weights.read_bytes()


def test_the_classes_that_weights_know_do_not_matter(colour_images, tiny_weights, tmp_path, keeping):
    def keep_seven(source: Path, target: Path) -> None:
        state = load_file(source)
        save_file({k: v[:7].contiguous() if k.startswith("fc.") else v for k, v in state.items()}, target)

    weights = put_changed(tmp_path / "w", tiny_weights, keep_seven)
    run = make(probe_config(colour_images, weights, "test_resnet"), tmp_path / "r", keeping)
    plain = make(probe_config(colour_images, tiny_weights, "test_resnet"), tmp_path / "p", keeping)
    assert run.weights.read_bytes() == plain.weights.read_bytes()


def test_weights_changed_amid_a_run_are_refused(colour_images, tiny_weights, tmp_path, keeping):
    weights = put_changed(tmp_path / "w", tiny_weights, lambda a, b: b.write_bytes(a.read_bytes()))
    config = probe_config(colour_images, weights, "test_resnet")
    with pytest.raises(Interrupted):
        make(config, tmp_path / "r", keeping, At(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)))
    state = load_file(weights / "test_resnet.safetensors")
    save_file(
        {k: v * 1.01 if v.is_floating_point() else v for k, v in state.items()}, weights / "test_resnet.safetensors"
    )
    with pytest.raises(RunError, match="weights this run began with have changed"):
        make(config, tmp_path / "r", keeping)
