"""Wide residual networks for small images (Zagoruyko & Komodakis 2016, "Wide Residual Networks")."""

from __future__ import annotations

import torch
from timm.layers.drop import DropPath
from torch import nn


class PreActivationBlock(nn.Module):
    """BatchNorm, ReLU and a 3×3 convolution, twice, added to the input; dropout between the convolutions.

    Where the shape changes, the shortcut is a 1×1 convolution of the activated input.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float, drop_path: float) -> None:
        """Make the block; `stride` halves the image where it is 2."""
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.act1 = nn.ReLU()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.act2 = nn.ReLU()
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.drop_path = DropPath(drop_path)
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return shortcut(x) + residual(x)."""
        active = self.act1(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(active)
        residual = self.conv2(self.dropout(self.act2(self.bn2(self.conv1(active)))))
        return shortcut + self.drop_path(residual)


class WideResNet(nn.Module):
    """WRN-depth-width: three stages of (depth − 4) / 6 blocks with 16, 32 and 64 channels times the width."""

    def __init__(
        self,
        *,
        img_size: int,
        in_chans: int,
        num_classes: int,
        depth: int,
        width: int,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        """Make the network.

        Args:
            img_size: only checked; the convolutions take any size that survives two halvings.
            in_chans: channels of the images.
            num_classes: size of the answer.
            depth: number of convolutions, 6n + 4.
            width: factor of the channels.
            drop_rate: dropout before the head.
            proj_drop_rate: dropout inside the blocks, where the paper has it.
            drop_path_rate: stochastic depth of the last block; earlier blocks have less.
        """
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ValueError(f"a wide ResNet's depth is 10, 16, 22, 28…, not {depth}")
        if width < 1:
            raise ValueError("a wide ResNet's width is 1 or more")
        if img_size < 4:
            raise ValueError(f"two halvings leave nothing of {img_size} pixels")
        blocks_each = (depth - 4) // 6
        self.conv1 = nn.Conv2d(in_chans, 16, 3, padding=1, bias=False)
        inputs, stages = 16, []
        for index in range(3):
            outputs, blocks = 16 * width * 2**index, []
            for block in range(blocks_each):
                share = (index * blocks_each + block) / max(3 * blocks_each - 1, 1)
                stride = 2 if index > 0 and block == 0 else 1
                blocks.append(PreActivationBlock(inputs, outputs, stride, proj_drop_rate, drop_path_rate * share))
                inputs = outputs
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.norm = nn.BatchNorm2d(inputs)
        self.act = nn.ReLU()
        self.dropout = nn.Dropout(drop_rate)
        self.head = nn.Linear(inputs, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.head.bias)

    def get_classifier(self) -> nn.Module:
        """The last layer, by the name timm gives it in every model."""
        return self.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of a batch of images."""
        x = self.act(self.norm(self.stages(self.conv1(x))))
        return self.head(self.dropout(x.mean(dim=(2, 3))))
