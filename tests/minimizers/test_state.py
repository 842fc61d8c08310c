"""Saving in mid-training and going on gives the same bits."""

import copy
import io
import pickle

import pytest
import torch
from cases import Perceptron
from problems import build
from torch import Tensor

from steppe.minimizers import METHODS, create

PLAIN = (dict, list, tuple, str, int, float, bool, type(None), Tensor)


def assert_plain(value):
    assert type(value) in PLAIN, type(value)
    if isinstance(value, dict):
        for key, inner in value.items():
            assert isinstance(key, str | int)
            assert_plain(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            assert_plain(inner)


def round_trip(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("at", [3, 5])
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_training_goes_on_bit_for_bit(method, at, optimizer):
    def start():
        options = {"perturb": "all"} if method == "samon" else {}
        _, model, minimizer, batch = build("mlp", method, **options)
        if optimizer == "AdamW":
            minimizer = create(method, torch.optim.AdamW(model.parameters(), lr=0.01), model, **options)
        torch.optim.lr_scheduler.ExponentialLR(minimizer, 0.9)
        return model, minimizer, batch

    torch.manual_seed(0)
    model, minimizer, batch = start()
    for _ in range(at):
        minimizer.step(batch)
        minimizer.param_groups[0]["lr"] *= 0.9
        minimizer.param_groups[0]["rho"] *= 1.1
    saved = round_trip({"model": model.state_dict(), "minimizer": minimizer.state_dict()})
    assert_plain(minimizer.state_dict())
    rng = torch.get_rng_state()
    expected = [minimizer.step(batch) for _ in range(7)]

    other_model, other, other_batch = start()
    other_model.load_state_dict(saved["model"])
    other.load_state_dict(saved["minimizer"])
    torch.set_rng_state(rng)
    assert [float(loss) for loss in expected] == [float(other.step(other_batch)) for _ in range(7)]
    for a, b in zip(model.parameters(), other_model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert other.gradient_evaluations == minimizer.gradient_evaluations
    assert other.step_count == minimizer.step_count == at + 7
    assert other.sharp_step_count == minimizer.sharp_step_count


def test_loading_keeps_the_tensors_that_a_capture_holds():
    _, _, minimizer, batch = build("mlp", "looksam", rho=torch.tensor(0.1))
    for _ in range(3):
        minimizer.step(batch)
    saved = round_trip(minimizer.state_dict())
    state = next(iter(minimizer.state.values()))
    held = [state["momentum_buffer"], minimizer.averages["bend"][0], minimizer.param_groups[0]["rho"]]
    values = [tensor.clone() for tensor in held]
    minimizer.step(batch)
    held[2].fill_(0.7)
    minimizer.load_state_dict(saved)
    state = next(iter(minimizer.state.values()))
    now = [state["momentum_buffer"], minimizer.averages["bend"][0], minimizer.param_groups[0]["rho"]]
    for before, after, value in zip(held, now, values, strict=True):
        assert before is after
        assert torch.equal(after, value)


def test_a_state_without_the_base_optimizer_is_refused():
    _, model, minimizer, _ = build("mlp", "sam")

    class OldSAM(torch.optim.Optimizer):
        """Saves like davda54/sam: its own groups and perturbations, nothing of the base optimizer."""

        def __init__(self, params):
            super().__init__(params, {"rho": 0.05, "adaptive": False})

    with pytest.raises(ValueError, match=r"davda54.*base optimizer's momentum"):
        minimizer.load_state_dict(OldSAM(model.parameters()).state_dict())
    with pytest.raises(ValueError, match="not a minimizer state"):
        minimizer.load_state_dict({"something": 1})
    _, _, other, _ = build("mlp", "asam")
    with pytest.raises(ValueError, match="belongs to the method 'asam', not to 'sam'"):
        minimizer.load_state_dict(other.state_dict())


def test_a_plain_optimizer_state_can_be_loaded_into_the_base():
    _, model, minimizer, batch = build("mlp", "sam")
    plain = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    batch()
    plain.step()
    minimizer.base.load_state_dict(plain.state_dict())
    minimizer.step(batch)
    assert minimizer.param_groups[0]["lr"] == 0.3
    assert minimizer.param_groups[0]["rho"] == 0.05


def pickled(minimizer):
    return pickle.loads(pickle.dumps(minimizer))


@pytest.mark.parametrize("how", [copy.deepcopy, pickled])
@pytest.mark.parametrize("scheduled", ["nothing", "minimizer", "base"])
@pytest.mark.parametrize("method", METHODS)
def test_copies_step_themselves(method, scheduled, how):
    torch.manual_seed(0)
    model, x = Perceptron(), torch.randn(8, 4)
    options = {"perturb": "all"} if method == "samon" else {"gamma": 1.0} if method == "esam" else {}
    minimizer = create(method, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model, **options)
    if scheduled != "nothing":
        torch.optim.lr_scheduler.StepLR(minimizer if scheduled == "minimizer" else minimizer.base, 1)

    def closure(model):
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        minimizer.step(lambda: closure(model))
    twin = how(minimizer)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    losses = [float(twin.step(lambda: closure(twin.model))) for _ in range(4)]
    assert type(twin) is type(minimizer)
    assert (minimizer.step_count, twin.step_count) == (3, 7)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    assert [float(minimizer.step(lambda: closure(model))) for _ in range(4)] == losses
    for a, b, old in zip(model.parameters(), twin.model.parameters(), before, strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, old)


def test_loading_after_a_crash_between_the_calls_keeps_the_loaded_weights():
    _, model, minimizer, batch = build("mlp", "sam")
    minimizer.step(batch)
    saved = copy.deepcopy((model.state_dict(), minimizer.state_dict()))
    minimizer.step(batch)
    batch()
    minimizer.ascend()
    with pytest.raises(RuntimeError, match="between ascend"):
        copy.deepcopy(minimizer)
    model.load_state_dict(saved[0])
    minimizer.load_state_dict(saved[1])
    for _ in range(2):
        for name, value in saved[0].items():
            assert torch.equal(model.state_dict()[name], value)
        minimizer.abandon()
    minimizer.step(batch)


def test_an_average_of_another_shape_is_refused():
    _, model, minimizer, batch = build("mlp", "fsam")
    minimizer.step(batch)
    parameters = list(model.parameters())
    other = create("fsam", torch.optim.SGD([*parameters[1:], parameters[0]], lr=0.1, momentum=0.9), model)
    with pytest.raises(ValueError, match="another shape"):
        other.load_state_dict(minimizer.state_dict())
