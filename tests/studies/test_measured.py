from __future__ import annotations

import pytest
import torch

from steppe import data
from steppe.config import DataConfig, RunConfig
from steppe.evaluate.measures import MEASURES as SCORES
from steppe.geometry.measures import MEASURES
from steppe.measuring import CROSS_ENTROPY
from steppe.studies.measured import add_results
from steppe.studies.subjects import Subject
from steppe.train import build_model


def small_subject(folder):
    dataset = data.load(DataConfig())
    model = build_model(RunConfig.model_validate({"model": {"name": "mlp_8"}}), dataset).eval()
    return Subject(folder, model, dataset, CROSS_ENTROPY, torch.device("cpu"))


def test_a_cpu_takes_as_many_images_as_its_cache_holds_unless_told(tmp_path, monkeypatch):
    """At 96 px 512 at a time take three times as long as 16."""
    monkeypatch.setattr("steppe.evaluate.accuracy.CACHED_PIXELS", 40 * 8**2)
    changes = {"noise": {"noise_draws": 2, "noise_examples": 100}}
    found = []
    for asked in (None, 64):
        (tmp_path / str(asked)).mkdir()
        subject = small_subject(tmp_path / str(asked))
        noise = {"noise": MEASURES["noise"]}
        found.append(add_results(subject, "geometry.json", noise, changes, batch_size=asked)["noise_loss"])
    assert [one["how"]["batch"] for one in found] == [40, 64]
    assert found[0]["mean"] == pytest.approx(found[1]["mean"], rel=1e-5)


def test_the_precision_of_a_result_is_the_one_it_was_made_in(tmp_path):
    subject = small_subject(tmp_path)
    chosen = {name: MEASURES[name] for name in ("trace", "norms")}
    changes = {"trace": {"precision": "tf32", "parts": "whole"}}
    found = add_results(subject, "geometry.json", chosen, changes, quick=True)
    assert found["trace"]["made_on"]["precision"] == found["trace"]["how"]["precision"] == "tf32"
    assert found["norms"]["made_on"]["precision"] == "float32"
    found = add_results(subject, "robustness.json", {"scores": SCORES["scores"]})
    assert found["scores"]["made_on"]["precision"] == "float32"
