"""Dense truth for small networks: the Hessian by differences of gradients in float64, and the cases it is taken on."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from cases import Perceptron, TinyTransformer, images
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from steppe.measuring import CROSS_ENTROPY
from steppe.models.resnet import SmallResNet


def perceptron() -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (12,), generator=generator)
    return Perceptron().double(), [(x[:7], y[:7]), (x[7:], y[7:])]


def transformer() -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    x, y = images(10)
    return TinyTransformer().double(), [(x[:6].double(), y[:6]), (x[6:].double(), y[6:])]


def vit() -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    x, y = images(9, size=4)
    model = VisionTransformer(img_size=4, patch_size=2, embed_dim=4, depth=2, num_heads=2, mlp_ratio=1.5, num_classes=3)
    for parameter in model.parameters():  # away from the zeros and ones of a fresh model
        parameter.data.add_(torch.randn_like(parameter), alpha=0.3)
    return model.double(), [(x.double(), y)]


def resnet() -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """BatchNorm with statistics of its own, smooth activations so that differences of gradients are exact."""
    x, y = images(8, size=4)[0], torch.arange(8) % 3
    model = SmallResNet(img_size=4, in_chans=3, num_classes=3, depths=(1,), widths=(4,))
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.ReLU):
            model.get_submodule(name.rpartition(".")[0]).register_module(name.rpartition(".")[2], nn.Softplus())
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1, 0.3)
            nn.init.normal_(module.running_mean, 0, 0.3)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return model.double(), [(x[:4].double(), y[:4]), (x[4:].double(), y[4:])]


CASES: dict[str, Callable[[], tuple[nn.Module, list[tuple[Tensor, Tensor]]]]] = {
    "perceptron": perceptron,
    "transformer": transformer,
    "vit": vit,
    "resnet": resnet,
}


def make(name: str, seed: int = 0) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return CASES[name]()


def mean_loss(model: nn.Module, batches: list[tuple[Tensor, Tensor]], loss: Callable[..., Tensor]) -> Tensor:
    total = sum(loss(model(x), y).sum() for x, y in batches)
    assert isinstance(total, Tensor)
    return total / sum(len(y) for _, y in batches)


def gradient(model: nn.Module, batches: list[tuple[Tensor, Tensor]], loss: Callable[..., Tensor]) -> Tensor:
    found = torch.autograd.grad(mean_loss(model, batches, loss), list(model.parameters()), allow_unused=True)
    return torch.cat(
        [
            torch.zeros_like(p).flatten() if g is None else g.flatten()
            for p, g in zip(model.parameters(), found, strict=True)
        ]
    )


def dense_hessian(
    model: nn.Module, batches: list[tuple[Tensor, Tensor]], loss: Callable[..., Tensor], step: float = 1e-5
) -> Tensor:
    """Central differences of gradients, one parameter at a time; the model's mode is the caller's business."""
    rows = []
    for parameter in model.parameters():
        flat = parameter.data.view(-1)
        for i in range(len(flat)):
            value = flat[i].item()
            flat[i] = value + step
            ahead = gradient(model, batches, loss)
            flat[i] = value - step
            rows.append((ahead - gradient(model, batches, loss)) / (2 * step))
            flat[i] = value
    dense = torch.stack(rows)
    return (dense + dense.T) / 2


@functools.cache
def known_hessian(name: str, loss: Callable[..., Tensor] = CROSS_ENTROPY) -> Tensor:
    """The dense Hessian of a case in evaluation mode."""
    model, batches = make(name)
    return dense_hessian(model.eval(), batches, loss)


def positions(model: nn.Module, names: list[str]) -> Tensor:
    """Where the named parameters lie in the flat vector of all."""
    offset, found = 0, []
    for name, parameter in model.named_parameters():
        if name in names:
            found.append(torch.arange(offset, offset + parameter.numel()))
        offset += parameter.numel()
    return torch.cat(found)
