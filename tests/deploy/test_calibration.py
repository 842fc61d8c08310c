"""Temperature scaling: against a grid, on known temperatures, and what is kept in the run folder."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

from steppe import data
from steppe.config import RunConfig
from steppe.data import Keeping
from steppe.deploy import fit_temperature, get_calibration, open_trained
from steppe.deploy.calibration import FILE, MOST, Calibration, calibrate, read_calibration, temperature_error
from steppe.studies.subjects import load_learned
from steppe.train import train


def answers(temperature: float, count: int = 20_000) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and labels drawn from softmax(logits / temperature)."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(count, 5, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((logits / temperature).softmax(1), 1, generator=generator)[:, 0]
    return logits, labels


@pytest.mark.parametrize("true", [0.3, 1.0, 4.0])
def test_a_known_temperature_is_found(true):
    assert fit_temperature(*answers(true)) == pytest.approx(true, rel=0.05)


def test_it_is_the_least_nll_of_all_temperatures():
    logits, labels = answers(2.0, count=300)
    best = fit_temperature(logits, labels)
    assert best is not None
    grid = torch.linspace(0.2, 8, 400).tolist()
    assert F.cross_entropy(logits / best, labels) <= min(F.cross_entropy(logits / t, labels) for t in grid) + 1e-12


def test_it_scales_with_the_logits():
    logits, labels = answers(2.0, count=300)
    once, thrice = fit_temperature(logits, labels), fit_temperature(3 * logits, labels)
    assert thrice == pytest.approx(3 * once, rel=1e-6)


def test_its_standard_error_is_its_spread_over_samples():
    logits, _ = answers(2.0, count=200)
    generator = torch.Generator().manual_seed(1)
    draws = torch.multinomial((logits / 2.0).softmax(1), 400, replacement=True, generator=generator)
    found = torch.tensor([fit_temperature(logits, labels) for labels in draws.T], dtype=torch.float64)
    assert temperature_error(logits, 2.0) == pytest.approx(found.std().item(), rel=0.12)


def test_answers_that_are_all_right_or_all_wrong():
    logits, _ = answers(1.0, count=50)
    assert fit_temperature(logits, logits.argmax(1)) is None
    assert fit_temperature(logits, logits.argmin(1)) == MOST
    found = calibrate(logits, logits.argmax(1), "")
    assert found.temperature == 1
    assert "all 50 validation images are answered right" in str(found.why_not)


def test_it_never_makes_the_nll_of_its_images_worse_and_travels_as_json():
    found = calibrate(*answers(3.0, count=500), "abc")
    assert found.after["nll"] < found.before["nll"]
    assert found.after["ece"] < found.before["ece"]
    assert read_calibration(json.loads(json.dumps(found.as_json()))) == found


@pytest.mark.parametrize("key", ["temperature", "before", "weights_sha256"])
def test_damaged_ones_are_not_read(key):
    about = calibrate(*answers(3.0, count=50), "abc").as_json()
    assert read_calibration(about) is not None
    assert read_calibration({**about, key: None} if key != "weights_sha256" else {}) is None
    assert read_calibration({**about, "temperature": float("nan")}) is None
    assert read_calibration({**about, "temperature": -1.0}) is None


def test_it_is_made_once_and_kept(runs):
    said: list[str] = []
    trained = open_trained(runs / "resnet", device="cpu")
    first = get_calibration(trained, say=said.append)
    assert isinstance(first, Calibration)
    assert first.examples == 143
    assert first.after["nll"] <= first.before["nll"]
    assert len(said) == 1
    assert "143 validation images" in said[0]
    kept = json.loads((runs / "resnet" / "calibration.json").read_text())
    assert (kept["split"], kept["examples"], kept["temperature"]) == ("val", 143, first.temperature)
    assert get_calibration(trained, say=said.append) == first
    assert len(said) == 1


def test_one_of_other_weights_or_a_damaged_one_is_made_again(runs):
    trained = open_trained(runs / "resnet", device="cpu")
    first = get_calibration(trained)
    place = runs / "resnet" / "calibration.json"
    kept = json.loads(place.read_text())
    for content in (json.dumps({**kept, "temperature": 9, "weights_sha256": "0"}), "{", "[]"):
        place.write_text(content)
        assert get_calibration(trained) == first
        assert json.loads(place.read_text()) == kept


def test_without_data_it_says_why(runs, photos):
    trained = open_trained(runs / "photos", device="cpu")
    assert get_calibration(trained, make=False) == "the run has no calibration yet"
    extra = photos / "red" / "extra.png"
    extra.write_bytes((photos / "red" / "00.png").read_bytes())
    try:
        assert "cannot be had: these are not the data the run learned from" in str(get_calibration(trained))
    finally:
        extra.unlink()
    moved = photos.rename(photos.with_name("elsewhere"))
    try:
        assert "validation images cannot be had: there is no such folder" in str(get_calibration(trained))
    finally:
        moved.rename(photos)
    for _ in range(2):  # fitted, then kept
        assert "all 6 validation images are answered right" in str(get_calibration(trained))


def test_a_run_that_streamed_its_images_knows_them_again(photos, tmp_path):
    values = {"data": {"name": str(photos), "image_size": 16}, "model": {"name": "resnet_tiny"}, "batch_size": 4}
    config = RunConfig.model_validate({**values, "budget": {"gradient_evaluations": 1}})
    run = train(config, data.load(config.data, keeping=Keeping("stream")), tmp_path / "run")
    assert load_learned(run).fingerprint == run.read("data.json")["fingerprint"]
    assert "learned from" not in str(get_calibration(open_trained(run.path, device="cpu")))


def test_a_named_set_that_is_not_there_is_not_downloaded(runs, tmp_path):
    place = runs / "resnet" / "config.toml"
    place.write_text(place.read_text().replace('name = "digits"', 'name = "cifar10"'))
    summary = json.loads((runs / "resnet" / "summary.json").read_text())
    summary.pop("config_sha256")
    (runs / "resnet" / "summary.json").write_text(json.dumps(summary))
    found = get_calibration(open_trained(runs / "resnet", device="cpu"), data_root=tmp_path)
    assert found == f"its validation images are needed, and cifar10 is not in {tmp_path}"


def test_one_that_cannot_be_kept_is_given_all_the_same(runs):
    """A name that is taken is refused to root too, who may write into a read-only folder."""
    said: list[str] = []
    (runs / "resnet" / FILE).mkdir()
    found = get_calibration(open_trained(runs / "resnet", device="cpu"), say=said.append)
    assert isinstance(found, Calibration)
    assert "could not be kept" in said[0]
    assert "not a plain file" in said[0]
    assert (runs / "resnet" / FILE).is_dir()


def test_a_run_that_is_busy_is_calibrated_but_not_written_to(runs):
    said: list[str] = []
    trained = open_trained(runs / "resnet", device="cpu")
    assert trained.run is not None
    with trained.run.lock():
        assert isinstance(get_calibration(trained, say=said.append), Calibration)
    assert "could not be kept in the run folder: another process" in said[0]
    assert not (runs / "resnet" / "calibration.json").exists()
