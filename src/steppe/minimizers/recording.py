"""What a recorded step needs around it: a second set of weights, a second set of random draws, a way back.

A recorded step never moves the weights: the second pass runs on a second set of parameters and BatchNorm buffers, and,
on request, draws its random numbers from a copy of the generator's state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .engine import Minimizer
from .statistics import RandomReplay, RunningStatistics


class SecondSet:
    """A second set of the perturbed parameters and of BatchNorm's buffers, swapped into the modules for a pass.

    Empty for a method that makes plain steps alone.
    """

    def __init__(self, minimizer: Minimizer, model: nn.Module) -> None:
        plain = type(minimizer).kind is Minimizer.kind
        perturbed = {i for block in minimizer.blocks if block.perturbed and not plain for i in block.members}
        self.originals = minimizer.parameters
        self.parameters: list[Tensor | None] = [
            nn.Parameter(torch.empty_like(p).copy_(p.detach())) if i in perturbed and p.requires_grad else None
            for i, p in enumerate(self.originals)
        ]
        twins = {id(p): twin for p, twin in zip(self.originals, self.parameters, strict=True) if twin is not None}
        self.weights = [
            (module._parameters, name, p, twins[id(p)])
            for module in model.modules()
            for name, p in module._parameters.items()
            if p is not None and id(p) in twins
        ]
        self.buffers = [
            (module._buffers, name, buffer, buffer.clone())
            for module in RunningStatistics(None if plain else model).modules
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]

    @contextmanager
    def in_place(self, with_buffers: bool) -> Iterator[None]:
        """Let the modules use this set."""
        swapped: list[tuple[dict[str, Any], str, Tensor, Tensor]] = [*self.weights]
        swapped += self.buffers if with_buffers else []
        for holder, name, _, other in swapped:
            holder[name] = other
        try:
            yield
        finally:
            for holder, name, original, _ in swapped:
                holder[name] = original

    def hand_over_gradients(self) -> None:
        """Give the originals the gradients of this set."""
        for parameter, twin in zip(self.originals, self.parameters, strict=True):
            if twin is not None:
                parameter.grad, twin.grad = twin.grad, None

    def clear_gradients(self) -> None:
        """Drop this set's gradients."""
        for twin in self.parameters:
            if twin is not None:
                twin.grad = None


class Kept:
    """Everything that warm-up steps change, to be put back after them."""

    def __init__(self, minimizer: Minimizer, model: nn.Module) -> None:
        self.minimizer = minimizer
        live = [*minimizer.parameters, *model.buffers()]
        self.copies = [(tensor, tensor.detach().clone()) for tensor in live]
        self.state = {
            (parameter, key): value.clone()
            for parameter, values in minimizer.state.items()
            for key, value in values.items()
            if isinstance(value, Tensor)
        }
        self.averages = {
            name: [t if t is None else t.clone() for t in vector] for name, vector in minimizer.averages.items()
        }
        self.random = torch.cuda.get_rng_state() if torch.cuda.is_available() else None

    @torch.no_grad()
    def put_back(self) -> None:
        """Copy everything back; what the warm-up created starts from zero, as it would have."""
        for tensor, copy in self.copies:
            tensor.copy_(copy)
        for parameter, values in self.minimizer.state.items():
            for key, value in values.items():
                if isinstance(value, Tensor):
                    before = self.state.get((parameter, key))
                    value.zero_() if before is None else value.copy_(before)
        for name, vector in self.minimizer.averages.items():
            for i, average in enumerate(vector):
                old = self.averages[name][i] if name in self.averages else None
                if average is not None:
                    average.zero_() if old is None else average.copy_(old)
        if self.random is not None:
            torch.cuda.set_rng_state(self.random)


class SameDraws:
    """`replay_rng` in a step that is recorded: the second pass draws from a copy of the generator's state."""

    def __init__(self, replay: RandomReplay | None, device: torch.device) -> None:
        self.replay = replay
        self.graphed = replay is not None and device.type == "cuda"
        if self.graphed:
            index = torch.cuda.current_device() if device.index is None else device.index
            self.generator: Any = torch.cuda.default_generators[index]
            self.state = self.generator.graphsafe_get_state()
            self.copy = self.state.clone_state()

    def register(self, graph: torch.cuda.CUDAGraph) -> None:
        """Let the graph know of the copy, before it is recorded."""
        if self.graphed:
            graph.register_generator_state(self.copy)

    def align(self) -> None:
        """Before a replay: the copy starts where the generator stands."""
        if self.graphed:
            self.copy.manual_seed(self.state.initial_seed())
            self.copy.set_offset(self.state.get_offset())

    def record(self) -> None:
        """Before the first pass."""
        if self.replay is not None and not _recording(self.graphed):
            self.replay.record()

    @contextmanager
    def again(self, has_first: bool) -> Iterator[None]:
        """Around the second pass."""
        if self.replay is None or not has_first:
            yield
        elif _recording(self.graphed):
            self.generator.graphsafe_set_state(self.copy)
            try:
                yield
            finally:
                self.generator.graphsafe_set_state(self.state)
        else:
            self.replay.replay()
            yield


def _recording(possible: bool) -> bool:
    return possible and torch.cuda.is_current_stream_capturing()
