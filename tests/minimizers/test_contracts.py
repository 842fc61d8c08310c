"""What every method promises, whatever its formula."""

import itertools

import numpy as np
import pytest
import torch
from cases import Perceptron, TinyConvNet, TinyTransformer, images
from problems import build, two_calls
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from steppe.minimizers import ASAM, METHODS, MSAM, SAM, Batch, Every, Last, create

RADIUS_METHODS = [name for name in METHODS if name != "base"]


def image_task(method, model=None, *, lr=0.05, dtype=torch.float32, **options):
    model = (model or TinyConvNet()).to(dtype)
    x, y = images()
    base = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    if method == "esam":
        options.setdefault("gamma", 1.0)
    minimizer = create(method, base, model, **options)
    return (
        model,
        minimizer,
        Batch(len(x), lambda part: cross_entropy(model(x[part].to(dtype)), y[part], reduction="none")),
    )


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def assert_equal(model, saved):
    for parameter, value in zip(model.parameters(), saved, strict=True):
        assert torch.equal(parameter, value)


@pytest.mark.parametrize("method", RADIUS_METHODS)
def test_radius_zero_is_the_base_optimizer(method):
    options = {"alpha": 0.0} if method == "gsam" else {}
    state = TinyConvNet().state_dict()
    results = []
    for name, extra in (("base", {}), (method, {"rho": 0.0, **options})):
        model = TinyConvNet()
        model.load_state_dict(state)
        model, minimizer, batch = image_task(name, model, **extra)
        losses = [minimizer.step(batch) for _ in range(6)]
        results.append((losses, weights(model)))
    assert all(torch.equal(a, b) for a, b in zip(results[0][0], results[1][0], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(results[0][1], results[1][1], strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_the_base_step_takes_any_optimizer(method):
    for make in (torch.optim.AdamW, torch.optim.Adam, torch.optim.RAdam, torch.optim.NAdam):
        model = TinyConvNet()
        x, y = images()
        options = {"gamma": 1.0} if method == "esam" else {}
        minimizer = create(method, make(model.parameters(), lr=1e-2), model, **options)
        batch = Batch(8, lambda part, model=model, x=x, y=y: cross_entropy(model(x[part]), y[part], reduction="none"))
        losses = [float(minimizer.step(batch)) for _ in range(12)]
        assert np.isfinite(losses).all()


@pytest.mark.parametrize("method", METHODS)
def test_zero_gradients_make_no_nan(method):
    model, minimizer, _ = image_task(method)
    before = weights(model)
    batch = Batch(8, lambda part: sum(p.sum() for p in model.parameters()) * torch.zeros(8)[part])
    for _ in range(6):
        minimizer.step(batch)
    assert_equal(model, before)


@pytest.mark.parametrize("method", METHODS)
def test_both_forms_agree_bit_for_bit(method):
    state = TinyConvNet(dropout=0.3).state_dict()
    results = []
    for run in (lambda m, b: m.step(b), two_calls):
        model = TinyConvNet(dropout=0.3)
        model.load_state_dict(state)
        torch.manual_seed(5)
        model, minimizer, batch = image_task(method, model, replay_rng=True)
        losses = [float(run(minimizer, batch)) for _ in range(7)]
        results.append((losses, weights(model), minimizer.gradient_evaluations, list(model.buffers())))
    assert results[0][0] == results[1][0]
    assert results[0][2] == results[1][2]
    for a, b in zip(results[0][1] + results[0][3], results[1][1] + results[1][3], strict=True):
        assert torch.equal(a, b)


class TwoBranches(nn.Module):
    """Uses a different branch on every other pass, so that gradients are None in one of the two."""

    def __init__(self):
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)
        self.passes = itertools.count()

    def forward(self, x):
        branch = self.left if next(self.passes) % 2 == 0 else self.right
        return branch(torch.tanh(self.trunk(x)))


@pytest.mark.parametrize("method", ["sam", "asam", "gsam", "fsam", "looksam"])
def test_a_gradient_that_is_none_in_one_pass(method):
    model = TwoBranches().double()
    before = weights(model)
    options = {"k": 1} if method == "looksam" else {}
    minimizer = create(method, torch.optim.SGD(model.parameters(), lr=0.1), model, **options)
    x = torch.randn(8, 4, dtype=torch.float64)

    def closure():
        loss = model(x).square().mean()
        loss.backward()
        return loss

    minimizer.step(closure)
    named = dict(zip([name for name, _ in model.named_parameters()], before, strict=True))
    assert torch.equal(model.left.weight, named["left.weight"])  # perturbed, no second gradient: back where it was
    assert torch.equal(model.left.bias, named["left.bias"])
    moved = named["right.weight"] - 0.1 * model.right.weight.grad
    assert torch.allclose(model.right.weight, moved, rtol=1e-14)  # never perturbed, stepped with its second gradient
    assert not torch.equal(model.trunk.weight, named["trunk.weight"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("method", ["sam", "asam", "msam"])
def test_restoring_is_exact_after_a_thousand_steps(dtype, method):
    model = Perceptron().to(dtype)
    minimizer = create(method, torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9), model, rho=0.5)
    x = torch.randn(8, 4, dtype=dtype)
    before, pointers = weights(model), [p.data_ptr() for p in model.parameters()]
    moved = []

    def closure():
        moved.append(not torch.equal(model.hidden.weight, before[0]))
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(1000):
        minimizer.step(closure)
    assert_equal(model, before)
    assert pointers == [p.data_ptr() for p in model.parameters()]
    assert sum(moved) >= 999  # it did look elsewhere


@pytest.mark.parametrize("method", RADIUS_METHODS)
def test_an_exception_in_the_closure_leaves_nothing_behind(method):
    model, minimizer, batch = image_task(method, **({"start": -9.0} if method == "aesam" else {}))
    for _ in range(5):
        minimizer.step(batch)
    before, buffers = weights(model), [b.clone() for b in model.buffers()]
    counters = minimizer.step_count, minimizer.gradient_evaluations
    calls = itertools.count()
    fails_at = int(minimizer.needs_first_pass())

    def losses(part):
        out = cross_entropy(model(images()[0][part]), images()[1][part], reduction="none")
        if next(calls) == fails_at:
            assert not all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
            raise KeyboardInterrupt
        return out

    with pytest.raises(KeyboardInterrupt):
        minimizer.step(Batch(8, losses))
    assert_equal(model, before)
    assert counters == (minimizer.step_count, minimizer.gradient_evaluations)
    if fails_at:  # the first pass had moved the statistics, once
        assert int(model.norm.num_batches_tracked) == int(buffers[2]) + 1
    minimizer.step(batch)
    assert minimizer.step_count == counters[0] + 1


@pytest.mark.parametrize("make", [SAM, ASAM])
@pytest.mark.parametrize("form", ["step", "two calls"])
def test_accumulation_equals_the_large_batch(make, form):
    x, y = images(12)
    results = []
    for parts in ([slice(0, 12)], [slice(0, 3), slice(3, 9), slice(9, 12)]):
        torch.manual_seed(1)
        model = TinyTransformer().double()
        minimizer = make(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model=model)

        def closure(model=model, parts=parts):
            total = torch.zeros(())
            for part in parts:
                share = (part.stop - part.start) / 12
                loss = cross_entropy(model(x[part].double()), y[part]) * share
                loss.backward()
                total = total + loss.detach()
            return total

        for _ in range(5):
            minimizer.step(closure) if form == "step" else two_calls(minimizer, closure)
        results.append(weights(model))
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("method", METHODS)
def test_batchnorm_statistics_move_once_a_step(method):
    model, minimizer, batch = image_task(method, lr=0.0)
    twin = TinyConvNet()
    twin.load_state_dict(model.state_dict())
    for step in range(1, 4):
        minimizer.step(batch)
        if method != "msam":  # its only pass runs elsewhere
            twin(images()[0])
            assert torch.allclose(model.norm.running_mean, twin.norm.running_mean)
            assert torch.allclose(model.norm.running_var, twin.norm.running_var)
        assert int(model.norm.num_batches_tracked) == step
    assert model.norm.momentum == 0.1


@pytest.mark.parametrize("replay", [True, False])
def test_replay_rng_draws_the_same_mask_in_both_passes(replay):
    model, minimizer, batch = image_task("sam", TinyConvNet(dropout=0.5), replay_rng=replay)
    masks = []
    model.dropout.register_forward_hook(lambda module, inputs, output: masks.append(output == 0))
    for _ in range(4):
        minimizer.step(batch)
    pairs = [torch.equal(a, b) for a, b in zip(masks[::2], masks[1::2], strict=True)]
    assert all(pairs) if replay else not any(pairs)
    assert not torch.equal(masks[0], masks[2])


@pytest.mark.parametrize("method", ["sam", "gsam", "msam"])
def test_clipping_acts_on_the_final_gradient_only(method):
    _, model, minimizer, batch = build("mlp", method, rho=0.3, clip_norm=1e-3, lr=1.0)
    _, free, unclipped, free_batch = build("mlp", method, rho=0.3, lr=1.0)
    loss, other = minimizer.step(batch), unclipped.step(free_batch)
    assert torch.equal(loss, other)
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    whole = torch.cat([p.grad.flatten() for p in free.parameters()])
    assert float(gradient.norm()) == pytest.approx(1e-3)
    assert torch.allclose(gradient / gradient.norm(), whole / whole.norm(), rtol=1e-9)  # the ascent was not clipped


def test_clipping_leaves_a_small_gradient_alone():
    _, model, minimizer, batch = build("mlp", "sam", clip_norm=1e6)
    _, free, unclipped, free_batch = build("mlp", "sam")
    minimizer.step(batch), unclipped.step(free_batch)
    assert_equal(model, weights(free))


def test_unperturbed_shows_the_clean_weights_between_the_calls():
    for make in (SAM, MSAM):
        _, model, _, batch = build("mlp", "base")
        minimizer = make(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        minimizer.step(batch)
        clean = weights(model)
        with minimizer.unperturbed():
            assert_equal(model, clean)
        if minimizer.needs_first_pass():
            minimizer.zero_grad()
            batch()
        assert minimizer.ascend()
        moved = weights(model)
        assert not torch.equal(moved[0], clean[0])
        with minimizer.unperturbed():
            assert_equal(model, clean)
        assert_equal(model, moved)
        minimizer.abandon()
        assert_equal(model, clean)


@pytest.mark.parametrize("on", ["minimizer", "base"])
@pytest.mark.parametrize("form", ["step", "two calls"])
def test_learning_rate_schedulers_work_on_it(on, form):
    _, _, minimizer, batch = build("mlp", "sam", lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(minimizer.base if on == "base" else minimizer, 1, 0.5)
    for _ in range(3):
        minimizer.step(batch) if form == "step" else two_calls(minimizer, batch)
        scheduler.step()
    assert minimizer.param_groups is minimizer.base.param_groups
    assert minimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 8)


def test_the_radius_is_scheduled_in_the_groups():
    for rho in (0.7, torch.tensor(0.7, dtype=torch.float64)):
        _, model, minimizer, batch = build("mlp", "sam", rho=0.1, lr=0.0)
        minimizer.param_groups[0]["rho"] = rho
        clean = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
        minimizer.zero_grad()
        batch()
        minimizer.ascend()
        moved = torch.cat([p.detach().flatten() for p in model.parameters()])
        assert float((moved - clean).norm()) == pytest.approx(0.7)
        minimizer.abandon()


def test_gsam_radius_never_falls_below_zero():
    _, _, minimizer, batch = build("mlp", "gsam", rho=0.3, rho_min=-0.2, lr_max=1.0, lr=0.1)
    minimizer.step(batch)
    assert minimizer.param_groups[0]["rho"] == 0.0
    minimizer.param_groups[0]["lr"] = torch.tensor(0.7)
    minimizer.step(batch)
    assert float(minimizer.param_groups[0]["rho"]) == pytest.approx(-0.2 + 0.5 * 0.7)


@pytest.mark.parametrize(("schedule", "sharp"), [(Every(3), 4), (Last(0.2, 10), 2), (lambda step: step < 7, 7)])
def test_schedules_say_which_steps_are_sharp(schedule, sharp):
    _, _, minimizer, batch = build("mlp", "sam", schedule=schedule)
    for _ in range(10):
        minimizer.step(batch)
    assert minimizer.sharp_step_count == sharp
    assert minimizer.gradient_evaluations == 10 + sharp


class Recorder(TorchDispatchMode):
    """Notes every operation that reaches the dispatcher."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("decay", [False, True])
@pytest.mark.parametrize("method", [name for name in METHODS if name != "aesam"])
def test_a_step_neither_reads_the_device_nor_loops_over_tensors(method, decay):
    if decay and method == "msam":
        pytest.skip("msam takes no first gradient that could decay")
    counts = []
    for depth in (3, 9):
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(depth)), nn.LayerNorm(4))
        base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1, foreach=True)
        options = {"rho": torch.tensor(0.1), "clip_norm": torch.tensor(1.0), "ascent_weight_decay": decay}
        minimizer = create(method, base, model, **options)

        def gradients(model=model):
            for p in model.parameters():
                p.grad = torch.ones_like(p)

        for _ in range(2):  # momentum and averages exist from here on
            gradients(), minimizer.ascend(), gradients(), minimizer.descend()
        gradients()
        with Recorder() as recorder:
            sharp = minimizer.ascend()
        if sharp:
            gradients()
        with recorder:
            minimizer.descend()
        free = [name for name in recorder.names if "detach" not in name]
        counts.append(len(free))
        host = [name for name in free if "_local_scalar_dense" in name or "is_nonzero" in name]
        assert not host
    assert counts[0] == counts[1]
