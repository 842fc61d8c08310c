"""Mixed precision: bf16 autocast, and fp16 with a gradient scaler."""

from contextlib import nullcontext

import pytest
import torch
from cases import Perceptron, TinyConvNet, images
from problems import two_calls
from torch.nn.functional import cross_entropy

from steppe.minimizers import ASAM, SAM, Batch, create
from steppe.minimizers.vectors import squared_norm

METHODS_WITH_SCALER = ["base", "sam", "asam", "looksam", "msam", "gsam", "fsam", "aesam"]


def scaled_run(method, factor, scale, steps=4, run=lambda minimizer, closure: minimizer.step(closure), **options):
    """Train with a scaler (or None); `factor(pass_number)` multiplies the loss of a pass."""
    torch.manual_seed(0)
    model = Perceptron().double()
    x = torch.randn(8, 4, dtype=torch.float64)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale) if scale is not None else None
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    minimizer = create(method, base, model, scaler=scaler, **options)
    passes = iter(range(10**6))

    def closure():
        loss = model(x).square().mean() * factor(next(passes))
        (scaler.scale(loss) if scaler is not None else loss).backward()
        return loss

    scales = []
    for _ in range(steps):
        run(minimizer, closure)
        if scaler is not None:
            scaler.update()
            scales.append(scaler.get_scale())
    return model, minimizer, scales


@pytest.mark.parametrize("method", METHODS_WITH_SCALER)
def test_the_scale_cancels(method):
    plain, _, _ = scaled_run(method, lambda number: 1.0, None)
    scaled, _, _ = scaled_run(method, lambda number: 1.0, 1024.0)
    for a, b in zip(plain.parameters(), scaled.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("method", ["sam", "asam", "looksam", "gsam", "fsam"])
@pytest.mark.parametrize("bad_pass", [0, 1])
@pytest.mark.parametrize("form", ["step", "two calls"])
def test_an_overflow_in_either_pass_skips_the_step(method, bad_pass, form):
    torch.manual_seed(0)
    start = Perceptron().double()
    run = {} if form == "step" else {"run": two_calls}
    model, minimizer, scales = scaled_run(
        method, lambda number: float("inf") if number == bad_pass else 1.0, 1024.0, steps=1, **run
    )
    for a, b in zip(start.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)  # no step, nothing perturbed
    assert scales == [512.0]
    assert minimizer.state == {}
    assert minimizer.step_count == 1


def test_training_goes_on_after_an_overflow():
    model, minimizer, scales = scaled_run("sam", lambda number: float("inf") if number == 2 else 1.0, 64.0, steps=4)
    assert scales == [64.0, 32.0, 32.0, 32.0]
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert minimizer.sharp_step_count == 3


def test_an_overflow_in_one_of_many_micro_batches_skips_the_step():
    torch.manual_seed(0)
    model = Perceptron()
    before = [p.detach().clone() for p in model.parameters()]
    x = torch.randn(8, 4)
    x[5] = float("inf")
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    minimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1), m=2, model=model, scaler=scaler)
    minimizer.step(Batch(8, lambda part: model(x[part]).square().sum(dim=1) * x[part, 0], scaler))
    scaler.update()
    assert scaler.get_scale() == 8.0
    for a, b in zip(model.parameters(), before, strict=True):
        assert torch.equal(a, b)


def test_clipping_sees_the_unscaled_gradient():
    torch.manual_seed(0)
    model, _, _ = scaled_run("sam", lambda number: 1.0, 4096.0, steps=1, clip_norm=0.01)
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    assert float(norm) == pytest.approx(0.01)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [SAM, ASAM])
def test_autocast_trains(dtype, make):
    torch.manual_seed(0)
    model = TinyConvNet()
    x, y = images(16)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, enabled=dtype == torch.float16)
    minimizer = make(torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9), model=model, scaler=scaler)

    def losses(part):
        with torch.autocast("cpu", dtype=dtype):
            return cross_entropy(model(x[part]).float(), y[part], reduction="none")

    first, last = None, None
    for _ in range(30):
        last = float(minimizer.step(Batch(16, losses, scaler)))
        first = last if first is None else first
        scaler.update()
    assert last < 0.8 * first
    assert all(p.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize("form", ["step", "two calls"])
def test_an_autocast_region_around_the_step_sees_the_moved_weights(form):
    losses = {}
    for around in (False, True):
        torch.manual_seed(0)
        model, x = Perceptron(), torch.randn(8, 4)
        minimizer = SAM(torch.optim.SGD(model.parameters(), lr=1.0), rho=2.0, model=model)
        losses[around] = []

        def closure(model=model, x=x, around=around):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=True) if not around else nullcontext():
                loss = model(x).float().square().mean()
            losses[around].append(float(loss.detach()))
            loss.backward()
            return loss

        with torch.autocast("cpu", dtype=torch.bfloat16) if around else nullcontext():
            for _ in range(2):
                minimizer.step(closure) if form == "step" else two_calls(minimizer, closure)
    assert losses[True] == losses[False]
    assert len(set(losses[True])) == 4


def test_a_step_can_be_tried_again_after_an_exception_in_the_second_pass():
    def factor(number):
        if number == 1:
            raise RuntimeError("out of memory")
        return 1.0

    torch.manual_seed(0)
    model, x = Perceptron(), torch.randn(8, 4)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    minimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1), model=model, scaler=scaler)
    passes = iter(range(100))

    def closure():
        loss = model(x).square().mean() * factor(next(passes))
        scaler.scale(loss).backward()
        return loss

    with pytest.raises(RuntimeError, match="memory"):
        minimizer.step(closure)
    (abandoned,) = minimizer.unscaling.passes
    minimizer.unscaling.begin()
    assert minimizer.unscaling.passes == [abandoned]  # alive: the scaler knows it by id, and ids are given anew
    for _ in range(3):
        minimizer.step(closure)
        scaler.update()
    assert minimizer.step_count == 3
    minimizer.unscaling.begin()
    assert minimizer.unscaling.passes == []


@pytest.mark.parametrize("count", [4, 2**15])
@pytest.mark.parametrize("scaling", ["none", "all"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tiny_gradients_move_by_the_radius(dtype, scaling, count):
    """The factor ρ/‖g‖ lies far outside of float16's range, the move itself does not."""
    weights = [torch.nn.Parameter(torch.ones(count, dtype=dtype)) for _ in range(2)]
    radius = 0.25 * (2 * count) ** 0.5
    minimizer = SAM(torch.optim.SGD(weights, lr=0.0), rho=radius, scaling=scaling)
    for weight in weights:
        weight.grad = torch.full_like(weight, 1e-6 if count == 4 else 3e-7)
    minimizer.ascend()
    moved = torch.cat([weight.detach().double() - 1.0 for weight in weights])
    assert float(moved.norm()) == pytest.approx(radius, rel=0.05)
    minimizer.abandon()


def test_low_precision_norms_add_up_in_float32():
    weights = [torch.nn.Parameter(torch.randn(1000).to(torch.bfloat16)) for _ in range(3)]
    minimizer = SAM(torch.optim.SGD(weights, lr=0.0))
    exact = float(torch.cat([weight.detach().double() for weight in weights]).square().sum())
    squared = squared_norm(minimizer.blocks, [weight.detach() for weight in weights])
    assert float(squared) == pytest.approx(exact, rel=1e-6)


def test_gradient_norm_starts_at_the_first_value_it_sees():
    _, minimizer, _ = scaled_run("aesam", lambda number: float("inf") if number == 0 else 1.0, 8.0, steps=2)
    model, _, _ = scaled_run("base", lambda number: 1.0, None, steps=1)
    squared = sum(float(p.grad.square().sum()) for p in model.parameters())
    assert minimizer.schedule.mean == pytest.approx(squared, rel=1e-6)
