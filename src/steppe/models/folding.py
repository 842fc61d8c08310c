"""Batch normalisation folded into the convolutions before it: the same function, in fewer passes over memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn

TOLERANCE = 1e-3
"""Largest difference of an output, as a share of the largest output, with which a folded network is used."""


@torch.no_grad()
def fold_batchnorm(model: nn.Module, images: Tensor | tuple[int, int]) -> nn.Module:
    """Fold the norms of a network in evaluation mode; it is changed in place.

    Which convolution feeds which norm is observed, not guessed from names. The folded network must give the same
    outputs; otherwise everything is put back.

    Args:
        model: in evaluation mode, with its final weights in float32.
        images: a small batch, on the model's device; or channels and side, of which one is drawn.
    """
    if isinstance(images, tuple):
        channels, side = images
        images = torch.randn(2, channels, side, side, generator=torch.Generator().manual_seed(0))
    expected = model(images)
    pairs = _observe(model, images)
    kept = {id(tensor): tensor.clone() for conv, _ in pairs for tensor in conv.parameters()}
    undo = [(conv, conv.bias) for conv, _ in pairs]
    replaced: dict[nn.Module, nn.Module] = {norm: _rest_of(norm) for _, norm in pairs}
    for conv, norm in pairs:
        _absorb(conv, norm)
    places = [(parent, name, child) for parent in model.modules() for name, child in parent.named_children()]
    places = [place for place in places if place[2] in replaced]
    for parent, name, child in places:
        setattr(parent, name, replaced[child])
    difference = (model(images) - expected).abs().max()
    if not difference <= TOLERANCE * expected.abs().max():
        for parent, name, child in places:
            setattr(parent, name, child)
        for conv, bias in undo:
            conv.bias = bias
            for tensor in conv.parameters():
                tensor.copy_(kept[id(tensor)])
    return model


def _observe(model: nn.Module, images: Tensor) -> list[tuple[nn.Conv2d, nn.BatchNorm2d]]:
    """Return the pairs of which the norm takes just what the convolution gave, each used once."""
    given: dict[int, tuple[nn.Conv2d, Tensor]] = {}
    pairs: list[tuple[nn.Conv2d, nn.BatchNorm2d]] = []

    def keep(conv: nn.Conv2d, _: object, output: Tensor) -> None:
        given[id(output)] = conv, output  # held, so that no other tensor gets its id

    def match(norm: nn.BatchNorm2d, inputs: tuple[Tensor, ...]) -> None:
        if found := given.get(id(inputs[0])):
            pairs.append((found[0], norm))

    hooks = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            hooks.append(module.register_forward_hook(keep))
        elif isinstance(module, nn.BatchNorm2d) and module.running_var is not None and not module.training:
            hooks.append(module.register_forward_pre_hook(match))
    try:
        model(images)
    finally:
        for hook in hooks:
            hook.remove()
    convs, norms = [conv for conv, _ in pairs], [norm for _, norm in pairs]
    return [pair for pair in pairs if convs.count(pair[0]) == 1 and norms.count(pair[1]) == 1]


def _absorb(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (norm.running_var + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight
    bias = (conv.bias if conv.bias is not None else 0) - norm.running_mean
    bias = bias * scale + (norm.bias if norm.bias is not None else 0)
    conv.weight.mul_(scale[:, None, None, None])
    conv.bias = nn.Parameter(bias.detach(), requires_grad=False)


def _rest_of(norm: nn.BatchNorm2d) -> nn.Module:
    """Return what timm's norms do besides: the activation."""
    activation = getattr(norm, "act", None)
    return activation if isinstance(activation, nn.Module) else nn.Identity()
