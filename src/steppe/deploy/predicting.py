"""What a trained network says about new pictures: read as its training images were, each class with a probability."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from steppe.data import Normalise
from steppe.data.resample import resize
from steppe.data.storage import decoding
from steppe.deploy.images import Picture, Skipped, read_picture
from steppe.deploy.trained import Trained
from steppe.errors import ConfigError
from steppe.geometry.attention import attention_maps, enlarge
from steppe.measuring import in_smaller_chunks

THREADS = 4
"""So many files at most are decoded at a time: a picture of the largest size allowed takes 270 MB."""


@dataclass(frozen=True)
class Prediction:
    """The likeliest classes of a picture, the likeliest first, and the probability of each."""

    name: str
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]

    @property
    def label(self) -> str:
        """The likeliest class."""
        return self.classes[0]

    @property
    def probability(self) -> float:
        """Its probability."""
        return self.probabilities[0]


def predict_pictures(
    trained: Trained,
    pictures: Sequence[Picture],
    *,
    temperature: float = 1.0,
    top: int = 5,
    batch_size: int = 64,
    odd_images: str | None = None,
    tell: Callable[[int], None] = lambda done: None,
) -> Iterator[Prediction | Skipped]:
    """Classify pictures, in their order; one that cannot be read is given back with the reason.

    Args:
        trained: the network.
        pictures: what to classify.
        temperature: the logits are divided by it; see `steppe.deploy.calibration`.
        top: so many classes of each picture, or all where there are fewer.
        batch_size: pictures at a time; fewer where memory runs out.
        odd_images: "refuse" or "convert" files that are not 8-bit RGB or grey; by default as the run's data.
        tell: takes the number of pictures done.

    Raises:
        ConfigError: the network does not classify pictures.
    """
    read = _reader(trained, odd_images)
    normalise = Normalise(trained.images, trained.device)
    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
        for start in range(0, len(pictures), batch_size):
            part = pictures[start : start + batch_size]
            with decoding():
                found = list(pool.map(read, part))
            pixels = [one for one in found if isinstance(one, np.ndarray)]
            answers = iter(_answer(trained, normalise, pixels, temperature, top) if pixels else ())
            for picture, one in zip(part, found, strict=True):
                answer = one if isinstance(one, Skipped) else Prediction(picture.name, *next(answers))
                if isinstance(answer, Prediction) and not math.isfinite(answer.probabilities[0]):
                    answer = Skipped(picture.name, "the network's answer is not a finite number")
                yield answer
            tell(start + len(part))


def look_at(
    trained: Trained, pictures: Sequence[Picture], *, odd_images: str | None = None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Where a vision transformer looks in pictures: these as it sees them, and a map of each of its two kinds.

    Args:
        trained: the network.
        pictures: that can be read.
        odd_images: as in `predict_pictures`.

    Returns:
        The pictures, (N, C, S, S) of uint8; and "last layer" and "rollout" -> maps (N, S, S) in [0, 1].

    Raises:
        ConfigError: the network does not classify pictures.
        MeasureError: it has no attention over the whole picture.
    """
    read = _reader(trained, odd_images)
    with decoding():
        found = [one for one in map(read, pictures) if isinstance(one, np.ndarray)]
    size = trained.images.image_size
    batch = torch.from_numpy(np.stack(found))
    seen = Normalise(trained.images, trained.device)(batch.to(trained.device))
    maps = {name: attention_maps(trained.model, seen, rollout=name == "rollout") for name in ("last layer", "rollout")}
    shown = resize(batch, size).round().clamp(0, 255).byte()
    return shown.numpy(), {name: enlarge(some, size).cpu().numpy() for name, some in maps.items()}


def _reader(trained: Trained, odd_images: str | None) -> Callable[[Picture], np.ndarray | Skipped]:
    """Reads pictures as the network's training images were read."""
    if not trained.takes_pictures:
        what = f"this network learned points in the plane ({trained.images.name}), not pictures"
        raise ConfigError(what, where=str(trained.folder))
    images, odd = trained.images, odd_images or trained.odd_images
    return partial(read_picture, size=images.train.shape[-1], channels=images.channels, odd_images=odd)


def _answer(
    trained: Trained, normalise: Normalise, pixels: list[np.ndarray], temperature: float, top: int
) -> Iterator[tuple[tuple[str, ...], tuple[float, ...]]]:
    batch = torch.from_numpy(np.stack(pixels))

    @torch.no_grad()
    def compute(size: int) -> Tensor:
        parts = [trained.model(normalise(some.to(trained.device))).cpu() for some in batch.split(size)]
        return torch.cat(parts)

    probabilities = (in_smaller_chunks(compute, len(batch)).double() / temperature).softmax(1)
    classes = trained.images.classes
    values, places = probabilities.topk(min(top, len(classes)), dim=1)
    for numbers, row in zip(values.tolist(), places.tolist(), strict=True):
        yield tuple(classes[place] for place in row), tuple(numbers)
