"""The network of the CIFAR-10 speed records: frozen whitening, then groups of convolutions that halve the image.

After Page (2018, "How to train your ResNet"), tysam-code's hlb-CIFAR10 and Jordan ("94% on CIFAR-10 in 3.29 seconds on
a single GPU", arXiv:2404.00498). The first layer holds the principal components of the training images' patches, each
divided by its deviation, and their negatives; its weights never learn.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

PATCH = 2
"""Side of a whitened patch, in pixels."""
NOISE = 5e-4
"""Variance that is added to that of a component, so that weak ones are not enlarged without limit."""
MOMENTUM = 0.4
"""Of BatchNorm's running statistics: such short trainings have few steps to learn them in."""


class Group(nn.Module):
    """Two or three 3×3 convolutions with a pooling after the first; with three, the last two are a residual."""

    def __init__(self, inputs: int, outputs: int, depth: int) -> None:
        """Make the group; convolutions begin as the identity as far as their inputs go."""
        super().__init__()
        self.conv1, self.norm1 = _convolution(inputs, outputs), _norm(outputs)
        self.pool, self.act = nn.MaxPool2d(2), nn.GELU()
        self.conv2, self.norm2 = _convolution(outputs, outputs), _norm(outputs)
        self.conv3 = _convolution(outputs, outputs) if depth == 3 else None
        self.norm3 = _norm(outputs) if depth == 3 else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of half the side."""
        first = self.act(self.norm1(self.pool(self.conv1(x))))
        x = self.act(self.norm2(self.conv2(first)))
        if self.conv3 is None or self.norm3 is None:
            return x
        return self.act(self.norm3(self.conv3(x)) + first)


class SpeedNet(nn.Module):
    """Whitening, groups of convolutions, the largest value of each channel, and a linear layer."""

    def __init__(
        self,
        *,
        img_size: int,
        in_chans: int,
        num_classes: int,
        widths: Sequence[int],
        depth: int,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        """Make the network.

        Args:
            img_size: only checked; the convolutions take any size that survives the halvings.
            in_chans: channels of the images.
            num_classes: size of the answer.
            widths: channels of each group.
            depth: convolutions in a group, 2 or 3.
            drop_rate: dropout before the head.
            drop_path_rate: refused: the groups have no branch to drop.
        """
        super().__init__()
        if img_size - 1 < 2 ** len(widths):
            raise ValueError(f"{len(widths)} halvings leave nothing of {img_size} pixels")
        if drop_path_rate:
            raise ValueError("its groups have no branch that drop_path could drop")
        components = in_chans * PATCH**2
        self.whiten = nn.Conv2d(in_chans, 2 * components, PATCH)
        with torch.no_grad():
            _set_components(self.whiten, torch.eye(components))
            nn.init.zeros_(self.whiten.bias)  # type: ignore[arg-type]
        self.whiten.weight.requires_grad_(False)
        self.act = nn.GELU()
        inputs, groups = 2 * components, []
        for width in widths:
            groups.append(Group(inputs, width, depth))
            inputs = width
        self.groups = nn.Sequential(*groups)
        self.dropout = nn.Dropout(drop_rate)
        self.num_features = inputs
        self.head = nn.Linear(inputs, num_classes, bias=False)
        nn.init.normal_(self.head.weight, std=1 / inputs)

    @torch.no_grad()
    def see(self, images: Tensor) -> None:
        """Take the whitening from normalised training images, (N, C, H, W)."""
        channels = images.shape[1]
        patches = images.float().unfold(2, PATCH, 1).unfold(3, PATCH, 1)
        flat = patches.permute(0, 2, 3, 1, 4, 5).reshape(-1, channels * PATCH**2)
        variances, components = torch.linalg.eigh(flat.T.double() @ flat.double() / len(flat))
        signs = components.gather(0, components.abs().argmax(0, keepdim=True)).sign()  # else the library's choice
        _set_components(self.whiten, (components * signs / (variances + NOISE).sqrt()).T)

    def get_classifier(self) -> nn.Module:
        """The last layer, by the name timm gives it in every model."""
        return self.head

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        x = self.groups(self.act(self.whiten(x)))
        return self.head(self.dropout(x.amax(dim=(2, 3))))


def _set_components(layer: nn.Conv2d, rows: Tensor) -> None:
    both = torch.cat((rows, -rows)).view_as(layer.weight)
    layer.weight.copy_(both)


def _convolution(inputs: int, outputs: int) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    with torch.no_grad():
        nn.init.dirac_(layer.weight[: min(inputs, outputs)])
    return layer


def _norm(channels: int) -> nn.BatchNorm2d:
    """BatchNorm that shifts and does not scale."""
    layer = nn.BatchNorm2d(channels, eps=1e-12, momentum=MOMENTUM)
    layer.weight.requires_grad_(False)
    return layer
