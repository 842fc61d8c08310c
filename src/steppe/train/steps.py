"""One training step, eager or captured: the same update, at two speeds.

Eager steps run anywhere. On CUDA the whole step (both passes of a sharp one, perturbation, update) is compiled,
recorded once as a CUDA graph and replayed; see `steppe.minimizers.CapturedStep`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steppe.config import RunConfig
from steppe.minimizers import Batch, CapturedStep, Minimizer


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


class EagerStep:
    """Steps from plain torch, in micro-batches where one is asked for or memory runs out."""

    def __init__(self, model: nn.Module, minimizer: Minimizer, config: RunConfig, say: Callable[[str], None]) -> None:
        """Prepare.

        Args:
            model: the network.
            minimizer: steps it.
            config: precision, loss and accumulation.
            say: told, once, when the batch has to be split to fit into memory.
        """
        self.model, self.minimizer, self.config, self.say = model, minimizer, config, say
        self.parts = config.accumulate or 1
        self.compile_s = 0.0

    def __call__(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, int]:
        """Make a step; return the first pass's mean loss, its hits, and how many examples it saw."""
        state = torch.get_rng_state(), _cuda_state(images.device)
        while True:
            batch = _SplitBatch(self.model, images, targets, self.config, self.parts)
            try:
                loss = self.minimizer.step(batch)
                return loss.detach(), batch.hits, batch.seen
            except torch.OutOfMemoryError:
                if self.parts >= len(targets):
                    raise
                self.parts *= 2
                torch.cuda.empty_cache()
                self.say(f"memory ran out: going on with {self.parts} micro-batches a step, which is the same update")
                torch.set_rng_state(state[0])
                if state[1] is not None:
                    torch.cuda.set_rng_state(state[1], images.device)


class CompiledStep:
    """Steps from recorded CUDA graphs."""

    def __init__(
        self, model: nn.Module, minimizer: Minimizer, config: RunConfig, images: Tensor, targets: Tensor
    ) -> None:
        """Prepare; graphs are recorded when a kind of step first comes up.

        Args:
            model: the network.
            minimizer: steps it.
            config: precision and loss.
            images: an example batch.
            targets: its targets.
        """
        self.minimizer = minimizer
        self.compile_s = 0.0
        hits = torch.zeros(2, dtype=torch.int64, device=images.device)
        self.hits = hits

        def loss(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
            logits = model(images)
            hits.copy_(torch.stack((hits[1], count_hits(logits.detach(), targets))))  # this pass and the one before
            return example_losses(logits, targets, config).mean()

        autocast = torch.bfloat16 if config.precision == "bfloat16" else None
        self.step = CapturedStep(minimizer, model, loss, (images, targets), autocast=autocast)

    def __call__(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, int]:
        """Make a step; return the first pass's mean loss, its hits, and how many examples it saw."""
        kind = self.minimizer.kind()
        fraction = self.minimizer.ascent_fraction
        start, recorded = time.perf_counter(), len(self.step.graphs)
        loss = self.step(images, targets)
        if len(self.step.graphs) > recorded:
            torch.cuda.synchronize()
            self.compile_s += time.perf_counter() - start
        seen = len(targets)
        if kind.first and kind.second:
            seen = max(1, round(seen * fraction)) if fraction else seen
            return loss, self.hits[0].clone(), seen
        return loss, self.hits[1].clone(), seen


def can_capture(config: RunConfig, device: torch.device) -> bool:
    """Whether the run's steps can be recorded: on CUDA, and not for methods that decide from the device's numbers."""
    free = config.minimizer.name not in ("esam", "aesam") and config.optimizer.name != "lamb"
    return device.type == "cuda" and free and not config.minimizer.m and not config.accumulate


class _SplitBatch(Batch):
    """A batch that is run in micro-batches: same gradients, less memory."""

    def __init__(self, model: nn.Module, images: Tensor, targets: Tensor, config: RunConfig, parts: int) -> None:
        super().__init__(len(targets), self._losses)
        self.model, self.images, self.targets, self.config = model, images, targets, config
        self.micro = -(-len(targets) // parts)
        self.hits = torch.zeros((), dtype=torch.int64, device=images.device)
        self.seen = 0
        self.passes = 0
        self.counting = False

    def __call__(self, examples: Any = None, weight: float = 1.0) -> Tensor:
        self.passes += 1
        self.counting = self.passes == 1
        try:
            return self._run(examples, weight)
        finally:
            self.counting = False

    def _run(self, examples: Any, weight: float) -> Tensor:
        chosen = torch.arange(self.size, device=self.images.device)
        chosen = chosen if examples is None else chosen[examples]
        if len(chosen) <= self.micro:
            return super().__call__(examples, weight)
        loss = torch.zeros((), device=self.images.device)
        found = []
        for part in chosen.split(self.micro):
            share = len(part) / len(chosen)
            loss += super().__call__(part, weight * share).detach() * share
            found.append(self.latest)
        self.latest = torch.cat([f for f in found if f is not None])
        return loss

    def _losses(self, part: slice | Tensor) -> Tensor:
        images, targets = self.images[part], self.targets[part]
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16"):
            logits = self.model(images)
        if self.counting:
            self.hits += count_hits(logits.detach(), targets)
            self.seen += len(targets)
        return example_losses(logits, targets, self.config)


def _cuda_state(device: torch.device) -> Tensor | None:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else None
