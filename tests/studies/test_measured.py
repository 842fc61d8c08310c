from __future__ import annotations

import pytest

from steppe.studies.subjects import _statistics_of


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
