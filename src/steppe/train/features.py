"""Features of a body that does not learn: computed once, for every pass and every epoch that asks for them.

Where the head alone is trained, all before it is a fixed function of the image. Both passes of a sharp step want the
same features, and where images are not augmented so does every epoch, and every look at the validation images.

Rounding depends on which images are computed together. The features of an image are therefore always those of the
batch that it is in during the first epoch, so that a run which was killed ends in the weights of one which was not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from steppe.config import AugmentConfig, RunConfig
from steppe.data import Dataset, Loader, Normalise, Split, in_order
from steppe.evaluate import suit_batch
from steppe.measuring import ignore
from steppe.train.objectives import Inputs

MOST_BYTES = 2**30
"""Where those of all images would take more, features are computed whenever they are wanted."""


class Body:
    """All of a network before its head, as a function from images to what the head sees."""

    def __init__(self, model: nn.Module, head: nn.Linear, config: RunConfig, side: int) -> None:
        """Take a network apart.

        Args:
            model: the whole network, on a CPU.
            head: its classifier.
            config: whose precision is used.
            side: of an image, in pixels.
        """
        self.model, self.head = model, head
        self.at_once = suit_batch(config.batch_size, side, head.weight.device)
        self.bfloat16 = config.precision == "bfloat16"

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """The features of a batch."""
        seen: list[Tensor] = []
        hook = self.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            for some in images.split(self.at_once):
                self.answer(some)
        finally:
            hook.remove()
        return torch.cat(seen)

    @torch.no_grad()
    def answer(self, images: Tensor) -> Tensor:
        """The logits of the whole network."""
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.bfloat16):
            return self.model(images)

    def keeps(self, count: int, augment: AugmentConfig) -> bool:
        """Whether the features of so many images stay the same from epoch to epoch, and are few enough to be kept."""
        return augment == AugmentConfig() and count * self.head.in_features * 4 <= MOST_BYTES


def find_body(model: nn.Module, config: RunConfig, some: Callable[[], Tensor]) -> Body | None:
    """The body, where nothing but one linear layer learns and what it sees depends on the image alone; else None.

    That is looked at, not believed: features must be the same in training and in evaluation mode (a dropout before the
    head changes every element), and what the head says must be the network's answer. On CUDA the recorded step of the
    whole network stays: whether features would be faster there has not been measured.

    Args:
        model: left in the mode it was found in.
        config: of the run, or of one stage of it.
        some: gives normalised images, not all alike; asked for only where the rest fits.
    """
    head = model.get_classifier() if hasattr(model, "get_classifier") else None  # type: ignore[operator]
    learning = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    if not isinstance(head, nn.Linear) or learning != {id(parameter) for parameter in head.parameters()}:
        return None
    if head.weight.device.type != "cpu" or config.objective.name:
        return None
    images, training = some(), model.training
    body = Body(model, head, config, images.shape[-1])
    images = images[: body.at_once]
    try:
        model.train()
        learned = body(images)
        model.eval()
        evaluated = body(images)
        same = learned.shape == evaluated.shape == (len(images), head.in_features)
        same = same and torch.allclose(learned, evaluated, rtol=1e-4, atol=1e-6)
        return body if same and _has_the_last_word(body, images) else None
    finally:
        model.train(training)


def _has_the_last_word(body: Body, images: Tensor) -> bool:
    """Whether the network answers what its head says, whatever that is."""
    said: list[Tensor] = []

    def say(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        said.append(torch.linspace(1, 2, output.numel()).view_as(output).to(output))
        return said[-1]

    hook = body.head.register_forward_hook(say)
    try:
        answer = body.answer(images)
    finally:
        hook.remove()
    return len(said) == 1 and torch.equal(answer, said[0])


class Features:
    """The features of a run's training and validation images, kept as they become known."""

    def __init__(
        self, body: Body, loader: Loader, dataset: Dataset, val: Split, first: int, pause: Callable[[], None] = ignore
    ) -> None:
        """Prepare; nothing is computed yet.

        Args:
            body: computes them.
            loader: gives the training images.
            dataset: whose statistics normalise the images.
            val: the images that the run is judged by, again and again.
            first: the epoch in which training begins.
            pause: called between two batches that are computed again; what it raises ends that.
        """
        self.body, self.head, self.loader, self.dataset = body, body.head, loader, dataset
        self.first, self.pause = first, pause
        self.kept = body.keeps(len(loader.split) + len(val), loader.augment)
        self.again_s = 0.0
        """Seconds that a resumed run spent on what it had known before."""
        self._train = torch.empty(0)
        self._known = torch.zeros(len(loader.split), dtype=torch.bool)
        self._of_val: tuple[Split, Tensor | None] = val, None

    def batch(self, epoch: int, index: int) -> Inputs:
        """A batch as the head sees it: features, and targets."""
        if not self.kept:
            images, targets = self.loader.batch(epoch, index)
            return self.body(images), targets
        picked = self.loader.picked(epoch, index)
        if not self._known[picked].all():
            if epoch == self.first:
                self._learn(index)
            else:
                self._catch_up()
        return self._train[picked], self.loader.split.labels[picked]

    def of(self, split: Split, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of a split in its order, as the head sees them."""
        val, known = self._of_val
        if self.kept and split is self.loader.split:
            self._catch_up()
            known = self._train
        elif split is not val:
            known = None
        if known is not None:
            yield from zip(known.split(batch_size), split.labels.split(batch_size), strict=True)
            return
        found, where = [], {"device": self.loader.device, "workers": self.loader.workers}
        for images, labels in in_order(split, self.dataset, batch_size=batch_size, **where):  # type: ignore[arg-type]
            features = self.body(images)
            found += [features] if self.kept and split is val else []
            yield features, labels
        if found:
            self._of_val = val, torch.cat(found)

    def _learn(self, index: int) -> None:
        """Compute the features of a batch of the first epoch."""
        self._keep(self.loader.picked(self.first, index), self.loader.batch(self.first, index)[0])

    def _catch_up(self) -> None:
        """Compute what the first epoch left out: what a resumed run has not seen, and what filled no batch."""
        began = time.perf_counter()
        for index in range(len(self.loader)):
            if not self._known[self.loader.picked(self.first, index)].all():
                self.pause()
                self._learn(index)
        self.again_s += time.perf_counter() - began
        if len(left := (~self._known).nonzero().squeeze(1)):
            normalise = Normalise(self.dataset, self.loader.device)
            self._keep(left, normalise(self.loader.split.pick(left)))

    def _keep(self, picked: Tensor, images: Tensor) -> None:
        features = self.body(images)
        if not len(self._train):
            self._train = features.new_empty(len(self._known), *features.shape[1:])
        self._train[picked], self._known[picked] = features, True
