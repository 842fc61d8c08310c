from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from steppe.config import MinimizerConfig, ScheduleConfig
from steppe.train import lr_factor
from steppe.train.schedules import radius_factor


def torchs(scheduler, steps: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    made = scheduler(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        made.step()
    return rates


def ours(steps: int, **options) -> list[float]:
    return [lr_factor(ScheduleConfig(**options), step / steps) for step in range(steps)]


def test_agrees_with_torch():
    schedulers = torch.optim.lr_scheduler
    assert ours(60, name="cosine") == pytest.approx(torchs(lambda o: schedulers.CosineAnnealingLR(o, 60), 60))
    cosine = torchs(lambda o: schedulers.CosineAnnealingLR(o, 60, eta_min=0.1), 60)
    assert ours(60, name="cosine", final=0.1) == pytest.approx(cosine)
    for size in (7, 20, 30, 60):
        step = torchs(lambda o, size=size: schedulers.StepLR(o, size, gamma=0.3), 60)
        assert ours(60, name="step", drop_every=size / 60, gamma=0.3) == pytest.approx(step)
    linear = torchs(lambda o: schedulers.LinearLR(o, 1.0, 0.2, 60), 60)
    assert ours(60, name="linear", final=0.2) == pytest.approx(linear)
    assert ours(5, name="constant") == [1.0] * 5


def test_warm_up_rises_to_the_peak():
    rates = ours(100, name="cosine", warmup=0.1)
    assert rates[:10] == pytest.approx([i / 10 for i in range(10)])
    assert rates[10] == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True)


@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_hold_reaches_the_last_rate_early_and_keeps_it(name):
    schedule = ScheduleConfig(name=name, warmup=0.1, final=0.2, hold=0.25)
    shorter = ScheduleConfig(name=name, warmup=0.1, final=0.2)
    assert [lr_factor(schedule, share) for share in (0.75, 0.9, 1.0)] == pytest.approx([0.2] * 3)
    assert lr_factor(schedule, 0.1 + 0.65 / 2) == pytest.approx(lr_factor(shorter, 0.1 + 0.9 / 2))
    with pytest.raises(ValidationError, match="hold means nothing to 'step'"):
        ScheduleConfig(name="step", hold=0.1)


def test_radius_of_lesam_rises_and_falls_to_zero():
    shares, expected = (0.0, 0.025, 0.05, 0.5, 0.8, 0.9, 1.0, 1.01), (0.0, 0.5, 1.0, 1.0, 1.0, 0.5, 0.0, 0.0)
    lesam = MinimizerConfig(name="lesam")
    assert [radius_factor(lesam, share) for share in shares] == pytest.approx(expected)
    assert radius_factor(MinimizerConfig(name="sam"), 0.5) is None
    assert radius_factor(MinimizerConfig(name="sam", rho_final=0.5), 1.0) == pytest.approx(0.5)
