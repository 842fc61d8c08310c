"""Energy of a training on a GPU, with what stands in for the GPU's own count."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import steppe.train.session as session
from steppe.config import RunConfig
from steppe.cost import EnergyMeter
from steppe.runs import create_run


class Counter:
    """Counts 5 J between two readings."""

    def __init__(self) -> None:
        self.count = 0

    def millijoules(self) -> int:
        self.count += 5000
        return self.count

    def milliwatts(self) -> int:
        raise AssertionError("the count is enough")


def test_energy_adds_up_over_a_resumption_and_keeps_other_costs(tmp_path, monkeypatch):
    run = create_run(tmp_path / "r", RunConfig())
    run.write("cost.json", {"parameters": 7})
    monkeypatch.setattr(session, "EnergyMeter", partial(EnergyMeter, gauge=Counter()))
    gpu = torch.device("cuda")
    with pytest.raises(KeyboardInterrupt), session._EnergyCount(run, gpu):
        raise KeyboardInterrupt
    with session._EnergyCount(run, gpu):
        pass
    found = run.read("cost.json")
    assert found["parameters"] == 7
    assert found["training_energy"]["joules"] == 10.0
    assert found["training_energy"]["how"] == "counter"


def test_what_a_kill_ended_counts_up_to_the_last_checkpoint(tmp_path, monkeypatch):
    run = create_run(tmp_path / "r", RunConfig())
    monkeypatch.setattr(session, "EnergyMeter", partial(EnergyMeter, gauge=Counter()))
    gpu = torch.device("cuda")
    killed = session._EnergyCount(run, gpu).__enter__()
    killed.saved(run)
    killed.saved(run)
    run.write("cost.json", run.read("cost.json") | {"parameters": 7})  # others write there meanwhile
    with session._EnergyCount(run, gpu) as energy:
        energy.saved(run)
    found = run.read("cost.json")
    assert found["training_energy"]["joules"] == 20.0
    assert found["parameters"] == 7


def test_without_a_count_there_is_a_reason_and_what_was_counted_stays(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    run = create_run(tmp_path / "r", RunConfig())
    run.write("cost.json", {"training_energy": {"joules": 3.0, "seconds": 1.0, "how": "power"}})
    with session._EnergyCount(run, torch.device("cuda")):
        pass
    found = run.read("cost.json")["training_energy"]
    assert found["joules"] == 3.0
    assert found["reason"]


def test_a_cpu_writes_nothing(tmp_path):
    run = create_run(tmp_path / "r", RunConfig())
    with session._EnergyCount(run, torch.device("cpu")):
        pass
    assert not (run.path / "cost.json").exists()
