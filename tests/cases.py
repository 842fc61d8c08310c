"""The small networks and data that tests share."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Perceptron(nn.Module):
    """Two layers with a tanh between: smooth, so that closed forms hold to rounding."""

    def __init__(self, inputs: int = 4, width: int = 6, outputs: int = 3) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, width)
        self.out = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.hidden(x)))


class TinyConvNet(nn.Module):
    """Convolution, BatchNorm, dropout, linear: everything that a second pass could disturb."""

    def __init__(self, classes: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        return self.head(self.dropout(x.mean(dim=(2, 3))))


class TinyTransformer(nn.Module):
    """A class token, a position embedding, LayerNorm and one attention: every role a parameter can have."""

    def __init__(self, classes: int = 3, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Linear(12, width)
        self.cls_token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn(1, 5, width) * 0.02)
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        patches = x.unfold(2, 2, 2).unfold(3, 2, 2).flatten(2, 3).permute(0, 2, 1, 3, 4).flatten(2)
        tokens = torch.cat([self.cls_token.expand(len(x), -1, -1), self.embed(patches)], dim=1) + self.pos_embed
        y = self.norm(tokens)
        return self.head((tokens + self.attention(y, y, y, need_weights=False)[0])[:, 0])


def images(count: int = 8, size: int = 4, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random images and labels."""
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(count, 3, size, size, generator=generator),
        torch.randint(classes, (count,), generator=generator),
    )
