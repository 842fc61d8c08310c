"""Residual networks for small images (He et al. 2016, section 4.2): a 3×3 stem, no pooling before the head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import timm
import torch
from timm.layers.drop import DropPath
from torch import nn

SMALL_IMAGE = 64
"""Up to this side in pixels a convolutional stem is one 3×3 convolution that keeps the image's size."""


def resnet(*, variant: str, img_size: int, in_chans: int, width: int = 1, **options: Any) -> nn.Module:
    """A ResNet of timm's; for small images with a stem of one 3×3 convolution, without stride or max-pooling.

    `width` multiplies the channels of every stage (not of the stem), as in the ResNet-50x2 of Kolesnikov et al. 2020.
    """
    if width > 1:
        options["channels"] = tuple(width * channels for channels in (64, 128, 256, 512))
    model: Any = timm.create_model(variant, in_chans=in_chans, **options)
    if img_size <= SMALL_IMAGE:
        model.conv1 = nn.Conv2d(in_chans, model.conv1.out_channels, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
        model.maxpool = nn.Identity()
    return model


def resnet_v1(*, variant: str, img_size: int, **options: Any) -> nn.Module:
    """A ResNet of timm's as Keras has it, He et al.'s first: the stride is in a block's first convolution.

    timm has it in the second, and 1e-5 where Keras adds 1e-3 to a norm's variance. Neither shows in the names or
    shapes of the weights. The stem is 7×7 with max-pooling at every size of images.
    """
    del img_size  # the convolutions take any
    model: Any = timm.create_model(variant, **options)
    for stage in (model.layer2, model.layer3, model.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = stage[0].conv2.stride, stage[0].conv1.stride
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-3
    return model


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with BatchNorm, added to the input (projected by 1×1 where the shape changes)."""

    def __init__(self, inputs: int, outputs: int, stride: int, drop_path: float) -> None:
        """Make the block; `stride` halves the image where it is 2."""
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.act1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.act2 = nn.ReLU()
        self.drop_path = DropPath(drop_path)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return relu(shortcut(x) + residual(x))."""
        residual = self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x)))))
        return self.act2(self.shortcut(x) + self.drop_path(residual))


class SmallResNet(nn.Module):
    """A ResNet of basic blocks; every stage after the first halves the image."""

    def __init__(
        self,
        *,
        img_size: int,
        in_chans: int,
        num_classes: int,
        depths: Sequence[int],
        widths: Sequence[int],
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        """Make the network. `img_size` is only checked: convolutions take any size that survives the halvings."""
        super().__init__()
        if img_size < 2 ** (len(widths) - 1):
            raise ValueError(f"{len(widths) - 1} halvings leave nothing of {img_size} pixels")
        self.conv1 = nn.Conv2d(in_chans, widths[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.act1 = nn.ReLU()
        rates = iter(torch.linspace(0, drop_path_rate, sum(depths), device="cpu").tolist())
        stages, inputs = [], widths[0]
        for index, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            blocks = []
            for block in range(depth):
                stride = 2 if index > 0 and block == 0 else 1
                blocks.append(BasicBlock(inputs, width, stride, next(rates)))
                inputs = width
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.dropout = nn.Dropout(drop_rate)
        self.head = nn.Linear(inputs, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def get_classifier(self) -> nn.Module:
        """The last layer, by the name timm gives it in every model."""
        return self.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of a batch of images."""
        x = self.stages(self.act1(self.bn1(self.conv1(x))))
        return self.head(self.dropout(x.mean(dim=(2, 3))))
