"""A multi-layer perceptron for points in the plane, and for tiny images, which it flattens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from steppe.errors import ConfigError


class HiddenLayer(nn.Module):
    """A linear layer, ReLU, and dropout."""

    def __init__(self, inputs: int, outputs: int, dropout: float) -> None:
        """Make the layer, with torch's own initial weights."""
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.act = nn.ReLU()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return dropout(relu(linear(x)))."""
        return self.dropout(self.act(self.linear(x)))


class Perceptron(nn.Module):
    """Hidden layers with ReLU between a flattened image and the logits.

    With a `stem` the first layer is linear, without a ReLU behind it: so is the network of Gomez Donoso, Ghenassia and
    Vannier's toys (table II: 2-10, then three of 10-10 with ReLU, then 10-2).
    """

    def __init__(
        self,
        *,
        img_size: int,
        in_chans: int,
        num_classes: int,
        widths: Sequence[int],
        stem: int | None = None,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        """Make the network.

        Args:
            img_size: side of the images in pixels.
            in_chans: channels of the images.
            num_classes: size of the answer.
            widths: of the hidden layers.
            stem: width of a linear layer before them; None is none.
            drop_rate: dropout before the head.
            proj_drop_rate: dropout after every hidden layer.
            drop_path_rate: refused: there are no residual branches.
        """
        super().__init__()
        if drop_path_rate:
            what = "drop_path means nothing to a perceptron: it has no residual branches"
            raise ConfigError(what, where="model.drop_path")
        inputs = in_chans * img_size**2
        self.flatten = nn.Flatten()
        self.stem = nn.Linear(inputs, stem) if stem else nn.Identity()
        sizes = [stem or inputs, *widths]
        self.layers = nn.Sequential(*(HiddenLayer(a, b, proj_drop_rate) for a, b in pairwise(sizes)))
        self.dropout = nn.Dropout(drop_rate)
        self.head = nn.Linear(sizes[-1], num_classes)

    def get_classifier(self) -> nn.Module:
        """The last layer, by the name timm gives it in every model."""
        return self.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of a batch of images."""
        return self.head(self.dropout(self.layers(self.stem(self.flatten(x)))))
