from __future__ import annotations

import torch

from steppe import data
from steppe.config import DataConfig, RunConfig
from steppe.evaluate.measures import MEASURES as SCORES
from steppe.geometry.measures import MEASURES
from steppe.measuring import CROSS_ENTROPY
from steppe.studies.measured import add_results
from steppe.studies.subjects import Subject
from steppe.train import build_model


def test_the_precision_of_a_result_is_the_one_it_was_made_in(tmp_path):
    dataset = data.load(DataConfig())
    model = build_model(RunConfig.model_validate({"model": {"name": "mlp_8"}}), dataset).eval()
    subject = Subject(tmp_path, model, dataset, CROSS_ENTROPY, torch.device("cpu"))
    chosen = {name: MEASURES[name] for name in ("trace", "norms")}
    changes = {"trace": {"precision": "tf32", "parts": "whole"}}
    found = add_results(subject, "geometry.json", chosen, changes, quick=True)
    assert found["trace"]["made_on"]["precision"] == found["trace"]["how"]["precision"] == "tf32"
    assert found["norms"]["made_on"]["precision"] == "float32"
    found = add_results(subject, "robustness.json", {"scores": SCORES["scores"]})
    assert found["scores"]["made_on"]["precision"] == "float32"
