"""A run on another machine relies on this: every state that is reported as saved can be resumed from."""

from __future__ import annotations

import shutil

from steppe.config import MeasureConfig, RunConfig
from steppe.runs import Observer, Run
from steppe.studies import execute


def test_every_saved_state_can_be_resumed_from(tmp_path):
    values = {"batch_size": 256, "model": {"name": "resnet_tiny"}, "budget": {"epochs": 2}}
    config = RunConfig.model_validate({**values, "minimizer": {"name": "sam"}})
    measure = MeasureConfig(noise_draws=2, geometry={"norms": {}})
    copies = []

    class Copier(Observer):
        def saved(self, run: Run) -> None:
            copies.append(tmp_path / str(len(copies)) / run.id)
            shutil.copytree(run.path, copies[-1])

    full = execute(config, tmp_path / "full", measure=measure, device="cpu", observer=Copier())
    states = [Run(copy).read("summary.json").get("status") for copy in copies]
    assert states[:3] == [None, None, "finished"], "after every epoch, and after training"
    assert set(states[3:]) == {"finished"}, "and with the measures"
    assert len(states) > 3
    for copy in copies:
        run = execute(config, copy, measure=measure, device="cpu")
        assert run.weights.read_bytes() == full.weights.read_bytes()
        assert (copy / "geometry.json").read_bytes() == (full.path / "geometry.json").read_bytes()
        assert len((copy / "metrics.jsonl").read_text().splitlines()) == 2, "nothing was made again"
