"""What a data set is here: three splits of uint8 images, and how they are cut from what a source gives."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch

from steppe.config import DataConfig
from steppe.errors import DataError


@dataclass(frozen=True)
class Split:
    """Images (N, C, H, W) as uint8, and their labels (N,) as int64."""

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        """The number of images."""
        return len(self.labels)

    def take(self, indices: np.ndarray | torch.Tensor) -> Split:
        """The images at `indices`, in that order."""
        picked = torch.as_tensor(indices)
        return Split(self.images[picked], self.labels[picked])

    def to(self, device: torch.device | str) -> Split:
        """The same split on `device`."""
        return Split(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True)
class Source:
    """What a source gives before anything is divided; splits it does not have are None."""

    classes: tuple[str, ...]
    train: Split
    val: Split | None = None
    test: Split | None = None


@dataclass(frozen=True)
class Dataset:
    """A divided data set. The test split is for one look, at the very end."""

    name: str
    classes: tuple[str, ...]
    train: Split
    val: Split
    test: Split
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fingerprint: str

    @property
    def image_size(self) -> int:
        """The side of the square images, in pixels."""
        return self.train.images.shape[-1]

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for colour."""
        return self.train.images.shape[1]

    def describe(self) -> dict[str, object]:
        """What `data.json` of a run folder says."""
        return {
            "name": self.name,
            "classes": list(self.classes),
            "image_size": self.image_size,
            "channels": self.channels,
            "examples": {"train": len(self.train), "val": len(self.val), "test": len(self.test)},
            "mean": list(self.mean),
            "std": list(self.std),
            "fingerprint": self.fingerprint,
        }


def divide(source: Source, config: DataConfig) -> Dataset:
    """Carve out the splits the source lacks, stratified by class and seeded, and take the training statistics."""
    train, val, test = source.train, source.val, source.test
    rng = np.random.default_rng(config.split_seed)
    if test is None:
        train, test = stratify(train, config.test_fraction, rng, source.classes)
    if val is None:
        train, val = stratify(train, config.val_fraction, rng, source.classes)
    mean, std = _statistics(train.images)
    return Dataset(config.name, source.classes, train, val, test, mean, std, _fingerprint(train, val, test))


def stratify(split: Split, fraction: float, rng: np.random.Generator, classes: tuple[str, ...]) -> tuple[Split, Split]:
    """Divide a split into (rest, part): `fraction` of every class, at least one image on either side."""
    labels = split.labels.numpy()
    rest, part = [], []
    for label, name in enumerate(classes):
        members = rng.permutation(np.flatnonzero(labels == label))
        if len(members) < 2:
            mend = "add images of this class, or bring separate train, val and test folders"
            raise DataError(f"class {name!r} has {len(members)} image(s): too few to divide", mend=mend)
        count = min(max(1, round(fraction * len(members))), len(members) - 1)
        part.append(members[:count])
        rest.append(members[count:])
    return split.take(np.sort(np.concatenate(rest))), split.take(np.sort(np.concatenate(part)))


def _statistics(images: torch.Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, from its histogram: exact, and small in memory."""
    values = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in range(images.shape[1]):
        counts = torch.bincount(images[:, channel].reshape(-1), minlength=256).to(torch.float64)
        share = counts / counts.sum()
        mean = (share * values).sum()
        means.append(mean.item())
        stds.append(max((share * (values - mean) ** 2).sum().sqrt().item(), 1e-3))
    return tuple(means), tuple(stds)


def _fingerprint(*splits: Split) -> str:
    digest = hashlib.sha256()
    for split in splits:
        digest.update(str(tuple(split.images.shape)).encode())
        digest.update(split.images.contiguous().numpy().data)
        digest.update(split.labels.contiguous().numpy().data)
    return digest.hexdigest()[:16]
