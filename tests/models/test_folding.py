"""Batch normalisation folded into convolutions."""

import copy

import pytest
import timm
import torch
from torch import nn

from steppe.models import fold_batchnorm


def randomise(model):
    """Give norms statistics and weights as training leaves them."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, low, high in (
                (module.running_mean, -0.5, 0.5),
                (module.running_var, 0.5, 2.0),
                (module.weight.data, 0.5, 1.5),
                (module.bias.data, -0.5, 0.5),
            ):
                tensor.uniform_(low, high, generator=generator)
    return model.eval()


@pytest.mark.parametrize("name", ["resnet10t", "tf_efficientnet_lite0", "test_resnet", "repghostnet_050"])
def test_folded_network_gives_the_same_outputs(name):
    torch.manual_seed(0)
    model = randomise(timm.create_model(name, num_classes=5))
    images = torch.randn(3, 3, 64, 64)
    with torch.no_grad():
        expected = model(images)
    folded = fold_batchnorm(copy.deepcopy(model), images[:2])
    with torch.no_grad():
        torch.testing.assert_close(folded(images), expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())
    norms = [sum(isinstance(m, nn.BatchNorm2d) for m in net.modules()) for net in (model, folded)]
    assert norms[1] < norms[0]


def test_norm_without_a_convolution_before_it_stays():
    model = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 1), nn.ReLU(), nn.BatchNorm2d(4)).eval()
    fold_batchnorm(model, torch.randn(2, 3, 8, 8))
    assert sum(isinstance(module, nn.BatchNorm2d) for module in model) == 2


def test_output_that_is_used_elsewhere_is_not_folded():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

        def forward(self, x):
            y = self.conv(x)
            return self.norm(y) + 10 * y

    model = Branching()
    nn.init.constant_(model.norm.running_var, 9.0)
    model.eval()
    images = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        expected, weights = model(images), model.conv.weight.clone()
        fold_batchnorm(model, images)
        assert isinstance(model.norm, nn.BatchNorm2d)
        torch.testing.assert_close(model.conv.weight, weights)
        torch.testing.assert_close(model(images), expected)
