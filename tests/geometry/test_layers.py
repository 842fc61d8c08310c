from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import torch
import torch.nn.functional as F
from oracle import known_hessian, make
from torch import nn

from steppe.config import ModelConfig
from steppe.geometry.layers import HandWritten
from steppe.geometry.products import Hessian
from steppe.models import build


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)


def attend(*tensors, **options):
    return F.scaled_dot_product_attention(*tensors, **options)


def norm(shape):
    return lambda x, *others: F.layer_norm(x, shape, *others, eps=1e-3)


def masked(q, k, v):
    allowed = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return attend(q, k, v, attn_mask=allowed)


Q, K, V = (2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 7)
CASES = {
    "conv1d": (
        lambda *t: F.conv1d(*t, stride=2, padding=1, groups=2),
        [(2, 4, 9), (6, 2, 3), (6,)],
    ),
    "conv2d": (
        lambda *t: F.conv2d(*t, stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
        [(2, 3, 7, 6), (4, 3, 3, 2), (4,)],
    ),
    "conv2d-depthwise": (lambda *t: F.conv2d(*t, padding=1, groups=4), [(3, 4, 5, 5), (4, 1, 3, 3)]),
    "conv3d": (F.conv3d, [(1, 2, 4, 4, 5), (3, 2, 2, 2, 2), (3,)]),
    "linear": (F.linear, [(2, 5, 4), (3, 4), (3,)]),
    "linear-without-bias": (F.linear, [(5, 4), (3, 4)]),
    "gelu": (F.gelu, [(4, 5)]),
    "layer-norm": (norm((5,)), [(2, 3, 5), (5,), (5,)]),
    "layer-norm-of-two": (norm((3, 4)), [(6, 3, 4), (3, 4), (3, 4)]),
    "layer-norm-without-bias": (norm((5,)), [(2, 3, 5), (5,)]),
    "layer-norm-bare": (norm((5,)), [(2, 3, 5)]),
    "attention": (attend, [Q, K, V]),
    "attention-scaled": (lambda *t: attend(*t, scale=0.3), [Q, K, V]),
    "attention-biased": (lambda q, k, v, b: attend(q, k, v, attn_mask=b), [Q, K, V, (3, 5, 6)]),
    "attention-masked": (masked, [(2, 3, 6, 4), K, V]),
}


def norm_in_pieces(x, *others):
    last = (-2, -1) if x.ndim == 3 and others and others[0].ndim == 2 else (-1,)
    var, mean = torch.var_mean(x, last, correction=0, keepdim=True)
    unit = (x - mean) / (var + 1e-3).sqrt()
    for other, operation in zip(others, (torch.mul, torch.add), strict=False):
        unit = operation(unit, other)
    return unit


IN_PIECES = {case: norm_in_pieces for case in CASES if case.startswith("layer-norm")}


def differentiate(function, inputs, mode, given=None):
    """The value, its gradient and the gradient of that, along drawn vectors; those not `given` are left out."""
    with mode:
        out = function(*inputs)
        along = draw(*out.shape, seed=1)
        first = torch.autograd.grad(out, inputs, along, create_graph=True)
    given = range(len(inputs)) if given is None else given
    vectors = [draw(*inputs[i].shape, seed=2) for i in given]
    second = torch.autograd.grad([first[i] for i in given], [*inputs, along], vectors, allow_unused=True)
    return [out, *first, *second]


@pytest.mark.parametrize("case", CASES)
def test_both_derivatives_are_those_of_torch(case):
    function, shapes = CASES[case]
    inputs = [draw(*shape) for shape in shapes]
    for given in (None, *([i] for i in range(len(shapes)))):
        by_hand = differentiate(function, inputs, HandWritten(), given)
        by_torch = differentiate(function, inputs, torch.enable_grad(), given)
        assert "_Value" in str(by_hand[0].grad_fn)
        assert "_Value" not in str(by_torch[0].grad_fn)
        for ours, theirs in zip(by_hand, by_torch, strict=True):
            if ours is None or theirs is None:  # torch has zeros where we have nothing, and the other way round
                present = ours if theirs is None else theirs
                assert present is None or not present.any()
            else:
                torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("case", CASES)
def test_third_derivatives_are_right(case):
    """No figure needs them; they must not be wrong without a word, as those of torch's own LayerNorm are."""
    function, shapes = CASES[case]
    inputs = [draw(*shape) for shape in shapes]
    found = []
    for same, mode in ((function, HandWritten()), (IN_PIECES.get(case, function), torch.enable_grad())):
        with mode:
            first = torch.autograd.grad(same(*inputs).pow(3).sum(), inputs, create_graph=True)
            second = torch.autograd.grad(sum(g.pow(2).sum() for g in first), inputs, create_graph=True)
        found.append(torch.autograd.grad(sum(g.pow(2).sum() for g in second), inputs))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_part_of_the_gradients_is_made_where_a_part_is_wanted():
    x, weight = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3, requires_grad=True)
    with HandWritten():
        out = F.conv2d(x, weight)
    (first,) = torch.autograd.grad(out.square().sum(), weight, create_graph=True)
    (ours,) = torch.autograd.grad(first.sum(), weight)
    (first,) = torch.autograd.grad(F.conv2d(x, weight).square().sum(), weight, create_graph=True)
    torch.testing.assert_close(ours, torch.autograd.grad(first.sum(), weight)[0])
    assert x.grad is None


def test_what_it_does_not_know_is_left_to_torch():
    weight, q = torch.randn(4, 3, 3, 3, requires_grad=True), torch.randn(2, 3, 5, 4, requires_grad=True)
    with HandWritten():
        left = [
            F.conv2d(torch.randn(1, 3, 5, 5), weight, padding="same"),
            F.conv2d(torch.randn(3, 5, 5), weight),
            F.gelu(q, approximate="tanh"),
            attend(q, q, q, is_causal=True),
            attend(q, q, q, dropout_p=0.5),
            F.linear(torch.randn(4), q[0, 0]),
        ]
        assert not any("_Value" in str(out.grad_fn) for out in left)
        assert F.conv_transpose2d(torch.randn(1, 4, 5, 5), weight).shape == (1, 3, 7, 7)
        assert nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular")(torch.randn(1, 3, 5, 5)).shape == (1, 4, 5, 5)


class Perceptron(nn.Module):
    """As in a transformer: LayerNorm, widening, GELU, narrowing."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.widen, self.narrow = nn.LayerNorm(32), nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x):
        return x + self.narrow(F.gelu(self.widen(self.norm(x))))


def test_a_graph_keeps_what_layers_are_given_and_no_more():
    torch.manual_seed(0)
    model, x = Perceptron().double(), draw(64, 10, 32)
    parameters = list(model.parameters())
    unit = x.untyped_storage().nbytes()
    found = []
    for mode in (notes := HandWritten(parameters), torch.enable_grad()):
        with mode:
            first = torch.autograd.grad(model(x).square().sum(), parameters, create_graph=True)
        found.append(torch.autograd.grad(sum(g.square().sum() for g in first), parameters))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
    # given: x 1, to GELU 4, the loss's own 1; gradients: of the value 1, of GELU's value 4, of LayerNorm's 1
    assert 12 * unit <= notes.total < 12.5 * unit


def test_a_recipe_is_not_taken_for_that_of_a_later_tensor():
    """Memory is used again: a tensor of its own must be kept even where one with a recipe lay before."""
    with (notes := HandWritten()):
        for seed in range(50):
            x = draw(16, 16, seed=seed)
            F.gelu(x)  # dropped at once
            y = draw(16, 16, seed=seed + 1).detach()
            out = x * y
            (found,) = torch.autograd.grad(out.sum(), x)
            torch.testing.assert_close(found, y)
    assert notes.total > 0


@pytest.fixture
def by_hand(monkeypatch):
    """As on a GPU."""
    monkeypatch.setattr(Hessian, "_by_hand", lambda self, images: True)


def live_bytes():
    """What all tensors hold that anybody knows of, each storage once."""
    held = {}
    for x in gc.get_objects():
        if type(x) in (torch.Tensor, nn.Parameter):
            with suppress(RuntimeError):  # a fake one, left by the compiler of another test
                held[x.data_ptr()] = x.untyped_storage()
    return sum({storage.data_ptr(): storage.nbytes() for storage in held.values()}.values())


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("written", ["by hand", "by torch"])
def test_products_leave_no_memory_behind(monkeypatch, written, keep):
    """A leak is a gradient's graph with every product, or one for ever: on a GPU that is gigabytes."""
    monkeypatch.setattr(Hessian, "_by_hand", lambda self, images: written == "by hand")
    model, batches = make("vit")
    gc.collect()
    gc.disable()  # a cycle that waits for Python's own collector has filled a GPU before that comes
    try:
        before = live_bytes()
        with Hessian(model, batches, keep=keep) as hessian:
            row = torch.ones(hessian.size(), dtype=torch.float64)
            held = []
            for _ in range(3):
                hessian.multiply(row)
                held.append(live_bytes())
        assert held[1] == held[2]
        del row
        assert live_bytes() == before
    finally:
        gc.enable()


def products(name, every):
    model, batches = make(name)
    with Hessian(model, batches) as hessian:
        rows = torch.eye(hessian.size(), dtype=torch.float64)[::every]
        return torch.stack([hessian.multiply(row) for row in rows])


@pytest.mark.parametrize("name", ["resnet", "vit", "transformer"])
def test_the_hessian_is_the_same(by_hand, name):
    torch.testing.assert_close(products(name, 7), known_hessian(name)[::7], rtol=1e-5, atol=1e-6)


def test_the_hessian_of_a_swin_is_the_same(monkeypatch):
    """Its attention has a bias that is learned and, in every second block, a mask."""
    torch.manual_seed(0)
    model = build(ModelConfig(name="swin_tiny_p2"), image_size=16, channels=3, classes=4).double()
    batches = [(torch.randn(3, 3, 16, 16, dtype=torch.float64), torch.tensor([0, 1, 2]))]
    found = []
    for by_hand in (False, True):
        monkeypatch.setattr(Hessian, "_by_hand", lambda self, images, by_hand=by_hand: by_hand)
        with Hessian(model, batches) as hessian:
            found.append(hessian.multiply(hessian.random("whole", torch.Generator().manual_seed(0))))
    torch.testing.assert_close(*found)


def test_products_are_as_right_in_another_thread(by_hand):
    """On a GPU torch goes backward in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(products, "vit", 40).result()
    torch.testing.assert_close(found, known_hessian("vit")[::40], rtol=1e-5, atol=1e-6)
