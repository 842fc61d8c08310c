"""What a data set is here: three splits of images, and how they are cut from what a source gives."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np
import torch

from steppe.config import DataConfig, derive_seed
from steppe.data.storage import CHUNK, Store
from steppe.errors import ConfigError, DataError

SAMPLE = 8192
"""Of images that are not in memory, so many are read for the statistics."""
STATISTICS = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "inception": ((0.5,) * 3, (0.5,) * 3),
    "efficientnet_lite": ((127 / 255,) * 3, (128 / 255,) * 3),
}
"""Mean and standard deviation that well-known weights were trained with, of pixels from 0 to 1."""


@dataclass(frozen=True)
class Split:
    """Images (N, C, H, W) and their labels (N,) as int64.

    Images are uint8 in memory, or in a `Store` on the disk that gives them by number; a split of a store holds `rows`,
    which of the store's images are its own. The 2-D toys are floats, (N, 2, 1, 1). Images that were read from files
    know these files' fingerprint as their `origin` and a number for each file, and in memory too which are theirs.
    """

    store: torch.Tensor | Store
    labels: torch.Tensor
    rows: torch.Tensor | None = None
    origin: str | None = None
    digests: np.ndarray | None = None

    def __len__(self) -> int:
        """The number of images."""
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image as it is kept."""
        _, channels, height, width = self.store.shape
        return channels, height, width

    @property
    def images(self) -> torch.Tensor:
        """All images in memory: those of a store are read."""
        if isinstance(self.store, torch.Tensor):
            return self.store
        return self.pick(np.arange(len(self)))

    @property
    def in_memory(self) -> bool:
        """Whether the images are a tensor, and not on the disk."""
        return isinstance(self.store, torch.Tensor)

    def pick(self, indices: np.ndarray | torch.Tensor | slice) -> torch.Tensor:
        """The images at `indices`, as they are kept."""
        if isinstance(self.store, torch.Tensor):
            return self.store[indices]
        assert self.rows is not None
        return self.store.fetch(self.rows[indices].numpy())

    def take(self, indices: np.ndarray | torch.Tensor) -> Split:
        """The split of the images at `indices`, in that order; nothing is read from the disk."""
        picked = torch.as_tensor(indices)
        store = self.store[picked] if isinstance(self.store, torch.Tensor) else self.store
        rows = None if self.rows is None else self.rows[picked]
        return Split(store, self.labels[picked], rows, self.origin, self.digests)

    def join(self, other: Split) -> Split:
        """The images of both splits, those of `other` last."""
        labels = torch.cat([self.labels, other.labels])
        known = self.rows is not None and other.rows is not None
        rows = torch.cat([self.rows, other.rows]) if known else None  # type: ignore[list-item]
        if not self.in_memory and self.store is other.store:
            return Split(self.store, labels, rows, self.origin, self.digests)
        return Split(torch.cat([self.images, other.images]), labels, rows, self.origin, self.digests)

    def fingerprints(self) -> dict[str, str]:
        """What the images are: their `pixels` where they are in memory, their `files`' names and sizes where known."""
        found = {}
        if self.in_memory:
            found["pixels"] = fingerprint_pixels(self)
        if self.digests is not None and self.rows is not None:
            own = np.ascontiguousarray(self.digests[self.rows.numpy()])
            found["files"] = hashlib.sha256(own.tobytes() + self.labels.contiguous().numpy().tobytes()).hexdigest()[:16]
        return found

    def to(self, device: torch.device | str) -> Split:
        """The same split on `device`, images and all."""
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
    """A divided data set. The test split is for one look, at the very end.

    Images are kept at the resolution of the source and brought to `size` batch by batch.
    """

    name: str
    classes: tuple[str, ...]
    train: Split
    val: Split
    test: Split
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fingerprint: str
    """of the pixels where they are in memory, else of the files"""
    size: int | None = None
    files: str | None = None
    """fingerprint of the files the images were read from, wherever they are kept"""
    wrong_labels: int = 0
    """how many training labels `data.label_noise` has replaced"""

    @property
    def image_size(self) -> int:
        """The side of the square images a model sees, in pixels."""
        return self.size or self.train.shape[-1]

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for colour."""
        return self.train.shape[0]

    def learn_from_val(self) -> Dataset:
        """The same data with the validation images moved to the training images; the statistics stay."""
        nothing = torch.empty(0, dtype=torch.int64)
        return replace(self, train=self.train.join(self.val), val=self.val.take(nothing))

    @property
    def examples(self) -> dict[str, int]:
        """How many images each split has."""
        return {"train": len(self.train), "val": len(self.val), "test": len(self.test)}

    def describe(self) -> dict[str, object]:
        """What `data.json` of a run folder says."""
        return {
            "name": self.name,
            "classes": list(self.classes),
            "image_size": self.image_size,
            "stored_size": self.train.shape[-1],
            "channels": self.channels,
            "examples": self.examples,
            "mean": list(self.mean),
            "std": list(self.std),
            "fingerprint": self.fingerprint,
            **({"files": self.files} if self.files else {}),
            **({"wrong_labels": self.wrong_labels} if self.wrong_labels else {}),
            "splits": {name: getattr(self, name).fingerprints() for name in self.examples},
        }


def divide(source: Source, config: DataConfig) -> Dataset:
    """Carve out the splits the source lacks, stratified by class and seeded, and take the statistics."""
    train, val, test = source.train, source.val, source.test
    _check_enough(source, config.name)
    rng = np.random.default_rng(config.split_seed)
    if test is None:
        train, test = stratify(train, config.test_fraction, rng)
    if val is None:
        train, val = stratify(train, config.val_fraction, rng)
    if config.fraction is not None:
        train = take_fraction(train, config.fraction, config.split_seed)
    wrong = 0
    if config.label_noise is not None:
        train, wrong = replace_labels(train, config.label_noise, len(source.classes), config.split_seed)
    own = config.statistics in (None, "own")
    mean, std = _statistics(train) if own else STATISTICS[str(config.statistics)]
    if len(mean) != train.shape[0]:
        what = f"the statistics {config.statistics!r} are of colour images, and {config.name!r} has {train.shape[0]} "
        fix = "set statistics to own: then the training images' own are taken"
        raise ConfigError(what + "channel(s)", where="data.statistics", fix=fix)
    size = None if config.image_size == train.shape[-1] else config.image_size
    files = fingerprint_files(train, val, test)
    fingerprint = files if files and not train.in_memory else fingerprint_pixels(train, val, test)
    return Dataset(config.name, source.classes, train, val, test, mean, std, fingerprint, size, files, wrong)


def _check_enough(source: Source, name: str) -> None:
    """Every class needs an image in each of the splits that are carved out, and one to learn from."""
    wanting = [split for split in ("val", "test") if getattr(source, split) is None]
    counts = np.bincount(source.train.labels.numpy(), minlength=len(source.classes))
    for label in np.flatnonzero(counts < 1 + len(wanting)):
        what = f"class {source.classes[label]!r} has {counts[label]} image(s): too few to divide"
        fix = f"it takes {1 + len(wanting)} at least; or bring separate train, val and test folders"
        raise DataError(what, where=name, fix=fix)


def stratify(split: Split, fraction: float, rng: np.random.Generator) -> tuple[Split, Split]:
    """Divide a split into (rest, part): `fraction` of every class, at least one image on either side."""
    labels = split.labels.numpy()
    rest, part = [], []
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        count = min(max(1, round(fraction * len(members))), len(members) - 1)
        part.append(members[:count])
        rest.append(members[count:])
    return split.take(np.sort(np.concatenate(rest))), split.take(np.sort(np.concatenate(part)))


def take_fraction(split: Split, fraction: float, seed: int) -> Split:
    """Keep `fraction` of every class, at least one image; a smaller fraction's images are among a larger one's."""
    labels = split.labels.numpy()
    kept = []
    for label in np.unique(labels):
        rng = np.random.default_rng(derive_seed(seed, "fraction", int(label)))
        members = rng.permutation(np.flatnonzero(labels == label))
        kept.append(members[: max(1, round(fraction * len(members)))])
    return split.take(np.sort(np.concatenate(kept)))


def replace_labels(split: Split, share: float, classes: int, seed: int) -> tuple[Split, int]:
    """Give a share of the images the label of another class, each other class with equal probability.

    Args:
        split: the images; they stay as they are.
        share: of the images, between 0 and 1; at least one label is replaced.
        classes: number of classes, 2 or more.
        seed: of the draw.

    Returns:
        The split with wrong labels, and how many are wrong.
    """
    rng = np.random.default_rng(derive_seed(seed, "label noise"))
    chosen = rng.permutation(len(split))[: max(1, round(share * len(split)))]
    labels = split.labels.numpy().copy()
    labels[chosen] = (labels[chosen] + rng.integers(1, classes, len(chosen))) % classes
    return replace(split, labels=torch.from_numpy(labels)), len(chosen)


def take_about(split: Split, count: int, seed: int) -> Split:
    """About `count` images, the same share of every class and at least one, or all where there are not more."""
    return split if len(split) <= count else take_fraction(split, count / len(split), seed)


def _statistics(split: Split) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, from its histogram: exact, and small in memory.

    Of images on the disk, an evenly spaced sample is read.
    """
    if split.in_memory or len(split) <= SAMPLE:
        images = split.images
    else:
        images = split.pick(np.linspace(0, len(split) - 1, SAMPLE).astype(np.int64))
    if images.is_floating_point():
        flat = images.double().transpose(0, 1).flatten(1)
        spread = flat.std(1, correction=0).clamp_min(1e-3)
        return tuple(flat.mean(1).tolist()), tuple(spread.tolist())
    values = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in range(images.shape[1]):
        counts = torch.bincount(images[:, channel].reshape(-1), minlength=256).to(torch.float64)
        share = counts / counts.sum()
        mean = (share * values).sum()
        means.append(mean.item())
        stds.append(max((share * (values - mean) ** 2).sum().sqrt().item(), 1e-3))
    return tuple(means), tuple(stds)


def fingerprint_pixels(*splits: Split) -> str:
    """A fingerprint of pixels and labels, the same however the images are kept; those on the disk are all read."""
    digest = hashlib.sha256()
    for split in splits:
        digest.update(str((len(split), *split.shape)).encode())
        for start in range(0, len(split), CHUNK):
            digest.update(split.pick(slice(start, start + CHUNK)).contiguous().numpy().data)
        digest.update(split.labels.contiguous().numpy().data)
    return digest.hexdigest()[:16]


def fingerprint_files(*splits: Split) -> str | None:
    """A fingerprint of the files that images came from, and of labels; None where they came from no files."""
    digest = hashlib.sha256()
    for split in splits:
        if split.origin is None or split.rows is None:
            return None
        digest.update(split.origin.encode())
        digest.update(split.rows.contiguous().numpy().data)
        digest.update(split.labels.contiguous().numpy().data)
    return digest.hexdigest()[:16]
