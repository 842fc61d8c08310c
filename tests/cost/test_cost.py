"""Throughput, memory, energy and price: against closed forms, and with what stands in for a GPU's own count."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

import steppe.cost.throughput as throughput
from steppe.cost import EnergyMeter, measure_peak_memory, measure_throughput, price_of, training_speed

CPU = torch.device("cpu")


class Sleeper(nn.Module):
    """A model that takes a given time for each batch size, and refuses some."""

    def __init__(self, seconds: dict[int, float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.seconds, self.calls, self.modes = seconds, [], set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append(len(x))
        self.modes.add((self.training, torch.is_inference_mode_enabled()))
        if len(x) not in self.seconds:
            raise torch.OutOfMemoryError("there is no more")
        time.sleep(self.seconds[len(x)])
        return x


def test_the_sweep_finds_the_best_batch_size_and_ends_when_memory_does():
    model = Sleeper({32: 0.05, 64: 0.05, 128: 0.111}).train()
    found = measure_throughput(model, (1, 1, 1), seconds_each=0.02)
    assert [place["batch_size"] for place in found.sweep] == [32, 64, 128]
    assert found.best_batch_size == 64
    assert found.images_per_s == max(place["images_per_s"] for place in found.sweep)
    assert 0.5 * 64 / 0.05 < found.images_per_s <= 64 / 0.05
    assert found.ended == "memory ran out at 256"
    assert model.modes == {(False, True)}
    assert model.training
    assert found.energy_j_per_image is None
    assert "cpu" in found.energy_reason


def test_a_throughput_that_falls_does_not_end_the_sweep():
    model = Sleeper({32: 0.002, 64: 0.002, 128: 0.03, 256: 0.002})
    found = measure_throughput(model, (1, 1, 1), seconds_each=0.0)
    assert [place["batch_size"] for place in found.sweep] == [32, 64, 128, 256]
    assert found.best_batch_size == 256
    assert (found.ended, found.left_out) == ("memory ran out at 512", [512, 1024, 2048, 4096, 8192])
    whole = measure_throughput(model, (1, 1, 1), seconds_each=0.0, batch_sizes=(32, 64))
    assert (whole.ended, whole.left_out) == ("every batch size was tried", [])


def test_the_sweep_keeps_to_its_time_but_measures_the_smallest():
    model = Sleeper({32: 0.05, 64: 0.1})
    found = measure_throughput(model, (1, 1, 1), seconds=0.01)
    assert [place["batch_size"] for place in found.sweep] == [32]
    assert found.ended == "the time for measuring was spent before 64"
    assert found.left_out[0] == 64


def test_the_sweep_does_not_let_the_system_kill_the_process(monkeypatch):
    monkeypatch.setattr(throughput, "_free_memory", lambda: 2 * 100 * 4 * (16 + 16))
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 16))
    found = measure_throughput(model, (1, 4, 4), seconds_each=0.0)
    assert [place["batch_size"] for place in found.sweep] == [32, 64]
    assert found.ended == "memory would run out at 128"


def test_another_error_is_not_taken_for_memory():
    with pytest.raises(RuntimeError, match="shape"):
        measure_throughput(nn.Linear(3, 2), (1, 1, 2), seconds_each=0.0)


def test_memory_of_a_forward_pass_in_bytes():
    """Two layers of width 64 over 128 rows: the weights, and two activations at a time, never three."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64))
    rows = torch.zeros(128, 64)
    weights, activation = 4 * 3 * (64 * 64 + 64), 4 * 128 * 64
    with torch.no_grad():
        peak = measure_peak_memory(lambda: model(rows), CPU, [*model.parameters(), rows])
    assert peak == weights + 3 * activation  # the rows are held, too
    kept = measure_peak_memory(lambda: model(rows), CPU, [*model.parameters(), rows])
    assert kept == weights + 4 * activation  # a backward pass would need them all


def test_memory_of_a_backward_pass_holds_the_gradients():
    model = nn.Linear(256, 256, bias=False)
    rows = torch.zeros(1, 256)
    peak = measure_peak_memory(lambda: model(rows).sum().backward(), CPU, [model.weight, rows])
    assert 2 * 256 * 256 * 4 <= peak < 2.1 * 256 * 256 * 4


def test_views_and_in_place_changes_take_no_memory():
    x = torch.zeros(1000)
    assert measure_peak_memory(lambda: x.view(10, 100).t().add_(1), CPU, x) == 4000


class Gauge:
    """A GPU of a constant 100 W, with or without a count of its own."""

    def __init__(self, counts: bool, fails_after: int | None = None) -> None:
        self.counts, self.fails_after, self.reads = counts, fails_after, 0

    def millijoules(self) -> int | None:
        return int(time.perf_counter() * 1e5) if self.counts else None

    def milliwatts(self) -> int:
        self.reads += 1
        if self.fails_after is not None and self.reads > self.fails_after:
            raise OSError("the cable is out")
        return 100_000


@pytest.mark.parametrize(("counts", "how"), [(True, "counter"), (False, "power")])
def test_energy_is_power_over_time(counts, how):
    meter = EnergyMeter(CPU, Gauge(counts))
    for _ in range(2):  # a second use begins again
        with meter:
            time.sleep(0.25)
        assert meter.energy.how == how
        assert meter.energy.joules == pytest.approx(100 * meter.energy.seconds, rel=0.05)
        assert meter.energy.seconds >= 0.25


def test_energy_that_cannot_be_read_has_a_reason():
    with EnergyMeter(CPU) as meter:
        pass
    assert (meter.energy.joules, meter.energy.how) == (None, None)
    assert "cpu" in meter.energy.reason
    with EnergyMeter(CPU, Gauge(False, fails_after=1)) as meter:
        time.sleep(0.25)
    assert meter.energy.joules is None
    assert "the cable is out" in meter.energy.reason


def test_energy_of_a_gpu_that_is_not_there_does_not_raise():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with EnergyMeter(torch.device("cuda")) as meter:
        pass
    assert meter.energy.joules is None
    assert meter.energy.reason


def record(epoch: int, steps: int, time_s: float) -> dict:
    return {"epoch": epoch, "steps": steps, "time_s": time_s}


def test_training_speed_leaves_the_first_epoch_out():
    records = [record(1, 10, 5.0), record(2, 20, 7.0), record(3, 30, 9.0), record(4, 35, 9.9)]
    found = training_speed(records, batch_size=32, compile_s=3.0)
    assert found == {"time_per_epoch_s": 2.0, "images_per_s": 160.0, "warmup_s": 3.0, "compile_s": 3.0}


def test_training_speed_of_one_epoch_and_of_none():
    assert training_speed([record(1, 10, 5.0)], 32)["images_per_s"] == 64.0
    assert training_speed([record(1, 10, 5.0)], 32)["warmup_s"] is None
    assert training_speed([], 32)["images_per_s"] is None


def test_an_unfinished_epoch_is_no_epoch():
    found = training_speed([record(1, 10, 5.0), record(2, 13, 5.9)], batch_size=32)
    assert found["time_per_epoch_s"] == 5.0


def test_price():
    assert price_of(1800, 3.0) == 1.5
    assert price_of(None, 3.0) is None
