"""Batches: chosen, augmented and normalised on the device, from images that live there or are brought in time.

Every batch is a function of (seed, epoch, index): nothing is carried over, so a resumed run sees the same images, on
any device, with any number of worker processes.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch
from torch.utils import data as torch_data

from steppe.config import AugmentConfig, derive_seed
from steppe.data.augment import Augment, Draws, Normalise
from steppe.data.dataset import Dataset, Split
from steppe.data.recorded import Recorded
from steppe.errors import SteppeError

AHEAD = 2
"""So many batches are made ready beforehand, by each worker."""
RECORDED = 2**24
"""Batches of up to so many bytes are made by a recorded graph, which keeps the memory it works in; launching the
operators of larger ones costs little beside their work."""


class Loader:
    """The training batches of a data set, in an order of its own each epoch."""

    def __init__(
        self,
        dataset: Dataset,
        *,
        batch_size: int,
        augment: AugmentConfig,
        seed: int,
        device: torch.device,
        workers: int = 0,
        resident: bool | None = None,
        channels_last: bool = False,
        compile: bool = False,
        record: bool = True,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        """Prepare the batches. Images that do not fill a last batch wait for the next epoch.

        Args:
            dataset: the data.
            batch_size: images in a batch, of all ranks together.
            augment: what happens to them.
            seed: the run's.
            device: where batches are made.
            workers: processes that read images from a store on the disk; 0 reads in a thread of this process.
            resident: keep the images on the device; None does so where they are in memory and fit.
            channels_last: give images in this memory format.
            compile: fuse the augmentation with `torch.compile`.
            record: on CUDA, make batches by replaying a graph; False launches every operator.
            rank: this process's place among `ranks` that share each batch; images are mixed within a share.
            ranks: how many there are.
        """
        self.split = dataset.train
        self.batch_size = min(batch_size, len(self.split))
        self.augment, self.seed, self.device, self.workers = augment, seed, device, workers
        self.resident = _fits(self.split, device) if resident is None else resident
        self._images = self.split.images.to(device) if self.resident else None
        self._labels = self.split.labels.to(device)
        change = Augment(dataset, augment, device)
        self._draws_of = partial(change.draws, self.batch_size, seed)
        self._draws: dict[int, Draws] = {}
        share = self.batch_size // ranks
        self.mine = slice(rank * share, (rank + 1) * share if rank < ranks - 1 else self.batch_size)
        size = 4 * share * dataset.channels * dataset.image_size**2
        self.recorded = record and device.type == "cuda" and size <= RECORDED
        changing = torch.compile(change.__call__) if compile else change
        layout = torch.channels_last if channels_last else torch.contiguous_format
        make = partial(_put_together, changing, layout, self._labels, self._images)
        self._make: Callable[..., tuple[torch.Tensor, ...]] = Recorded(make) if self.recorded else make
        self._order: tuple[int, torch.Tensor] | None = None
        self._next: tuple[int, int] | None = None
        self._stream: Iterator[torch.Tensor] | None = None
        self._streamed_batch: tuple[tuple[int, int], torch.Tensor] | None = None

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return len(self.split) // self.batch_size

    def batch(self, epoch: int, index: int, view: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Make a batch.

        Args:
            epoch: which order of the images.
            index: which batch of it.
            view: the same images are augmented anew for another view, as contrastive learning wants them.

        Returns:
            Normalised images, and labels (B,) of int64, or (B, classes) probabilities when images are mixed.
        """
        picked = self.picked(epoch, index)
        if view not in self._draws:
            self._draws[view] = self._draws_of(view)
        draws, mixing = self._draws[view].of(epoch, index)
        draws = self._draws[view].alternate(draws[self.mine], picked, epoch)
        streamed = [] if self.resident else [self._streamed(epoch, index)]
        images, targets = self._make(picked, draws, mixing, *streamed)
        return images, targets

    def picked(self, epoch: int, index: int) -> torch.Tensor:
        """Which images of the split a batch is made of."""
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, _move(_shuffled(len(self.split), self.seed, epoch), self.device)
        start = index * self.batch_size
        return self._order[1][start + self.mine.start : start + self.mine.stop]

    def _streamed(self, epoch: int, index: int) -> torch.Tensor:
        """Take the next batch of the stream; begin another stream when something else is asked for."""
        if self._streamed_batch is not None and self._streamed_batch[0] == (epoch, index):
            return self._streamed_batch[1]
        if self._next != (epoch, index):
            self._stream = None  # ends the workers of the old one first
            rest = _FromHere(self.seed, len(self.split), self.batch_size, self.mine, epoch, index)
            self._stream = stream(self.split, rest, self.device, self.workers)
        self._next = (epoch, index + 1) if index + 1 < len(self) else (epoch + 1, 0)
        assert self._stream is not None
        self._streamed_batch = (epoch, index), next(self._stream)
        return self._streamed_batch[1]


def _put_together(
    change: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    layout: torch.memory_format,
    labels: torch.Tensor,
    resident: torch.Tensor | None,
    picked: torch.Tensor,
    draws: torch.Tensor,
    mixing: torch.Tensor,
    streamed: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Make the batch of the images `picked`: among those that are resident, or as they were streamed."""
    images = resident.index_select(0, picked) if resident is not None else streamed
    images, targets = change(images, labels.index_select(0, picked), draws, mixing)
    return images.contiguous(memory_format=layout), targets


def _shuffled(count: int, seed: int, epoch: int) -> torch.Tensor:
    shuffler = torch.Generator().manual_seed(derive_seed(seed, "order", epoch))
    return torch.randperm(count, generator=shuffler)


@dataclass(frozen=True)
class _FromHere:
    """The indices of every batch from one on, without end."""

    seed: int
    count: int
    batch_size: int
    mine: slice
    epoch: int
    index: int

    def __iter__(self) -> Iterator[torch.Tensor]:
        epoch, index = self.epoch, self.index
        while True:
            order = _shuffled(self.count, self.seed, epoch)
            for place in range(index, self.count // self.batch_size):
                start = place * self.batch_size
                yield order[start + self.mine.start : start + self.mine.stop]
            epoch, index = epoch + 1, 0


class _Picking(torch_data.Dataset[torch.Tensor | SteppeError]):
    """What a worker process holds: a split, asked for whole batches. Errors for the user travel as they are."""

    def __init__(self, split: Split) -> None:
        self.split = split

    def __getitem__(self, indices: torch.Tensor) -> torch.Tensor | SteppeError:
        try:
            return self.split.pick(indices)
        except SteppeError as error:
            return error


def stream(
    split: Split, indices: Iterable[torch.Tensor], device: torch.device, workers: int = 0
) -> Iterator[torch.Tensor]:
    """Yield the images of each batch of indices on `device`, read beforehand and through pinned memory.

    Images in memory are picked in a thread; those of a store by `workers` processes, if there are to be any. The
    batches come in order, so their number changes nothing.
    """
    pinned = device.type == "cuda"
    if workers and not split.in_memory:
        batches: Iterator[torch.Tensor | SteppeError] = iter(
            torch_data.DataLoader(
                _Picking(split),
                batch_size=None,
                sampler=indices,
                num_workers=workers,
                pin_memory=pinned,
                prefetch_factor=AHEAD,
                multiprocessing_context=_worker_context(),
            )
        )
    else:
        batches = _read_ahead(split, indices, pinned)
    for images in batches:
        if isinstance(images, SteppeError):
            raise images
        yield images.to(device, non_blocking=True)


def _worker_context() -> multiprocessing.context.BaseContext:
    """Start workers from a process that has no threads and no GPU, but has torch imported already."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["steppe.data"])
    return context


def _read_ahead(split: Split, indices: Iterable[torch.Tensor], pinned: bool) -> Iterator[torch.Tensor]:
    def read(some: torch.Tensor) -> torch.Tensor:
        images = split.pick(some)
        return images.pin_memory() if pinned else images

    with ThreadPoolExecutor(1) as pool:
        waiting: deque[Future[torch.Tensor]] = deque()
        for some in indices:
            waiting.append(pool.submit(read, some))
            if len(waiting) > AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def in_order(
    split: Split, dataset: Dataset, *, batch_size: int, device: torch.device, workers: int = 0
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield a split's normalised batches as they stand, the last one perhaps smaller: for measuring."""
    normalise = Normalise(dataset, device)
    if split.in_memory:
        for start in range(0, len(split), batch_size):
            stop = start + batch_size
            yield normalise(split.pick(slice(start, stop)).to(device)), split.labels[start:stop].to(device)
        return
    parts = torch.arange(len(split)).split(batch_size)
    for part, images in zip(parts, stream(split, parts, device, workers), strict=True):
        yield normalise(images), split.labels[part].to(device)


def _fits(split: Split, device: torch.device) -> bool:
    """Whether the images are in memory and leave half of a GPU's free memory."""
    if not isinstance(split.store, torch.Tensor):
        return False
    if device.type != "cuda":
        return True
    return split.store.nbytes * 2 < torch.cuda.mem_get_info(device)[0]


def _move(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
