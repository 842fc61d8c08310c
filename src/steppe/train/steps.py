"""One training step, eager or captured: the same update, at two speeds.

Eager steps run anywhere. On CUDA the whole step (both passes of a sharp one, perturbation, attack, update) is compiled,
recorded once as a CUDA graph and replayed; see `steppe.minimizers.CapturedStep`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from steppe.config import RunConfig
from steppe.errors import ran_out_of_memory
from steppe.minimizers import Batch, CapturedStep, Minimizer, RunningStatistics
from steppe.train.objectives import Inputs, Objective


class EagerStep:
    """Steps from plain torch, in micro-batches where one is asked for or memory runs out."""

    def __init__(
        self,
        network: nn.Module,
        minimizer: Minimizer,
        objective: Objective,
        config: RunConfig,
        say: Callable[[str], None],
    ) -> None:
        """Prepare.

        Args:
            network: what is trained.
            minimizer: steps it.
            objective: the loss, and the attack if there is one.
            config: precision and accumulation.
            say: told, once, when the batch has to be split to fit into memory.
        """
        self.network, self.minimizer, self.objective, self.config, self.say = network, minimizer, objective, config, say
        self.parts = config.accumulate or 1
        self.statistics = RunningStatistics(network if objective.attack else None)
        self.compile_s = 0.0

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, Tensor, int]:
        """Make a step; return the first pass's mean loss, its hits, and how many examples it saw."""
        device, size = inputs[0].device, len(inputs[0])
        state = torch.get_rng_state(), _cuda_state(device)
        before = self.minimizer.gradient_evaluations
        while True:
            batch = _SplitBatch(self, inputs)
            try:
                loss = self.minimizer.step(batch)
                paid = (self.minimizer.gradient_evaluations - before) * self.objective.views + batch.attacks
                self.minimizer.gradient_evaluations = before + paid
                return loss.detach(), batch.hits, batch.seen
            except Exception as error:
                whole = self.parts >= size or not self.objective.separable or dist.is_initialized()
                if whole or not ran_out_of_memory(error):
                    raise
                self.statistics.restore()
                self.parts *= 2
                torch.cuda.empty_cache()
                self.say(f"memory ran out: going on with {self.parts} micro-batches a step, which is the same update")
                torch.set_rng_state(state[0])
                if state[1] is not None:
                    torch.cuda.set_rng_state(state[1], device)


class CompiledStep:
    """Steps from recorded CUDA graphs."""

    def __init__(
        self,
        network: nn.Module,
        minimizer: Minimizer,
        objective: Objective,
        config: RunConfig,
        inputs: Inputs,
        *,
        parts: int | None = None,
        compiled: bool = True,
    ) -> None:
        """Prepare; graphs are recorded when a kind of step first comes up.

        Args:
            network: what is trained.
            minimizer: steps it.
            objective: the loss, and the attack if there is one.
            config: precision and accumulation.
            inputs: the tensors of an example batch.
            parts: micro-batches of a step; by default as the configuration says.
            compiled: compile forward and loss.
        """
        self.minimizer, self.objective = minimizer, objective
        self.compile_s = 0.0
        parts = min(parts or config.accumulate or 1, len(inputs[0]))
        hits = torch.zeros(3 * parts, dtype=torch.int64, device=inputs[0].device)  # a step has three passes at most
        self.hits = hits
        chooses = minimizer.chooses_examples

        def loss(network: nn.Module, *inputs: Tensor) -> Tensor:
            losses, hit = objective.losses(network, *inputs)
            hits.copy_(torch.cat((hits[1:], hit[None])))  # the latest comes last
            return losses if chooses else losses.mean()

        autocast = torch.bfloat16 if config.precision == "bfloat16" else None
        self.step = CapturedStep(
            minimizer,
            network,
            loss,
            inputs,
            autocast=autocast,
            compiled=compiled,
            attack=objective.attack,
            parts=parts,
        )

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, Tensor, int]:
        """Make a step; return the first pass's mean loss, its hits, and how many examples it saw."""
        minimizer = self.minimizer
        kind, before, fraction = minimizer.kind(), minimizer.gradient_evaluations, minimizer.ascent_fraction
        start, recorded = time.perf_counter(), len(self.step.graphs)
        loss = self.step(*inputs)
        if len(self.step.graphs) > recorded:
            torch.cuda.synchronize(inputs[0].device)
            self.compile_s += time.perf_counter() - start
        minimizer.gradient_evaluations = before + (minimizer.gradient_evaluations - before) * self.objective.views
        seen = len(inputs[0])
        if kind.first and kind.second and fraction:
            seen = max(1, round(seen * fraction))
        first = len(self.hits) - self.step.passes
        return loss, self.hits[first : first - (-seen // self.step.micro)].sum(), seen  # the first pass counts


def can_capture(config: RunConfig, device: torch.device) -> bool:
    """Whether the run's steps can be recorded: on CUDA, with an optimizer of torch's and one ε a step."""
    free = "lamb" not in (config.optimizer.name, config.objective.head_optimizer)
    free = free and not (config.minimizer.name == "esam" and config.minimizer.replay_rng)
    return device.type == "cuda" and free and not config.minimizer.m


class _SplitBatch(Batch):
    """A batch that is run in micro-batches: same gradients, less memory.

    Under an attack, the first pass of a sharp step attacks the images with its own backward and the second pass sees
    the attacked ones. A step of one pass attacks them first, in a pass that leaves weights and statistics alone. Either
    way the first of the two passes is the one whose loss and hits are reported.
    """

    def __init__(self, step: EagerStep, inputs: Inputs) -> None:
        super().__init__(len(inputs[0]), self._losses)
        self.step, self.inputs, self.objective = step, inputs, step.objective
        kind = step.minimizer.kind()
        self.sharp = kind.first and kind.second
        if self.objective.attack is not None:
            self.inputs = (inputs[0].clone(), *inputs[1:])
        self.micro = -(-self.size // step.parts)
        self.device = inputs[0].device
        self.hits = torch.zeros((), dtype=torch.int64, device=self.device)
        self.seen = self.passes = 0
        self.attacks = 0.0
        """What attacks of their own have cost, in gradients of the batch."""
        self.counting = False
        self.watched: Tensor | None = None

    def __call__(self, examples: Any = None, weight: float = 1.0) -> Tensor:
        self.passes += 1
        first = self.passes % 2 == 1 or not self.sharp  # with m, each micro-batch makes its two passes in turn
        run = self._attack if first and self.objective.attack is not None else super().__call__
        self.counting = self.passes == 1
        try:
            return self._run(run, examples, weight)
        finally:
            self.counting, self.watched = False, None

    @torch.no_grad()
    def score(self, examples: Any = None) -> Tensor:
        """Losses of the examples, in the same micro-batches."""
        chosen = torch.arange(self.size, device=self.device)[slice(None) if examples is None else examples]
        return torch.cat([super(_SplitBatch, self).score(part) for part in chosen.split(self.micro)])

    def _run(self, run: Callable[..., Tensor], examples: Any, weight: float) -> Tensor:
        chosen = torch.arange(self.size, device=self.device)
        chosen = chosen if examples is None else chosen[examples]
        if len(chosen) <= self.micro:
            return run(examples, weight)
        loss = torch.zeros((), device=self.device)
        found = []
        for part in chosen.split(self.micro):
            share = len(part) / len(chosen)
            loss += run(part, weight * share).detach() * share
            found.append(self.latest)
        self.latest = torch.cat([f for f in found if f is not None])
        return loss

    def _attack(self, examples: Any, weight: float) -> Tensor:
        """Attack the examples by this pass's backward, or by a pass of its own where the step has no second."""
        part = slice(None) if examples is None else examples
        self.watched = self.inputs[0][part].detach().requires_grad_()
        if self.sharp:
            loss = super().__call__(examples, weight)
            gradient = self.watched.grad
        else:
            self.step.statistics.save()
            with self.step.minimizer.without_sync():
                loss = self._losses(part).mean()
                (gradient,) = torch.autograd.grad(loss, self.watched)
            self.step.statistics.restore()
            self.attacks += len(self.watched) / self.size
        self.watched = None
        assert self.objective.attack is not None
        assert gradient is not None
        with torch.no_grad():
            attacked, *_ = self.objective.attack(tuple(tensor[part] for tensor in self.inputs), gradient)
            self.inputs[0][part] = attacked
        if not self.sharp:
            counting, self.counting = self.counting, False
            super().__call__(examples, weight)
            self.counting = counting
        return loss.detach()

    def _losses(self, part: slice | Tensor) -> Tensor:
        tensors = [tensor[part] for tensor in self.inputs]
        if self.watched is not None:
            tensors[0] = self.watched
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.step.config.precision == "bfloat16"):
            losses, hits = self.objective.losses(self.step.network, *tensors)
        if self.counting:
            self.hits += hits
            self.seen += len(losses)
        return losses


def _cuda_state(device: torch.device) -> Tensor | None:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else None
