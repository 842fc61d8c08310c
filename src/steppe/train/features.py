"""Features of a body that does not learn: computed once, for every pass and every epoch that asks for them.

Where the head alone is trained, all before it is a fixed function of the image. Both passes of a sharp step want the
same features, and where images are not augmented so does every epoch, and every look at the validation images.

Rounding depends on which images are computed together. The features of an image are therefore always those of the
batch that it is in during the first epoch, so that a run which was killed ends in the weights of one which was not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from steppe.config import AugmentConfig, RunConfig
from steppe.data import Dataset, Loader, Normalise, Split, in_order
from steppe.evaluate import suit_batch
from steppe.train.objectives import Inputs

MOST_BYTES = 2**30
"""Where those of all training images would take more, the features of a batch are computed when it comes."""


class Body:
    """All of a network before its head, as a function from images to what the head sees."""

    def __init__(self, model: nn.Module, head: nn.Module, config: RunConfig, at_once: int) -> None:
        """Take a network apart.

        Args:
            model: the whole network.
            head: its classifier.
            config: whose precision is used.
            at_once: images that are computed together, at the most.
        """
        self.model, self.head, self.at_once = model, head, at_once
        self.bfloat16 = config.precision == "bfloat16"
        self.width = 0
        """Bytes of the features of one image, once some are known."""

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """The features of a batch."""
        return self.with_answers(images)[0]

    @torch.no_grad()
    def with_answers(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The features of a batch, and the logits that the whole network makes of it."""
        seen: list[Tensor] = []
        hook = self.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            with torch.autocast(images.device.type, torch.bfloat16, enabled=self.bfloat16):
                logits = [self.model(some) for some in images.split(self.at_once)]
        finally:
            hook.remove()
        features = torch.cat(seen)
        self.width = features[0].nbytes
        return features, torch.cat(logits)


def find_body(model: nn.Module, config: RunConfig, some: Callable[[], Tensor]) -> Body | None:
    """The body, where nothing but the head learns and features depend on the image alone; None elsewhere.

    That is looked at, not believed: features must be the same in training and in evaluation mode (a dropout before the
    head changes every element), and the head must make the network's answer of them. On CUDA the recorded step of the
    whole network stays: whether features would be faster there has not been measured.

    Args:
        model: left in the mode it was found in.
        config: of the run, or of one stage of it.
        some: gives normalised images; asked for only where the rest fits.
    """
    head = model.get_classifier() if hasattr(model, "get_classifier") else None  # type: ignore[operator]
    learning = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    on_cpu = next(model.parameters()).device.type == "cpu"
    if not on_cpu or config.objective.name or not isinstance(head, nn.Module) or not learning:
        return None
    if learning != {id(parameter) for parameter in head.parameters()}:
        return None
    images, training = some(), model.training
    body = Body(model, head, config, suit_batch(config.batch_size, images.shape[-1], images.device))
    try:
        model.train()
        learned = body(images[: body.at_once])
        model.eval()
        evaluated, answers = body.with_answers(images[: body.at_once])
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=body.bfloat16):
            same = learned.shape == evaluated.shape and torch.allclose(learned, evaluated, rtol=1e-4, atol=1e-6)
            return body if same and torch.allclose(head(evaluated), answers, rtol=1e-2, atol=1e-4) else None
    finally:
        model.train(training)


class Features:
    """The features of a run's training images, and of those it is judged by, kept as they become known."""

    def __init__(self, body: Body, loader: Loader, dataset: Dataset, first: int) -> None:
        """Prepare; nothing is kept yet.

        Args:
            body: computes them.
            loader: gives the training images.
            dataset: whose statistics normalise the images.
            first: the epoch in which training begins.
        """
        self.body, self.loader, self.dataset, self.first = body, loader, dataset, first
        self.head = body.head
        self.kept = loader.augment == AugmentConfig() and body.width * len(loader.split) <= MOST_BYTES
        self._train = torch.empty(0)
        self._known = torch.zeros(len(loader.split), dtype=torch.bool)
        self._others: dict[int, tuple[Split, Tensor]] = {}

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
        if split is self.loader.split and self._known.all():
            yield from zip(self._train.split(batch_size), split.labels.split(batch_size), strict=True)
        elif id(split) in self._others:
            yield from zip(self._others[id(split)][1].split(batch_size), split.labels.split(batch_size), strict=True)
        else:
            found = []
            workers = self.loader.workers
            batches = in_order(split, self.dataset, batch_size=batch_size, device=self.loader.device, workers=workers)
            for images, labels in batches:
                found.append(self.body(images))
                yield found[-1], labels
            if self.kept:
                self._others[id(split)] = split, torch.cat(found)

    def _learn(self, index: int) -> None:
        """Compute the features of a batch of the first epoch."""
        self._keep(self.loader.picked(self.first, index), self.loader.batch(self.first, index)[0])

    def _catch_up(self) -> None:
        """Compute what the first epoch left out: what a resumed run has not seen, and what filled no batch."""
        for index in range(len(self.loader)):
            if not self._known[self.loader.picked(self.first, index)].all():
                self._learn(index)
        if len(left := (~self._known).nonzero().squeeze(1)):
            normalise = Normalise(self.dataset, self.loader.device)
            self._keep(left, normalise(self.loader.split.pick(left)))

    def _keep(self, picked: Tensor, images: Tensor) -> None:
        features = self.body(images)
        if not len(self._train):
            self._train = features.new_empty(len(self._known), *features.shape[1:])
        self._train[picked], self._known[picked] = features, True
