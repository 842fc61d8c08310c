"""Test-time augmentation: the mean answer to several views of an image.

The views are those of the speed records (KellerJordan/cifar10-airbench): the image and its mirror image; with
`flip_translate` also both of them shifted by one pixel up and to the left, and by one down and to the right. The
unshifted pair has half of the weight.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

VIEWS: dict[str, dict[tuple[int, int], float]] = {
    "flip": {(0, 0): 1.0},
    "flip_translate": {(0, 0): 0.5, (-1, -1): 0.25, (1, 1): 0.25},
}
"""Name -> shift of the image in pixels, down and to the right, -> weight of that pair of views."""


class Augmented(nn.Module):
    """A network that answers with the mean of its logits over several views of each image."""

    def __init__(self, network: nn.Module, views: str) -> None:
        """Wrap a network.

        Args:
            network: gives logits (B, classes) for images (B, C, H, W).
            views: a name of `VIEWS`.
        """
        super().__init__()
        self.network, self.views = network, VIEWS[views]

    def forward(self, images: Tensor) -> Tensor:
        """Answer a batch."""
        answers = [weight * self._answer_pair(shift(images, by)) for by, weight in self.views.items()]
        return sum(answers[1:], start=answers[0])

    def _answer_pair(self, images: Tensor) -> Tensor:
        return (self.network(images).float() + self.network(images.flip(3)).float()) / 2


def shift(images: Tensor, by: tuple[int, int]) -> Tensor:
    """Move images by whole pixels; what comes in from outside is reflected at the edge.

    Args:
        images: (B, C, H, W).
        by: pixels down, and to the right; negative is up, and to the left.
    """
    most = max(map(abs, by))
    if most == 0:
        return images
    height, width = images.shape[2:]
    top, left = most - by[0], most - by[1]
    return F.pad(images, (most,) * 4, mode="reflect")[:, :, top : top + height, left : left + width]
