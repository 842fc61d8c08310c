"""Batches from images that live on the device as uint8: chosen, augmented and normalised there.

Every batch is a function of (seed, epoch, index): nothing is carried over, so a resumed run sees the same images.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from steppe.config import AugmentConfig, derive_seed
from steppe.data.dataset import Dataset, Split


class Loader:
    """The training batches of a data set, in an order of its own each epoch."""

    def __init__(
        self, dataset: Dataset, *, batch_size: int, augment: AugmentConfig, seed: int, device: torch.device
    ) -> None:
        """Move the training images to `device`. Images that do not fill a last batch wait for the next epoch."""
        self.split = dataset.train.to(device)
        self.batch_size = min(batch_size, len(self.split))
        self.augment, self.seed, self.device = augment, seed, device
        self._normalise = Normalise(dataset, device)
        self._order: tuple[int, torch.Tensor] | None = None

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return len(self.split) // self.batch_size

    def batch(self, epoch: int, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return batch `index` of `epoch`: normalised images and labels."""
        if self._order is None or self._order[0] != epoch:
            shuffler = torch.Generator().manual_seed(derive_seed(self.seed, "order", epoch))
            self._order = epoch, torch.randperm(len(self.split), generator=shuffler).to(self.device)
        picked = self._order[1][index * self.batch_size : (index + 1) * self.batch_size]
        images = self.split.images[picked]
        if self.augment.crop_padding or self.augment.flip:
            generator = torch.Generator(self.device).manual_seed(derive_seed(self.seed, "augment", epoch, index))
            images = augment(images, self.augment, generator)
        return self._normalise(images), self.split.labels[picked]


class Normalise:
    """Turn uint8 images into floats with the training set's mean 0 and standard deviation 1 in every channel."""

    def __init__(self, dataset: Dataset, device: torch.device) -> None:
        """Keep the statistics on `device`."""
        shape = (1, -1, 1, 1)
        self.mean = torch.tensor(dataset.mean, dtype=torch.float32, device=device).view(shape)
        self.std = torch.tensor(dataset.std, dtype=torch.float32, device=device).view(shape)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Normalise a batch."""
        return (images.float() / 255 - self.mean) / self.std


def in_order(
    split: Split, dataset: Dataset, *, batch_size: int, device: torch.device
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield a split's normalised batches as they stand, the last one perhaps smaller: for measuring."""
    normalise = Normalise(dataset, device)
    for start in range(0, len(split), batch_size):
        stop = start + batch_size
        yield normalise(split.images[start:stop].to(device)), split.labels[start:stop].to(device)


def augment(images: torch.Tensor, config: AugmentConfig, generator: torch.Generator) -> torch.Tensor:
    """Shift every image by up to `crop_padding` pixels (zeros move in), and mirror half of them."""
    count, _, height, width = images.shape
    device = images.device
    if config.crop_padding:
        pad = config.crop_padding
        shift = torch.randint(0, 2 * pad + 1, (2, count, 1), generator=generator, device=device)
        rows = shift[0] + torch.arange(height, device=device)
        columns = shift[1] + torch.arange(width, device=device)
        padded = F.pad(images, (pad, pad, pad, pad))
        number = torch.arange(count, device=device)[:, None, None]
        images = padded[number, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    if config.flip:
        mirrored = torch.rand(count, generator=generator, device=device) < 0.5
        images = torch.where(mirrored[:, None, None, None], images.flip(-1), images)
    return images
