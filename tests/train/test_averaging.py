from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from training import KillAt, make_config, story, train_whole_and_resumed, weights

from steppe.config import RunConfig
from steppe.train import train
from steppe.train.averaging import EqualAverage, Lookahead, MovingAverage, WeightAverage

POLICIES = {
    "ema": {"ema": 0.9},
    "swa": {"swa": 0.75},
    "lookahead": {"lookahead": 0.5, "lookahead_every": 3},
    "ramped lookahead": {"lookahead": 0.25, "lookahead_every": 2, "lookahead_ramp": True},
}


@pytest.mark.parametrize("keys", POLICIES.values(), ids=POLICIES)
def test_average_is_kept_and_resumed_exactly(digits, tmp_path, keys):
    config = make_config(**keys, minimizer={"name": "base"}, budget={"epochs": 2})
    whole, resumed = train_whole_and_resumed(config, digits, tmp_path, KillAt(8, 5))
    plain = make_config(minimizer={"name": "base"}, budget={"epochs": 2})
    assert weights(whole) != weights(train(plain, digits, tmp_path / "plain"))
    assert weights(resumed) == weights(whole)
    assert story(resumed) == story(whole)


def make_average(policy):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1, bias=False).double()
    return model, WeightAverage(model, policy)


def averaged(model, average):
    with average.in_place():
        return model.weight.detach().clone()


def test_moving_average_follows_its_formula():
    model, average = make_average(MovingAverage(0.5))
    expected = model.weight.detach().clone()
    for step in range(1, 30):
        torch.nn.init.normal_(model.weight)
        average.after_step(step / 30)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * model.weight.detach()
    own = model.weight.detach().clone()
    torch.testing.assert_close(averaged(model, average), expected)
    assert torch.equal(model.weight, own)


def test_equal_average_is_the_mean_of_the_last_epochs():
    model, average = make_average(EqualAverage(0.25))
    seen = []
    for epoch in range(1, 21):
        torch.nn.init.normal_(model.weight)
        seen.append(model.weight.detach().clone())
        average.after_step(epoch / 20)
        average.after_epoch(epoch / 20)
        expected = torch.stack(seen[15:]).mean(0) if epoch > 15 else seen[-1]
        torch.testing.assert_close(averaged(model, average), expected)
    assert average.taken == 5


@pytest.mark.parametrize("ramp", [False, True])
def test_lookahead_moves_the_slow_weights_and_training_goes_on_there(ramp):
    model, average = make_average(Lookahead(0.25, every=5, ramp=ramp))
    slow = model.weight.detach().clone()
    for step in range(1, 21):
        with torch.no_grad():
            model.weight.add_(torch.randn_like(model.weight))
        fast = model.weight.detach().clone()
        average.after_step(step / 20)
        if step % 5 == 0:
            reach = 1 - 0.75 * (step / 20) ** 3 if ramp else 0.25
            slow = slow + reach * (fast - slow)
        torch.testing.assert_close(model.weight.detach(), slow if step % 5 == 0 else fast)
    torch.testing.assert_close(averaged(model, average), slow)


def test_averages_exclude_one_another():
    with pytest.raises(ValidationError, match="one average of its weights, but ema and swa are given"):
        RunConfig(ema=0.9, swa=0.25)
    with pytest.raises(ValidationError, match="mean nothing without lookahead"):
        RunConfig(lookahead_every=5)


def test_state_of_another_policy_is_loaded_with_its_count():
    model, average = make_average(EqualAverage(1 / 2))
    for epoch in (1, 2):
        torch.nn.init.normal_(model.weight)
        average.after_epoch(epoch / 2)
    again = WeightAverage(model, EqualAverage(1 / 2))
    again.load_state_dict(average.state_dict())
    assert again.taken == average.taken == 1
    assert torch.equal(averaged(model, again), averaged(model, average))
