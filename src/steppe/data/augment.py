"""What happens to a batch between the store and the model: crops, policies, resizing, normalisation, mixing.

Everything is a function of the images and of uniform numbers drawn beforehand on the CPU (`Draws`), one row for each
image of the epoch: the same batches on every device, nothing random carried over, fixed shapes, and no question to
the host, so a step can be captured or compiled with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from steppe.config import AugmentConfig, derive_seed
from steppe.data.dataset import Dataset
from steppe.data.policies import AutoAugment, RandAugment, TrivialAugment
from steppe.data.resample import resize, resize_boxes
from steppe.errors import ConfigError

ATTEMPTS = 10
"""A box of random shape that does not fit is drawn again, so many times in all."""
CROP, ERASING = 2 * ATTEMPTS + 2, 2 * ATTEMPTS + 3
"""Numbers that the box of a crop takes, and one that is erased."""
BLOCK = 2**22
"""About so many numbers are drawn at a time."""
BELOW_ONE = 1 - 2.0**-20
"""So that a draw times n stays under n after rounding: it becomes an index."""


class Normalise:
    """Turn images into floats; by the training set's own statistics, mean 0 and deviation 1 in every channel."""

    def __init__(self, dataset: Dataset, device: torch.device) -> None:
        """Keep the statistics on `device`."""
        shape = (1, -1, 1, 1)
        self.mean = torch.tensor(dataset.mean, dtype=torch.float32, device=device).view(shape)
        self.std = torch.tensor(dataset.std, dtype=torch.float32, device=device).view(shape)
        self.size = dataset.size
        self.top = 1.0 if _is_float(dataset) else 255.0

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Resize and normalise a batch; enlarging commutes with normalising, which then touches fewer pixels."""
        size = self.size or images.shape[-1]
        if size < images.shape[-1]:
            images = resize(images, size)
        images = (images / self.top).sub_(self.mean).div_(self.std)
        return resize(images, size)


class Augment:
    """The changes of `AugmentConfig`, then normalisation, then mixing."""

    def __init__(self, dataset: Dataset, config: AugmentConfig, device: torch.device) -> None:
        """Work out how many numbers each image needs."""
        unmixed = config.model_copy(update={"mixup": 0.0, "cutmix": 0.0, "mixup_probability": None})
        if _is_float(dataset) and unmixed != AugmentConfig():
            raise ConfigError(f"{dataset.name!r} holds points, not pictures: only mixup changes them", where="augment")
        self.config, self.classes, self.size, self.device = config, len(dataset.classes), dataset.image_size, device
        self._side, self._count = dataset.train.shape[-1], len(dataset.train)
        if config.crop_reflect and config.crop_padding >= self._side:
            what = f"crop_padding reflects {config.crop_padding} pixels, and the images have {self._side}"
            raise ConfigError(what, where="augment.crop_padding", fix=f"take at most {self._side - 1}")
        self.normalise = Normalise(dataset, device)
        at = self.size if config.resized_crop else self._side
        self._policy: RandAugment | AutoAugment | TrivialAugment | None = None
        if config.randaugment:
            magnitude = 9 if config.randaugment_magnitude is None else config.randaugment_magnitude
            self._policy = RandAugment(config.randaugment, magnitude, at, device)
        elif config.autoaugment:
            self._policy = AutoAugment(config.autoaugment, at, device)
        elif config.trivialaugment:
            self._policy = TrivialAugment(at, device)
        self.columns = (
            (2 if config.crop_padding else 0)
            + (CROP if config.resized_crop else 0)
            + (1 if config.flip else 0)
            + (self._policy.columns if self._policy else 0)
            + (6 if config.colour_jitter else 0)
            + (2 if config.cutout else 0)
            + (ERASING if config.erasing else 0)
        )

    def draws(self, batch_size: int, seed: int, view: int = 0) -> Draws:
        """The numbers for batches of `batch_size`, as a call takes them."""
        place = 2 if self.config.crop_padding else 4 if self.config.resized_crop else 0
        mirrors = (place, self._count) if self.config.alternate_flip else None
        settings = (self.config, self.columns, batch_size, seed, self.device, view, self._prepare, mirrors)
        return Draws(*settings, batches=self._count // batch_size)

    def _prepare(self, draws: torch.Tensor) -> torch.Tensor:
        """Do for many batches at once what depends on the numbers alone: those of a box become the box."""
        if self.config.resized_crop:
            boxes = draw_boxes(draws[..., :CROP], self.config.resized_crop, self._side)
            draws = torch.cat([boxes, draws[..., CROP:]], -1)
        if self.config.erasing:
            boxes = draw_erased_boxes(draws[..., -ERASING:], self.config.erasing, self.size)
            draws = torch.cat([draws[..., :-ERASING], boxes], -1)
        return draws

    def __call__(
        self, images: torch.Tensor, labels: torch.Tensor, draws: torch.Tensor, mixing: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Change a batch.

        Args:
            images: as they are kept, (B, C, H, W).
            labels: (B,).
            draws: what `draws` drew for this batch, a row for each image.
            mixing: what `draws` says about this batch's mixing.

        Returns:
            Normalised images of the data set's size, and labels, or (B, classes) probabilities if images are mixed.
        """
        config, taken = self.config, 0

        def take(count: int) -> torch.Tensor:
            nonlocal taken
            taken += count
            return draws[:, taken - count : taken]

        places = take(2) if config.crop_padding else None
        box = take(4) if config.resized_crop else None
        mirrored = take(1)[:, 0] < 0.5 if config.flip else None
        if box is not None:
            images = resize_boxes(images, box, self.size, mirrored)
        elif places is not None or mirrored is not None:
            images = shift(images, config.crop_padding, places, mirrored, reflect=config.crop_reflect)
        if self._policy is not None:
            if images.is_floating_point():
                images = images.round().clamp(0, 255).to(torch.uint8)
            images = self._policy(images, take(self._policy.columns))
        if config.colour_jitter:
            images = jitter_colours(images, config.colour_jitter, take(6))
        images = self.normalise(images)
        if config.cutout:
            images = cut_out(images, config.cutout, take(2))
        if config.erasing:
            start, lengths = take(4).split(2, 1)
            images = images.masked_fill(_box(start, start + lengths, self.size)[:, None], 0.0)
        if config.mixes:
            sure = (labels[:, None] == torch.arange(self.classes, device=labels.device)).float()
            return mix(images, sure, mixing, cutmix=config.cutmix > 0)
        return images, labels


class Draws:
    """The uniform numbers of an epoch's batches, by (seed, epoch, index): drawn on the CPU, a block at a time."""

    def __init__(
        self,
        config: AugmentConfig,
        columns: int,
        batch_size: int,
        seed: int,
        device: torch.device,
        view: int = 0,
        prepare: Callable[[torch.Tensor], torch.Tensor] | None = None,
        mirrors: tuple[int, int] | None = None,
        batches: int | None = None,
    ) -> None:
        """Draw for batches of `batch_size`, `columns` numbers an image; move them to `device` and `prepare` them.

        With `mirrors`, the prepared column that decides on mirroring and the number of images, they alternate. No more
        numbers are drawn than an epoch of so many `batches` needs, unless those of mixing follow them in the stream.
        """
        self.prepare = prepare or (lambda draws: draws)
        self.config, self.columns, self.batch_size, self.device = config, columns, batch_size, device
        self.seed = derive_seed(seed, "augment", *([view] if view else []))
        self._mirrors = mirrors
        if mirrors:
            coins = np.random.Generator(np.random.Philox(derive_seed(self.seed, "mirror"))).random(mirrors[1])
            self._coins = self._move((coins < 0.5).astype(np.float32))
        self._batches = max(1, min(512, BLOCK // max(1, batch_size * columns)))
        self._needed = self._batches if config.mixes or not batches else min(self._batches, batches)
        self._block: tuple[int, int] | None = None
        self._draws = self._mixing = torch.empty(0)

    def of(self, epoch: int, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Give batch `index` of `epoch` its numbers: (batch size, …), and (4,) for its mixing, if any."""
        block, place = divmod(index, self._batches)
        if self._block != (epoch, block):
            rng = np.random.Generator(np.random.Philox(derive_seed(self.seed, epoch, block)))
            draws = rng.random((self._needed, self.batch_size, self.columns), dtype=np.float32)
            draws.clip(max=BELOW_ONE, out=draws)
            self._draws, self._mixing = self.prepare(self._move(draws)), self._move(self._draw_mixing(rng))
            self._block = epoch, block
        return self._draws[place], self._mixing[place]

    def alternate(self, draws: torch.Tensor, picked: torch.Tensor, epoch: int) -> torch.Tensor:
        """Let the draws of the images `picked` mirror each of them in every second epoch, if they are to alternate.

        Half of the images, drawn by the seed, begin with the first epoch (Jordan, arXiv:2404.00498).
        """
        if self._mirrors is None:
            return draws
        column, _ = self._mirrors
        mirrored = self._coins[picked, None] if epoch % 2 == 0 else 1 - self._coins[picked, None]
        return torch.cat([draws[:, :column], 1 - mirrored, draws[:, column + 1 :]], 1)

    def _draw_mixing(self, rng: np.random.Generator) -> np.ndarray:
        """One row a batch: the first image's share in mixup and in CutMix (1: not this time), and the box's centre."""
        config, count = self.config, self._batches
        if not config.mixes:
            return np.empty((count, 0), np.float32)
        out = np.ones((count, 4), np.float32)
        touched = rng.random(count) < (config.mixup_probability or 1.0)
        pasted = touched & (rng.random(count) < (0.5 if config.mixup else 1.0)) & (config.cutmix > 0)
        for column, alpha, used in ((0, config.mixup, touched & ~pasted), (1, config.cutmix, pasted)):
            if alpha:
                out[:, column] = np.where(used, rng.beta(alpha, alpha, count), 1.0)
        out[:, 2:] = rng.random((count, 2))
        return out

    def _move(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device)


def shift(
    images: torch.Tensor,
    padding: int,
    draws: torch.Tensor | None,
    mirrored: torch.Tensor | None = None,
    *,
    reflect: bool = False,
) -> torch.Tensor:
    """Pad with black or with the reflected image, crop back at a random place and mirror, in one gather.

    Args:
        images: (B, C, H, W).
        padding: pixels on every side.
        draws: (B, 2) uniform numbers for the place; None for no padding.
        mirrored: (B,) of bool, which to mirror.
        reflect: fill the padding with what lies inside the border, mirrored at it.
    """
    count, channels, height, width = images.shape
    row = torch.arange(height, device=images.device).expand(count, height)
    column = torch.arange(width, device=images.device).expand(count, width)
    if mirrored is not None:
        column = torch.where(mirrored[:, None], column.flip(1), column)
    if draws is not None:
        place = (draws * (2 * padding + 1)).long()
        row, column = row + place[:, :1], column + place[:, 1:]
        if reflect:
            row, column = _reflect(row - padding, height), _reflect(column - padding, width)
        else:
            images = F.pad(images, (padding, padding, padding, padding))
    source = row[:, :, None] * images.shape[-1] + column[:, None, :]
    index = source.view(count, 1, -1).expand(-1, channels, -1)
    return images.flatten(2).gather(2, index).view(count, channels, height, width)


def _reflect(index: torch.Tensor, length: int) -> torch.Tensor:
    """Reflect indices outside an axis at its first and last pixel."""
    last = length - 1
    return last - (last - index.abs()).abs()


def draw_boxes(draws: torch.Tensor, smallest: float, side: int) -> torch.Tensor:
    """Draw an Inception-style crop of every square image, (…, 4): top, left, height, width in whole pixels.

    Area uniform from `smallest` to all of the image, aspect ratio log-uniform from 3/4 to 4/3; of ten attempts the
    first that lies inside counts, else the whole image (Szegedy et al., arXiv:1409.4842, as in torchvision).

    Args:
        draws: (…, 22) uniform numbers.
        smallest: share of the area.
        side: of the images, in pixels.
    """
    size, found = _draw_lengths(draws, (smallest, 1.0), 4 / 3, side, side)
    size = torch.where(found, size, float(side))
    return torch.cat([(draws[..., -2:] * (side - size + 1)).floor(), size], -1)


def draw_erased_boxes(draws: torch.Tensor, share: float, side: int) -> torch.Tensor:
    """Draw the box that is erased in each image, (…, 4): top, left, height, width; the last two are 0 where none is.

    Area uniform from 2 % to a third of the image, aspect ratio log-uniform from 0.3 to 1/0.3, shorter than the image
    on both axes; where none of ten attempts is, nothing is erased (Zhong et al., arXiv:1708.04896, as in timm).

    Args:
        draws: (…, 23) uniform numbers; the first decides whether.
        share: of the images in which a box is erased.
        side: of the images, in pixels.
    """
    size, found = _draw_lengths(draws[..., 1:], (0.02, 1 / 3), 10 / 3, side, side - 1)
    size = torch.where(found & (draws[..., :1] < share), size, 0.0)
    return torch.cat([(draws[..., -2:] * (side - size + 1)).floor(), size], -1)


def _draw_lengths(
    draws: torch.Tensor, areas: tuple[float, float], aspect: float, side: int, longest: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw the height and width of a box, (…, 2), and whether one of the attempts fits, (…, 1)."""
    least, most = areas
    area = (least + (most - least) * draws[..., :ATTEMPTS]) * side**2
    ratio = torch.exp((2 * draws[..., ATTEMPTS : 2 * ATTEMPTS] - 1) * math.log(aspect))
    width, height = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (width > 0) & (width <= longest) & (height > 0) & (height <= longest)
    first = fits.int().argmax(-1, keepdim=True)
    size = torch.cat([height.gather(-1, first), width.gather(-1, first)], -1)
    return size, fits.any(-1, keepdim=True)


def jitter_colours(images: torch.Tensor, strength: float, draws: torch.Tensor) -> torch.Tensor:
    """Change brightness, contrast and saturation, in an order of its own for each image: torchvision's ColorJitter.

    Args:
        images: (B, C, H, W), values from 0 to 255.
        strength: each factor is uniform from 1 - strength, but not below 0, to 1 + strength.
        draws: (B, 6) uniform numbers: three whose ranks are the order, three factors.

    Returns:
        Floats from 0 to 255.
    """
    order = draws[:, :3].argsort(1)
    least = max(0.0, 1 - strength)
    factors = (least + (1 + strength - least) * draws[:, 3:]).gather(1, order)
    images = images.float()
    for kind, factor in zip(order.unbind(1), factors.unbind(1), strict=True):
        kind, factor = kind.view(-1, 1, 1, 1), factor.view(-1, 1, 1, 1)
        grey = images
        if images.shape[1] == 3:
            red, green, blue = images.unbind(1)
            grey = (0.2989 * red + 0.587 * green + 0.114 * blue)[:, None]
        dull = torch.where(kind == 1, grey.mean((1, 2, 3), keepdim=True), grey) * (kind > 0)
        images = (factor * images + (1 - factor) * dull).clamp(0, 255)
    return images


def cut_out(images: torch.Tensor, side: int, draws: torch.Tensor) -> torch.Tensor:
    """Set a square around a random pixel to the mean, 0, as much of it as lies inside (DeVries, arXiv:1708.04552)."""
    start = (draws * images.shape[-1]).floor() - side // 2
    return images.masked_fill(_box(start, start + side, images.shape[-1])[:, None], 0.0)


def mix(
    images: torch.Tensor, targets: torch.Tensor, mixing: torch.Tensor, *, cutmix: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mix each image with its neighbour in the batch, and their targets in the same shares.

    mixup: λ x + (1 - λ) x' (Zhang, arXiv:1710.09412); CutMix: a box of x' with 1 - λ of the area, cut off at the
    border, where the targets go by the area that is left (Yun, arXiv:1905.04899).
    """
    share, kept, centre = mixing[0], mixing[1], mixing[2:]
    others, other_targets = images.roll(1, 0), targets.roll(1, 0)
    images = torch.lerp(others, images, share)
    if cutmix:
        side = images.shape[-1]
        half = torch.floor((1 - kept).clamp_min(0).sqrt() * side) / 2
        middle = torch.floor(centre * side)
        inside = _box(torch.floor(middle - half), torch.floor(middle + half), side)
        images = torch.where(inside, others, images)
        share = share * (1 - inside.float().mean())
    return images, torch.lerp(other_targets, targets, share)


def _box(start: torch.Tensor, stop: torch.Tensor, side: int) -> torch.Tensor:
    """Which pixels of a square image, (…, side, side), lie between two corners, (…, 2): row and column."""
    pixel = torch.arange(side, device=start.device)
    inside = (pixel >= start[..., None]) & (pixel < stop[..., None])
    return inside[..., 0, :, None] & inside[..., 1, None, :]


def _is_float(dataset: Dataset) -> bool:
    return isinstance(dataset.train.store, torch.Tensor) and dataset.train.store.is_floating_point()
