"""Muon against torch's own on matrices, against its definition on convolutions, and under every other minimizer."""

import copy

import pytest
import torch
from cases import TinyConvNet, TinyTransformer, images
from torch.nn.functional import cross_entropy

from steppe.minimizers import SAM, CapturedStep, Muon, create
from steppe.minimizers.muon import orthogonalise

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))]


def groups_of(model, **rest):
    hidden = [p for p in model.parameters() if p.ndim > 1]
    return [{"params": hidden}, {"params": [p for p in model.parameters() if p.ndim < 2], "orthogonal": False, **rest}]


def step_on(minimizer, model, batch):
    x, y = batch

    def closure():
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    return minimizer.step(closure)


@pytest.mark.parametrize("shape", [(2, 6, 10), (1, 10, 6)])
def test_orthogonalise_brings_singular_values_near_one(shape):
    matrices = torch.randn(shape, dtype=torch.float64)
    found = orthogonalise(matrices, 10)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.6
    assert values.max() < 1.3
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    assert torch.nn.functional.cosine_similarity((u @ v).flatten(1), found.flatten(1)).min() > 0.97


def test_step_equals_torchs_muon_on_matrices():
    torch.manual_seed(1)
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in ((8, 4), (4, 8), (8, 4))]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    settings = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1}
    optimizers = Muon(ours, **settings), torch.optim.Muon(theirs, **settings, adjust_lr_fn="match_rms_adamw")
    for _ in range(5):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, atol=2e-3)  # torch's iterates in bfloat16


def test_convolution_steps_as_matrix_of_its_outputs():
    kernel = torch.nn.Parameter(torch.randn(4, 3, 2, 2))
    matrix = torch.nn.Parameter(kernel.detach().flatten(1))
    kernel.grad = torch.randn_like(kernel)
    matrix.grad = kernel.grad.flatten(1)
    for parameter in (kernel, matrix):
        Muon([parameter], lr=0.1).step()
    assert torch.allclose(kernel.flatten(1), matrix, atol=1e-6)


def test_held_norm_is_root_of_rows_before_each_step():
    weight = torch.nn.Parameter(7 * torch.randn(9, 5))
    optimizer = Muon([weight], lr=1e-6, hold_norm=True, weight_decay=0.5)
    weight.grad = torch.randn_like(weight)
    optimizer.step()
    assert weight.norm().item() == pytest.approx(3.0, rel=1e-4)


@pytest.mark.parametrize("rest", ["adamw", "sgd"])
def test_rest_steps_as_torchs_optimizer(rest):
    torch.manual_seed(2)
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in ((3,), (2, 2))]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    mine = Muon([{"params": ours, "orthogonal": False}], lr=0.05, momentum=0.8, rest=rest, weight_decay=0.0)
    other = (
        torch.optim.AdamW(theirs, lr=0.05, weight_decay=0.0)
        if rest == "adamw"
        else torch.optim.SGD(theirs, lr=0.05, momentum=0.8, nesterov=True)
    )
    for _ in range(6):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        mine.step()
        other.step()
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)


def test_vector_among_matrices_is_refused():
    with pytest.raises(ValueError, match="orthogonal=False"):
        Muon([torch.nn.Parameter(torch.zeros(3))])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", ["base", "sam", "asam", "looksam", "msam"])
@pytest.mark.parametrize("make", [TinyConvNet, TinyTransformer])
def test_captured_step_equals_eager_step(device, method, make):
    torch.manual_seed(0)
    kind = torch.float64 if device == "cpu" else torch.float32
    models = [make().to(device, kind)]
    models.append(copy.deepcopy(models[0]))
    options = {"looksam": {"k": 2}, "msam": {"rho": 0.3}}.get(method, {})
    bases = [Muon(groups_of(m, lr=0.01), lr=0.01, weight_decay=0.01) for m in models]
    minimizers = [create(method, base, m, **options) for base, m in zip(bases, models, strict=True)]
    data = [(x.to(device, kind), y.to(device)) for x, y in (images(8, seed=seed) for seed in range(5))]

    def loss_of(model, x, y):
        return cross_entropy(model(x), y)

    step = CapturedStep(minimizers[0], models[0], loss_of, data[0], autocast=None, compiled=False)
    for number, batch in enumerate(data):
        for minimizer in minimizers:
            for group in minimizer.param_groups:
                group["lr"] = 0.01 / (1 + number)
        losses = step(*batch), step_on(minimizers[1], models[1], batch)
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-3)
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-2, atol=3e-3 if device == "cuda" else 1e-5)


def test_state_goes_on_after_loading():
    models = [TinyConvNet()]
    models.append(copy.deepcopy(models[0]))
    data = [images(8, seed=seed) for seed in range(6)]
    straight, stopped = (SAM(Muon(groups_of(m), lr=0.02), rho=0.05, model=m) for m in models)
    for batch in data:
        step_on(straight, models[0], batch)
    for batch in data[:3]:
        step_on(stopped, models[1], batch)
    resumed = SAM(Muon(groups_of(models[1]), lr=0.02), rho=0.05, model=models[1])
    resumed.load_state_dict(copy.deepcopy(stopped.state_dict()))
    for batch in data[3:]:
        step_on(resumed, models[1], batch)
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(a, b)
