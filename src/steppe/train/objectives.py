"""What a step minimizes: which tensors make its batch, each example's loss on them, and who attacks them in between.

**Supervised**: the loss of the labels. **Contrastive**: that of two views of each image, see `contrastive`.

**Adversarial**, from Chen, Hsieh, Gong, "When Vision Transformers Outperform ResNets without Pre-training or Strong
Data Augmentations", ICLR 2022 (arXiv:2106.01548), appendix B:

    min_w  max_{‖ε_w‖ ≤ ρ}  max_{‖δ‖∞ ≤ ε}  L(w + ε_w, x + δ, y)

δ is that of fast adversarial training (Wong, Rice, Kolter, ICLR 2020, arXiv:2001.03994): FGSM with a random start,

    δ₀ ~ U(−ε, ε),   δ = clip(δ₀ + α · sign ∇ₓL(w, x + δ₀), −ε, ε),   with α = 1.25 ε,

where x + δ₀ and x + δ are kept inside the range of pixels. One backward at (w, x + δ₀) gives ∇ₓL, and so δ, and ∇_w L,
and so ε_w; the second gradient is taken at (w + ε_w, x + δ). So a sharp step costs two gradients, as without an attack.
A step of one pass (the base optimizer, LookSAM's cheap steps, MSAM) pays for the attack apart, at the weights of that
pass, and costs two as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steppe.config import RunConfig, derive_seed
from steppe.data import Dataset, Loader, Normalise
from steppe.train.contrastive import contrastive_losses

Inputs = tuple[Tensor, ...]
"""The tensors of a batch, all of them with the examples along the first axis; the network sees the first."""


@dataclass(frozen=True)
class Objective:
    """What a step minimizes. A policy is a function that fills this in."""

    batch: Callable[[int, int], Inputs]
    """(epoch, index) -> the tensors of the batch."""
    losses: Callable[..., tuple[Tensor, Tensor]]
    """(network, *tensors) -> the loss of each example, and how many were hit."""
    attack: Callable[[Inputs, Tensor], Inputs] | None = None
    """(tensors, gradient with respect to the first) -> what the last pass of a step sees instead."""
    separable: bool = True
    """Whether an example's loss is its own, so that a batch may be computed in parts."""
    views: int = 1
    """How many images an example is: what its gradient costs, in gradients of `batch_size` images."""


def make_objective(config: RunConfig, loader: Loader, dataset: Dataset) -> Objective:
    """Make the run's objective.

    Args:
        config: the run, or one stage of it.
        loader: gives the batches.
        dataset: whose pixels an attack changes.
    """
    if config.objective.name == "adversarial":
        return _adversarial(config, loader, dataset)
    if config.objective.name == "contrastive":
        return _contrastive(config, loader)
    return supervised(config, loader.batch)


def supervised(config: RunConfig, batch: Callable[[int, int], Inputs]) -> Objective:
    """The loss of the labels, on batches from anywhere."""
    return Objective(batch, _labelled(config))


def example_losses(logits: Tensor, targets: Tensor, config: RunConfig) -> Tensor:
    """The loss of each example: cross-entropy, or the sum of a sigmoid's over the classes.

    Args:
        logits: (B, classes).
        targets: labels (B,), or probabilities (B, classes) where images are mixed.
        config: whose `label_smoothing` and `sigmoid_loss` are used.
    """
    if not config.sigmoid_loss:
        return F.cross_entropy(logits.float(), targets, reduction="none", label_smoothing=config.label_smoothing)
    classes = logits.shape[1]
    wanted = F.one_hot(targets, classes).to(logits.dtype) if targets.ndim == 1 else targets
    wanted = wanted * (1 - config.label_smoothing) + config.label_smoothing / classes
    return F.binary_cross_entropy_with_logits(logits.float(), wanted.float(), reduction="none").sum(1)


def count_hits(logits: Tensor, targets: Tensor) -> Tensor:
    """How many examples have their target (the likeliest one, where images are mixed) on top."""
    return (logits.argmax(1) == (targets if targets.ndim == 1 else targets.argmax(1))).sum()


class Pixels:
    """The budget of an attack in normalised units: ε/std for each channel, inside the range of valid pixels."""

    def __init__(self, dataset: Dataset, epsilon: float, step: float, device: torch.device) -> None:
        """Work the budget out.

        Args:
            dataset: whose statistics normalise the images. The points of a 2-D toy have no range, and units of their
                own instead of 255ths.
            epsilon: largest change of a pixel, in 255ths.
            step: α in units of ε.
            device: where the images are.
        """
        scale = Normalise(dataset, device)
        pictures = scale.top == 255.0
        self.radius = epsilon / scale.std / (255.0 if pictures else 1.0)
        self.step = step * self.radius
        self.lowest = (0.0 - scale.mean) / scale.std if pictures else torch.full_like(scale.mean, -torch.inf)
        self.highest = (1.0 - scale.mean) / scale.std if pictures else torch.full_like(scale.mean, torch.inf)

    def start(
        self, images: Tensor, generator: torch.Generator, size: int | None = None, mine: slice = slice(None)
    ) -> Tensor:
        """Move every pixel by a random part of the budget: x + δ₀.

        Processes that share a batch share its draws: where `images` are the part `mine` of a batch of `size`.
        """
        shape = (size or len(images), *images.shape[1:])
        noise = images.new_empty(shape).uniform_(-1.0, 1.0, generator=generator)[mine]
        return torch.clamp(images + self.radius * noise, self.lowest, self.highest)

    def climb(self, images: Tensor, started: Tensor, gradient: Tensor) -> Tensor:
        """Take the step along the sign of the gradient, back into the budget: x + δ."""
        change = torch.clamp(started - images + self.step * gradient.sign(), -self.radius, self.radius)
        return torch.clamp(images + change, self.lowest, self.highest)


def _labelled(config: RunConfig) -> Callable[..., tuple[Tensor, Tensor]]:
    """Losses and hits of a classifier; what comes after the targets is not its business."""

    def losses(network: nn.Module, images: Tensor, targets: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        logits = network(images)
        return example_losses(logits, targets, config), count_hits(logits.detach(), targets)

    return losses


def _adversarial(config: RunConfig, loader: Loader, dataset: Dataset) -> Objective:
    own = config.objective
    assert own.epsilon is not None
    assert own.attack_step is not None
    pixels = Pixels(dataset, own.epsilon, own.attack_step, loader.device)
    generator = torch.Generator(loader.device)

    def batch(epoch: int, index: int) -> Inputs:
        images, targets = loader.batch(epoch, index)
        generator.manual_seed(derive_seed(config.seed, "attack", epoch, index))
        return pixels.start(images, generator, loader.batch_size, loader.mine), targets, images

    def attack(inputs: Inputs, gradient: Tensor) -> Inputs:
        started, targets, images = inputs
        return pixels.climb(images, started, gradient), targets, images

    return Objective(batch, _labelled(config), attack)


def _contrastive(config: RunConfig, loader: Loader) -> Objective:
    temperature = config.objective.temperature
    assert temperature is not None

    def batch(epoch: int, index: int) -> Inputs:
        images, labels = loader.batch(epoch, index)
        return images, loader.batch(epoch, index, view=1)[0], labels

    def losses(network: nn.Module, first: Tensor, second: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        found, _ = contrastive_losses(network(torch.cat((first, second))), torch.cat((labels, labels)), temperature)
        return found.view(2, -1).mean(0), torch.zeros((), dtype=torch.int64, device=labels.device)

    return Objective(batch, losses, separable=False, views=2)
