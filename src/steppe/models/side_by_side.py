"""Several pretrained networks side by side: their features, one after the other, under one linear head.

A model is named by its parts, `resnet50_v1+tf_efficientnet_lite0`, and so are its weights,
`resnet50_keras+efficientnet_lite0`. Images come normalised for the first part; the others' scale and shift from there
to what they were trained with are buffers, so a trained model needs nothing but its own weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

Statistics = tuple[tuple[float, ...], tuple[float, ...]]

SEPARATOR = "+"


def split_name(name: str) -> list[str]:
    """Return the parts of a model's or weights' name; one part for a single network."""
    return name.split(SEPARATOR)


class SideBySide(nn.Module):
    """Feature extractors and the linear layer on their concatenated features."""

    def __init__(self, parts: Sequence[nn.Module], channels: int, classes: int) -> None:
        """Take networks with their own heads off.

        Args:
            parts: networks of timm's kind, with `num_features` and without a classifier.
            channels: of the images.
            classes: outputs of the head.
        """
        super().__init__()
        self.scale: Tensor
        self.shift: Tensor
        self.parts = nn.ModuleList(parts)
        self.register_buffer("scale", torch.ones(len(parts), channels, 1, 1))
        self.register_buffer("shift", torch.zeros(len(parts), channels, 1, 1))
        self.num_features = sum(_width(part) for part in parts)
        self.num_classes = classes
        self.head = nn.Linear(self.num_features, classes)

    def get_classifier(self) -> nn.Linear:
        """Return the head."""
        return self.head

    @torch.no_grad()
    def set_statistics(self, statistics: Sequence[Statistics | None]) -> None:
        """Set how images that are normalised for the first part reach the others.

        Args:
            statistics: mean and deviation that each part was trained with; None is taken for the first part's.
        """
        if statistics[0] is None:
            return
        mean, std = (torch.tensor(values) for values in statistics[0])
        for index, own in enumerate(statistics):
            own_mean, own_std = (mean, std) if own is None else (torch.tensor(values) for values in own)
            self.scale[index] = (std / own_std)[:, None, None]
            self.shift[index] = ((mean - own_mean) / own_std)[:, None, None]

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of a batch."""
        seen = [
            part(torch.addcmul(shift, images, scale))
            for part, scale, shift in zip(self.parts, self.scale, self.shift, strict=True)
        ]
        return self.head(torch.cat(seen, 1))


def _width(part: nn.Module) -> int:
    width = part.head_hidden_size
    assert isinstance(width, int)
    return width
