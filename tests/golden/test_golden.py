"""Loss traces of tiny runs, as they were: a change that should not change numerics must leave them alone.

`STEPPE_GOLDEN=write python -m pytest tests/golden` writes them anew; on purpose only, and the commit says why.
The tolerance leaves room for another processor's rounding, not for another formula.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from steppe import data
from steppe.config import DataConfig, RunConfig
from steppe.train import train

TRACES = Path(__file__).with_name("traces.json")
KEYS = ("train_loss", "val_loss", "gradient_evaluations", "lr")
BASE = {
    "batch_size": 128,
    "model": {"name": "mixer_tiny_p2"},
    "optimizer": {"name": "sgd", "lr": 0.2},
    "schedule": {"name": "cosine", "warmup": 0.1},
    "augment": {"crop_padding": 1},
    "budget": {"epochs": 2},
}
RUNS = {
    "base": {},
    "sam": {"minimizer": {"name": "sam"}},
    "asam": {"minimizer": {"name": "asam"}},
    "adversarial": {
        "minimizer": {"name": "sam"},
        "objective": {"name": "adversarial", "epsilon": 64.0, "attack_step": 0.5},
    },
    "contrastive": {"minimizer": {"name": "sam"}, "objective": {"name": "contrastive", "pretrain": 0.5}},
}


@pytest.mark.parametrize("name", RUNS)
def test_the_trace_is_as_it_was(name, tmp_path):
    config = RunConfig.model_validate({**BASE, **RUNS[name]})
    metrics = train(config, data.load(DataConfig()), tmp_path / name, device="cpu").metrics()
    found = {key: [record[key] for record in metrics] for key in KEYS}
    known = json.loads(TRACES.read_text()) if TRACES.exists() else {}
    if os.environ.get("STEPPE_GOLDEN") == "write":
        rounded = {key: [float(f"{value:.7g}") for value in values] for key, values in found.items()}
        TRACES.write_text(json.dumps({**known, name: rounded}, indent=1) + "\n")
        return
    assert list(found) == list(known[name])
    for key, values in found.items():
        assert values == pytest.approx(known[name][key], rel=1e-4), key
