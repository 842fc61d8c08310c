"""Features of a frozen network for all images of a split: computed once, and kept on disk for later runs.

A cached part is found by what it was computed from: the images' pixels, how they are normalised and resized, the
weights and the precision. Parts hold a few hundred images each, so a process that is killed loses seconds. A disk that
is full or not writable costs the cache, not the run.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from steppe.config import RunConfig, cache_folder
from steppe.data import Dataset, Split, in_order
from steppe.data.dataset import fingerprint_pixels
from steppe.errors import ConfigError, RunError
from steppe.measuring import ignore, in_smaller_chunks
from steppe.models.folding import fold_batchnorm
from steppe.models.side_by_side import SideBySide, split_name
from steppe.models.weights import weights_sha256
from steppe.plain_files import check_plain
from steppe.runs import write_atomically

PART = 512
"""Images in a file of the cache."""
LIMIT = 4 * 2**30
"""Bytes of the cache; beyond them the files that were used longest ago are removed."""
VERSION = 2
"""Counts changes of the computation: earlier files are not read."""


@dataclass(frozen=True)
class Extractor:
    """One frozen network without its head, what its features are identified by, and how many they are."""

    network: nn.Module
    name: str
    identity: str
    width: int
    scale: Tensor | None = None
    shift: Tensor | None = None

    def __call__(self, images: Tensor) -> Tensor:
        """Return the features (B, D) of normalised images."""
        if self.scale is not None and self.shift is not None:
            images = torch.addcmul(self.shift, images, self.scale)
        dtype = next(self.network.parameters()).dtype
        return self.network(images.to(dtype, memory_format=torch.channels_last)).float()


def pays_in_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies matrices of bfloat16 in hardware."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    flags = Path("/proc/cpuinfo")
    try:
        return "avx512_bf16" in flags.read_text() or "amx_bf16" in flags.read_text()
    except OSError:
        return False


def make_extractors(
    model: nn.Module, config: RunConfig, device: torch.device, channels: int, side: int
) -> list[Extractor]:
    """Take a network, or several side by side, apart into feature extractors in the precision of the run.

    Args:
        model: with the pretrained weights; it is left as it is.
        config: of the run.
        device: where features are computed.
        channels: of the images.
        side: of an image, in pixels.

    Raises:
        ConfigError: the network's head is not a single linear layer.
    """
    assert config.model.weights is not None
    dtype = torch.bfloat16 if config.precision == "bfloat16" else torch.float32
    names, sources = split_name(config.model.name), split_name(config.model.weights)
    beside, head = isinstance(model, SideBySide), find_head(model, config.model.name)
    networks = list(model.parts) if beside else [_without_head(model)]  # type: ignore[arg-type]
    found = []
    for index, (network, name, source) in enumerate(zip(networks, names, sources, strict=True)):
        own = copy.deepcopy(network).eval().requires_grad_(False)
        own = fold_batchnorm(own, (channels, side))
        own = own.to(device, dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
        identity = f"{VERSION} {name} {weights_sha256(source, name)} {dtype} {device.type}"
        scale, shift = (model.scale[index], model.shift[index]) if index else (None, None)  # type: ignore[index]
        width = network.head_hidden_size if beside else head.in_features
        found.append(Extractor(own, name, identity, width, scale, shift))  # type: ignore[arg-type]
    return found


def find_head(model: nn.Module, name: str) -> nn.Linear:
    """Return the linear layer on a network's features.

    Args:
        model: of timm's kind, or networks side by side.
        name: of the model, for the error.

    Raises:
        ConfigError: its head is not a single linear layer.
    """
    head = model.get_classifier() if hasattr(model, "get_classifier") else None  # type: ignore[operator]
    if not isinstance(head, nn.Linear) or not hasattr(model, "num_features"):
        what = f"{name!r} has no single linear layer as its head"
        raise ConfigError(what, where="model.mode", fix="choose mode frozen, or another model")
    return head


def _without_head(model: nn.Module) -> nn.Module:
    headless = copy.deepcopy(model)
    headless.reset_classifier(0)  # type: ignore[operator]
    return headless


class FeatureCache:
    """Features of splits by one or several extractors."""

    def __init__(
        self,
        extractors: list[Extractor],
        dataset: Dataset,
        device: torch.device,
        folder: Path | None = None,
        *,
        workers: int = 0,
        tell: Callable[[int], None] = ignore,
        say: Callable[[str], None] = ignore,
    ) -> None:
        """Prepare; nothing is computed yet.

        Args:
            extractors: their features are concatenated.
            dataset: whose statistics and size images are brought to.
            device: where to compute.
            folder: of all caches, see `cache_folder`.
            workers: processes that read images which are not in memory.
            tell: takes the number of images that were computed, or found, since the call before.
            say: told once that nothing can be kept.
        """
        self.extractors, self.dataset, self.device, self.workers = extractors, dataset, device, workers
        self.folder: Path | None = cache_folder(folder) / "features"
        self.tell, self.say = tell, say

    def features(self, split: Split, *, mirrored: bool = False) -> Tensor:
        """Return the features (N, D) of every image of a split, on the CPU in half precision.

        Args:
            split: the images.
            mirrored: of the images seen in a mirror.
        """
        pixels = fingerprint_pixels(split)
        return torch.cat([self._of(one, split, pixels, mirrored) for one in self.extractors], 1)

    def _of(self, extractor: Extractor, split: Split, pixels: str, mirrored: bool) -> Tensor:
        mean, std = self.dataset.mean, self.dataset.std
        seen = f"{pixels} {mean} {std} {self.dataset.image_size} {mirrored}"
        key = hashlib.sha256(f"{extractor.identity} {seen}".encode()).hexdigest()[:24]
        parts = []
        for start in range(0, len(split), PART):
            rows = torch.arange(start, min(start + PART, len(split)))
            name = f"{key}-{start // PART:05d}.safetensors"
            found = self._read(name, len(rows), extractor.width)
            if found is None:
                found = self._compute(extractor, split.take(rows), mirrored)
                self._write(name, found)
            else:
                self.tell(len(rows))
            parts.append(found)
        return torch.cat(parts)

    @torch.no_grad()
    def _compute(self, extractor: Extractor, split: Split, mirrored: bool) -> Tensor:
        told = 0

        def compute(size: int) -> Tensor:
            nonlocal told
            parts, done = [], 0
            for images, _ in in_order(split, self.dataset, batch_size=size, device=self.device, workers=self.workers):
                parts.append(extractor(images.flip(3) if mirrored else images).half().cpu())
                done += len(images)
                self.tell(max(0, done - told))
                told = max(told, done)
            return torch.cat(parts)

        size = 256 if self.device.type == "cuda" else max(8, 2**18 // self.dataset.image_size**2)
        return in_smaller_chunks(compute, size)

    def _read(self, name: str, count: int, width: int) -> Tensor | None:
        """Read a part; None where it is not there or damaged."""
        if self.folder is None:
            return None
        path = self.folder / name
        try:
            check_plain(path)
            found = load_file(path)["features"]
            path.touch()  # the least recently used goes first
        except (OSError, SafetensorError, KeyError):
            return None
        return found if found.dtype == torch.float16 and found.shape == (count, width) else None

    def _write(self, name: str, features: Tensor) -> None:
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / name, save({"features": features.contiguous()}))
            _prune(self.folder)
        except (OSError, RunError) as error:
            self.say(f"features cannot be kept in {self.folder} ({error}): later runs compute them again")
            self.folder = None


def _prune(folder: Path) -> None:
    """Remove the files that were used longest ago, until the rest is within the limit."""
    files = sorted(((file.stat(), file) for file in folder.glob("*.safetensors")), key=lambda one: -one[0].st_mtime)
    total = 0
    for status, file in files:
        total += status.st_size
        if total > LIMIT:
            file.unlink(missing_ok=True)
