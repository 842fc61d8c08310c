from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from oracle import known_hessian, make
from torch import nn

from steppe.geometry.convolution import FastDoubleBackward
from steppe.geometry.products import Hessian

SHAPES = [
    (F.conv1d, (2, 4, 9), (6, 2, 3), {"stride": 2, "padding": 1, "groups": 2}),
    (F.conv2d, (2, 3, 7, 6), (4, 3, 3, 2), {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}),
    (F.conv2d, (3, 4, 5, 5), (4, 1, 3, 3), {"padding": 1, "groups": 4}),
    (F.conv3d, (1, 2, 4, 4, 5), (3, 2, 2, 2, 2), {}),
]


@pytest.mark.parametrize(("function", "x", "weight", "options"), SHAPES, ids=["1d", "2d", "2d-depthwise", "3d"])
@pytest.mark.parametrize("bias", [True, False])
def test_both_derivatives_are_those_of_torch(function, x, weight, options, bias):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)

    inputs = [draw(*x), draw(*weight), *([draw(weight[0])] if bias else [])]
    out = function(*inputs, **options)
    along, second = draw(*out.shape), [draw(*tensor.shape) for tensor in inputs]
    found = []
    for mode in (FastDoubleBackward(), torch.enable_grad()):
        with mode:
            out = function(*inputs, **options)
        assert ("_Convolution" in str(out.grad_fn)) is isinstance(mode, FastDoubleBackward)
        first = torch.autograd.grad(out, inputs, along, create_graph=True)
        twice = torch.autograd.grad(first, [*inputs, along], second, allow_unused=True)
        found.append([out, *first, *twice])
    for ours, theirs in zip(*found, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs)


def test_a_part_of_the_gradients_is_made_where_a_part_is_wanted():
    x, weight = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3, requires_grad=True)
    with FastDoubleBackward():
        out = F.conv2d(x, weight)
    (first,) = torch.autograd.grad(out.square().sum(), weight, create_graph=True)
    (ours,) = torch.autograd.grad(first.sum(), weight)
    (first,) = torch.autograd.grad(F.conv2d(x, weight).square().sum(), weight, create_graph=True)
    torch.testing.assert_close(ours, torch.autograd.grad(first.sum(), weight)[0])
    assert x.grad is None


def test_what_it_does_not_know_is_left_to_torch():
    weight = torch.randn(4, 3, 3, 3, requires_grad=True)
    with FastDoubleBackward():
        for out in (F.conv2d(torch.randn(1, 3, 5, 5), weight, padding="same"), F.conv2d(torch.randn(3, 5, 5), weight)):
            assert "_Convolution" not in str(out.grad_fn)
        assert F.conv_transpose2d(torch.randn(1, 4, 5, 5), weight).shape == (1, 3, 7, 7)
        assert nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular")(torch.randn(1, 3, 5, 5)).shape == (1, 4, 5, 5)


def test_the_hessian_of_a_convolutional_network_is_the_same():
    model, batches = make("resnet")
    with FastDoubleBackward(), Hessian(model, batches) as hessian:
        rows = torch.eye(hessian.size(), dtype=torch.float64)[::7]
        found = torch.stack([hessian.multiply(row) for row in rows])
    torch.testing.assert_close(found, known_hessian("resnet")[::7], rtol=1e-5, atol=1e-6)
