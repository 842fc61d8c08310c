"""The speed records' network: what it whitens, what it begins as, and how a run makes it."""

import pytest
import torch

from steppe import data, models
from steppe.config import ModelConfig, RunConfig, parse
from steppe.data import Normalise
from steppe.errors import ConfigError
from steppe.train.setup import build_minimizer, build_model

NAME = "speednet2_16_32"


def build(name=NAME, size=16):
    return models.build(ModelConfig(name=name), image_size=size, channels=3, classes=5)


def test_whitening_gives_uncorrelated_components_of_variance_one():
    model = build()
    noise = torch.randn(200, 3, 16, 16)
    images = noise + noise.roll(1, 3) + 0.5 * noise.roll(1, 1)
    model.see(images)
    found = torch.nn.functional.conv2d(images, model.whiten.weight)
    rows = found.permute(1, 0, 2, 3).flatten(1)
    assert torch.equal(rows[12:], -rows[:12])
    second_moment = rows[:12] @ rows[:12].T / rows.shape[1]
    assert torch.allclose(second_moment, torch.eye(12), atol=0.02)


def test_whitening_does_not_depend_on_signs_of_eigenvectors():
    images = torch.randn(50, 3, 16, 16)
    first, second = build(), build()
    first.see(images)
    second.see(images.flip(0))
    assert torch.allclose(first.whiten.weight, second.whiten.weight, atol=1e-4)


def test_convolutions_begin_as_identity():
    weight = build().groups[0].conv2.weight
    assert torch.equal(weight[:, :, 1, 1], torch.eye(16))


@pytest.mark.parametrize(("name", "count"), [("speednet2_64_256_256", 1972792), ("speednet3_128_384_512", 9918776)])
def test_parameters_are_those_of_the_records(name, count):
    model = models.build(ModelConfig(name=name), image_size=32, channels=3, classes=10)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_three_convolutions_make_a_residual_of_the_last_two():
    group = build("speednet3_8_8").eval().groups[1]
    torch.nn.init.zeros_(group.conv3.weight)
    x = torch.randn(2, 8, 8, 8)
    first = group.act(group.norm1(group.pool(group.conv1(x))))
    assert torch.allclose(group(x), group.act(first), atol=1e-6)


def test_run_whitens_its_normalised_training_images_and_orthogonalises_convolutions():
    values = {
        "model": {"name": "speednet2_8"},
        "optimizer": {"name": "muon", "rest": "sgd", "rest_lr": 3.0, "hold_norm": True},
        "data": {"name": "digits"},
    }
    config = parse(RunConfig, values, where="test")
    digits = data.load(config.data)
    model = build_model(config, digits)
    images = Normalise(digits, torch.device("cpu"))(digits.train.images)
    second_moment = torch.nn.functional.conv2d(images, model.whiten.weight).square().mean((0, 2, 3))
    assert torch.allclose(second_moment, torch.ones(8), atol=0.02)
    assert not model.whiten.weight.requires_grad
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = build_minimizer(config, model).param_groups
    orthogonal = {names[id(p)] for group in groups if group["orthogonal"] for p in group["params"]}
    rest = {names[id(p)]: group["lr"] for group in groups if not group["orthogonal"] for p in group["params"]}
    assert orthogonal == {"groups.0.conv1.weight", "groups.0.conv2.weight"}
    assert set(rest) == {"whiten.bias", "groups.0.norm1.bias", "groups.0.norm2.bias", "head.weight"}
    assert set(rest.values()) == {3.0}


def test_image_that_halvings_leave_nothing_of_is_refused():
    with pytest.raises(ConfigError, match="leave nothing of 8 pixels"):
        build("speednet2_8_8_8", size=8)
