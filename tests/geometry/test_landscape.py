from __future__ import annotations

import pytest
import torch
from cases import Perceptron, TinyConvNet, TinyTransformer, images
from torch import nn

from steppe.errors import MeasureError
from steppe.geometry import measure_between, measure_line, measure_square, random_directions
from steppe.geometry.landscape import LossAt, barrier, coordinates, filter_normalise, trainable
from steppe.measuring import CROSS_ENTROPY, as_found


def batches(count: int = 12, size: int = 5, **options) -> list[tuple[torch.Tensor, torch.Tensor]]:
    x, y = images(count, **options)
    return list(zip(x.split(size), y.split(size), strict=True))


def mean_loss(model: nn.Module, parts) -> float:
    with torch.no_grad():
        return sum(CROSS_ENTROPY(model(x), y).sum(dtype=torch.float64).item() for x, y in parts) / sum(
            len(y) for _, y in parts
        )


NETWORKS = {"conv": TinyConvNet, "attention": TinyTransformer}


@pytest.fixture(params=NETWORKS)
def model(request) -> nn.Module:
    torch.manual_seed(0)
    return NETWORKS[request.param]().eval()


def test_the_middle_is_the_loss_itself_and_others_are_where_they_should_be(model):
    parts = batches()
    across, up = random_directions(model, 2)
    found = measure_square(model, parts, [across, up], points=5, radius=0.4)
    assert found["steps"] == [-0.4, -0.2, 0.0, 0.2, 0.4]
    assert found["loss"][2][2] == found["centre"] == mean_loss(model, parts)
    moved = NETWORKS["conv" if isinstance(model, TinyConvNet) else "attention"]().eval()
    moved.load_state_dict(model.state_dict())
    with torch.no_grad():
        for p, a, b in zip(trainable(moved), across, up, strict=True):
            p.add_(a, alpha=-0.4).add_(b, alpha=0.2)
    assert found["loss"][3][0] == mean_loss(moved, parts)
    line = measure_line(model, parts, across, points=5, radius=0.4)
    assert line["loss"] == found["loss"][2]


def test_an_even_number_is_centred_too():
    steps = coordinates(50, 1.0)
    assert len(steps) == 50
    assert all(a == -b for a, b in zip(steps, reversed(steps), strict=True))
    assert 0.0 in coordinates(51, 0.7)
    model = TinyConvNet().eval()
    found = measure_square(model, batches(4), random_directions(model, 2), points=4)
    assert found["centre"] == mean_loss(model, batches(4))
    default = measure_square(model, batches(2), random_directions(model, 2))
    assert sum(len(row) for row in default["loss"]) == 2500


def test_filters_have_the_lengths_of_the_weights_and_vectors_stay(model):
    (direction,) = random_directions(model, 1)
    for part, weight in zip(direction, trainable(model), strict=True):
        if weight.ndim > 1:
            assert torch.allclose(part.flatten(1).norm(dim=1), weight.detach().flatten(1).norm(dim=1), rtol=1e-5)
        else:
            assert not part.any()
    raw = [torch.ones_like(p) for p in trainable(model)]
    raw[0][0] = 0  # a filter without a direction
    assert all(torch.isfinite(part).all() for part in filter_normalise(raw, model))


def test_models_of_one_shape_share_grid_and_draw():
    torch.manual_seed(0)
    first, second = TinyConvNet().eval(), TinyConvNet().eval()
    plain = [random_directions(m, 2, seed=3, normalise=False) for m in (first, second)]
    for a, b in zip(plain[0], plain[1], strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    results = [measure_square(m, batches(), random_directions(m, 2, seed=3), points=3) for m in (first, second)]
    assert results[0]["steps"] == results[1]["steps"]
    other = measure_square(first, batches(), random_directions(first, 2, seed=4), points=3)
    assert other["loss"] != results[0]["loss"]


def test_filter_normalisation_makes_the_picture_blind_to_a_rescaling():
    """Scaling one layer up and the next down leaves a ReLU network's function alone, and its landscape as well."""
    torch.manual_seed(0)
    layers = [nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 3, bias=False)]
    model = nn.Sequential(*layers).double()
    x = torch.randn(10, 4, dtype=torch.float64)
    parts = [(x, torch.arange(10) % 3)]
    before = measure_line(model, parts, random_directions(model, 1)[0], points=5)
    plain = measure_line(model, parts, random_directions(model, 1, normalise=False)[0], points=5)
    with torch.no_grad():
        model[0].weight.mul_(10)
        model[2].weight.div_(10)
    after = measure_line(model, parts, random_directions(model, 1)[0], points=5)
    assert after["loss"] == pytest.approx(before["loss"], rel=1e-9)
    moved = measure_line(model, parts, random_directions(model, 1, normalise=False)[0], points=5)
    assert moved["loss"] != pytest.approx(plain["loss"], rel=1e-2)


@pytest.mark.parametrize("reestimate", [False, True])
def test_leaves_the_model_as_it_was(reestimate):
    model = TinyConvNet(dropout=0.5).train()
    model.norm.eval()
    model.head.weight.requires_grad_(False)
    model.conv.weight.grad = torch.ones_like(model.conv.weight)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    momentum, state = model.norm.momentum, torch.get_rng_state()
    (direction,) = random_directions(model, 1)
    assert len(direction) == 4, "what does not train has no direction"
    first = measure_line(model, batches(), direction, points=3, reestimate=reestimate)
    assert measure_line(model, batches(), direction, points=3, reestimate=reestimate) == first
    assert (model.training, model.norm.training, model.norm.momentum) == (True, False, momentum)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert torch.equal(model.conv.weight.grad, torch.ones_like(model.conv.weight))
    assert torch.equal(torch.get_rng_state(), state)


def test_an_error_on_the_way_leaves_the_model_as_it_was():
    model = TinyConvNet()
    before = model.conv.weight.detach().clone()

    def stop(rows):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_square(model, batches(), random_directions(model, 2), points=3, keep=stop)
    assert torch.equal(model.conv.weight, before)
    assert model.training


def test_reestimated_statistics_are_those_of_all_images():
    """Of one batch they are its own mean and variance; of several, the mean weighs each by its size."""
    torch.manual_seed(0)
    model = TinyConvNet().double().eval()
    x, y = images(12)
    x = x.double()
    with as_found(model), torch.no_grad():
        loss = LossAt(model, [(x, y)], reestimate=True).here()
        seen = model.conv(x).transpose(0, 1).flatten(1)
        assert torch.allclose(model.norm.running_mean, seen.mean(1))
        assert torch.allclose(model.norm.running_var, seen.var(1))
        LossAt(model, [(x[:9], y[:9]), (x[9:], y[9:])], reestimate=True).here()
        assert torch.allclose(model.norm.running_mean, seen.mean(1))
    assert loss != mean_loss(model, [(x, y)])


def test_batchnorm_reestimated_is_blind_to_the_scale_before_it():
    torch.manual_seed(0)
    model = TinyConvNet().double().eval()
    model.norm.eps = 1e-14
    x, y = images(12)
    parts = [(x.double(), y)]
    direction = [p.detach().clone() if i == 0 else torch.zeros_like(p) for i, p in enumerate(model.parameters())]
    found = measure_line(model, parts, direction, points=5, radius=0.5, reestimate=True)
    assert found["loss"] == pytest.approx([found["centre"]] * 5, rel=1e-9)
    kept = measure_line(model, parts, direction, points=5, radius=0.5, reestimate=False)
    assert kept["loss"][0] != pytest.approx(kept["centre"], rel=1e-3)


def test_the_size_of_batches_changes_nothing_but_rounding():
    torch.manual_seed(0)
    model = TinyTransformer().double().eval()
    x, y = images(12)
    x = x.double()
    directions = random_directions(model, 2)
    results = [
        measure_square(model, list(zip(x.split(n), y.split(n), strict=True)), directions, points=3)["loss"]
        for n in (12, 5)
    ]
    assert torch.allclose(torch.tensor(results[0]), torch.tensor(results[1]), rtol=1e-10)


def test_goes_on_from_the_rows_it_has():
    torch.manual_seed(0)
    model = TinyConvNet().eval()
    directions = random_directions(model, 2)
    kept: list[int] = []
    whole = measure_square(model, batches(), directions, points=4, keep=lambda rows: kept.append(sum(map(len, rows))))
    assert kept == list(range(1, 17))
    told: list[tuple[int, int]] = []
    known = [[9.0] * 4, whole["loss"][1][:3]]
    rest = measure_square(
        model, batches(), directions, points=4, known=known, tell=lambda done, total: told.append((done, total))
    )
    assert rest["loss"] == [[9.0] * 4, *whole["loss"][1:]]
    assert known[1] == whole["loss"][1][:3], "what is given is not changed"
    assert told[0] == (8, 16)
    assert told[-1] == (16, 16)


def test_between_two_models_the_ends_are_exact_and_the_barrier_is_the_rise():
    torch.manual_seed(0)
    first, second = TinyConvNet().eval(), TinyConvNet().eval()
    parts = batches()
    for model in (first, second):  # statistics of their own
        model.train()
        model(parts[0][0] * (1 + (model is second)))
        model.eval()
    found = measure_between(first, second, parts, points=5, reestimate=False)
    assert found["loss"][0] == mean_loss(first, parts)
    assert found["loss"][-1] == mean_loss(second, parts)
    assert barrier([0, 0.5, 1], [1.0, 4.0, 2.0]) == 2.5
    assert barrier([0, 0.5, 1], [1.0, 1.2, 2.0]) == 0.0
    assert barrier([0, 0.5, 1], [1.0, None, 2.0]) is None
    middle = TinyConvNet().eval()
    with torch.no_grad():
        ours, theirs = first.state_dict(), second.state_dict()
        middle.load_state_dict({k: (ours[k] + theirs[k]) / 2 if ours[k].is_floating_point() else ours[k] for k in ours})
    assert found["loss"][2] == pytest.approx(mean_loss(middle, parts), rel=1e-6)


def test_bad_input_is_told(model):
    parts, direction = batches(), random_directions(model, 1)[0]
    with pytest.raises(MeasureError, match="two directions"):
        measure_square(model, parts, [direction])
    with pytest.raises(MeasureError, match="shape"):
        measure_line(model, parts, direction[:-1])
    with pytest.raises(MeasureError, match="NaN"):
        measure_line(model, parts, [d * float("nan") for d in direction])
    with pytest.raises(MeasureError, match="at least two points"):
        measure_line(model, parts, direction, points=1)
    with pytest.raises(MeasureError, match="no images"):
        measure_line(model, [], direction)
    with pytest.raises(MeasureError, match="not of one shape"):
        measure_between(model, Perceptron(), parts)


def test_a_loss_that_is_not_finite_becomes_none():
    model = Perceptron()
    parts = [(torch.ones(1, 4), torch.zeros(1, dtype=torch.long))]
    found = measure_line(model, parts, [1e38 * torch.ones_like(p) for p in model.parameters()], points=3, radius=10.0)
    assert found["loss"][0] is None
    assert found["loss"][1] == found["centre"]
