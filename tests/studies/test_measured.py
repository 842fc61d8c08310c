from __future__ import annotations

import pytest
import torch

from steppe import data
from steppe.config import DataConfig, RunConfig
from steppe.evaluate.measures import MEASURES as SCORES
from steppe.geometry.measures import MEASURES
from steppe.measuring import CROSS_ENTROPY
from steppe.studies.measured import add_results
from steppe.studies.subjects import Subject, _statistics_of
from steppe.train import build_model


@pytest.mark.parametrize(
    ("name", "weights", "mean"),
    [
        ("timm:resnet18", "timm", (0.485, 0.456, 0.406)),
        ("vit_s_p16", "timm", (0.5, 0.5, 0.5)),
        ("vit_s_p16", "timm:vit_small_patch16_224", (0.5, 0.5, 0.5)),
        ("vit_tiny_p2", "timm", None),
        ("resnet18", "timm_like_file.pth", None),
        ("resnet18", "runs/one", None),
    ],
)
def test_weights_of_timm_are_fed_as_they_were_trained(name, weights, mean):
    found = _statistics_of(name, weights, 3)
    assert (found[0] if found else None) == mean
    assert _statistics_of(name, weights, 1) is None, "grey images have no such statistics"


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
