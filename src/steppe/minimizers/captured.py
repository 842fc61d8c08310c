"""A whole step as one CUDA graph: compiled forward and loss, both passes, perturbation, base update.

In eager mode a sharp step of a small network spends most of its time launching kernels. Here every kind of step a
method makes is recorded once and then replayed with a single launch. Two things make the recorded step cheaper still:

- The perturbed weights are written to a second set of parameters, and the second pass runs on that. Nothing has to be
  saved or put back: the weights never move. BatchNorm's running statistics get a second set in the same way.
- On CUDA one fused kernel takes the norm and one writes the perturbed weights (see `fused`).

Numbers that are scheduled (`lr`, `rho`, …) become 0-d tensors in the parameter groups, so a schedule changes what the
graph computes without recording it again. Set them as floats or in place; both are seen by the next step.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .cheap import ESAM
from .engine import Minimizer
from .fused import FusedPerturbation, can_fuse
from .options import Kind
from .schedules import GradientNorm
from .statistics import RandomReplay, RunningStatistics

LossFunction = Callable[..., Tensor]
"""(model, *inputs) -> the batch's mean loss."""


class CapturedStep:
    """Makes a minimizer's steps from recorded graphs.

        step = CapturedStep(minimizer, model, lambda model, x, y: cross_entropy(model(x), y), (x, y))
        for x, y in loader:
            loss = step(x, y)

    Args:
        minimizer: any method but those that decide from the device (ESAM, AE-SAM and gradient-norm schedules), without
            a gradient scaler or micro-batches.
        model: the network whose parameters the base optimizer holds.
        loss: takes the model and the inputs and returns the mean loss.
        inputs: an example batch; shapes, dtypes, strides and device are those of every batch to come. A batch of
            another shape (the last one of an epoch) is run without the graph.
        autocast: dtype of the forward pass's autocast, None for none.
        compiled: compile forward and loss with `torch.compile` (static shapes), one compilation for each batch size.
        captured: record CUDA graphs; False runs the same steps without recording (the default off CUDA).
        warmup: steps before the recording; weights, statistics and state are put back after them.
    """

    def __init__(
        self,
        minimizer: Minimizer,
        model: nn.Module,
        loss: LossFunction,
        inputs: tuple[Tensor, ...],
        *,
        autocast: torch.dtype | None = torch.bfloat16,
        compiled: bool = True,
        captured: bool | None = None,
        warmup: int = 3,
        compile_options: dict[str, Any] | None = None,
    ) -> None:
        """Prepare; kinds of steps are recorded when they first come up, or all at once by `record`."""
        _check(minimizer)
        self.minimizer, self.model, self.warmup = minimizer, model, warmup
        self.device = inputs[0].device
        self.captured = self.device.type == "cuda" if captured is None else captured
        self.inputs = tuple(torch.empty_like(tensor).copy_(tensor) for tensor in inputs)
        self.loss = torch.zeros((), device=self.device)
        self.plain = _bind(model, loss, autocast, self.device.type)
        self.compute = _compile(model, loss, autocast, self.device.type, compile_options) if compiled else self.plain
        self.static: dict[tuple[int, str], Tensor] = {}
        self.values: dict[tuple[int, str], float] = {}
        self.graphs: dict[Kind, torch.cuda.CUDAGraph] = {}
        self.pool: Any = None
        if self.captured:
            _make_capturable(minimizer)
            self._refresh_numbers()
        self.second = _SecondSet(minimizer, model)
        self.draws = _SameDraws(minimizer.replay, self.device)
        if can_fuse(minimizer):
            minimizer.perturbation = FusedPerturbation(minimizer.perturbation)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """One step on a batch; returns the first pass's loss."""
        minimizer = self.minimizer
        if any(a.shape != b.shape for a, b in zip(inputs, self.inputs, strict=True)):
            return self._uncaptured(inputs)
        for held, given in zip(self.inputs, inputs, strict=True):
            if held is not given:
                held.copy_(given, non_blocking=True)
        kind = minimizer.kind()
        if not self.captured:
            with self._on_second_set():
                self._body(kind)
        else:
            self._refresh_numbers()
            if kind not in self.graphs:
                self._record(kind)
            self.draws.align()
            self.graphs[kind].replay()
        minimizer._count(kind.second, self._spent(kind))
        return self.loss.clone()

    def record(self, *kinds: Kind) -> None:
        """Record kinds of steps ahead of time, so that no step of the training stops for it."""
        if self.captured:
            for kind in kinds or (self.minimizer.kind(),):
                if kind not in self.graphs:
                    self._record(kind)

    # -- one step, as it is recorded ----------------------------------------------------------------------------

    def _pass(self, inputs: tuple[Tensor, ...], keep_loss: bool) -> None:
        with torch.enable_grad():
            loss = self.compute(*inputs)
            loss.backward()
        if keep_loss:
            self.loss.copy_(loss.detach())

    @torch.no_grad()
    def _body(self, kind: Kind) -> None:
        """All device work of one step of this kind."""
        minimizer = self.minimizer
        minimizer._reset()
        minimizer.move_radius()
        minimizer.zero_grad()
        if kind.first:
            inputs = self.inputs
            if kind.second and minimizer.ascent_fraction is not None:
                count = max(1, round(len(inputs[0]) * minimizer.ascent_fraction))
                inputs = tuple(tensor[:count] for tensor in inputs)
            self.draws.record()
            self._pass(inputs, keep_loss=True)
        if minimizer._ascend(kind):
            with self.second.in_place(with_buffers=kind.first), self.draws.again(kind.first):
                self._pass(self.inputs, keep_loss=not kind.first)
            self.second.hand_over_gradients()
        minimizer._descend(kind)
        minimizer._reset()

    @contextmanager
    def _on_second_set(self) -> Iterator[None]:
        """Perturbed weights go to the second set, and the statistics need no saving."""
        minimizer = self.minimizer
        statistics, minimizer.statistics = minimizer.statistics, RunningStatistics(None)
        minimizer.perturbed_copy = self.second.parameters
        try:
            yield
        finally:
            minimizer.statistics, minimizer.perturbed_copy = statistics, None

    def _uncaptured(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """A batch of another shape: the same method, eagerly."""
        return self.minimizer.step(_EagerBatch(self.plain, inputs))

    def _spent(self, kind: Kind) -> float:
        return self.minimizer._first_share(kind) + float(kind.second)

    # -- recording ----------------------------------------------------------------------------------------------

    def _record(self, kind: Kind) -> None:
        kept = _Kept(self.minimizer, self.model)
        stream = _STREAMS.setdefault(self.device, torch.cuda.Stream(self.device))
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with self._on_second_set(), torch.cuda.device(self.device):
            with torch.cuda.stream(stream):
                for _ in range(self.warmup):
                    self._body(kind)
            torch.cuda.current_stream(self.device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            self.draws.register(graph)
            self.minimizer.zero_grad()
            with torch.cuda.graph(graph, pool=self.pool, stream=stream):
                self._body(kind)
        if isinstance(self.minimizer.perturbation, FusedPerturbation):
            self.minimizer.perturbation.fill_tables()
        self.minimizer.zero_grad()
        self.second.clear_gradients()
        self.pool = graph.pool()
        self.graphs[kind] = graph
        kept.put_back()

    def _refresh_numbers(self) -> None:
        """Bring numbers that were set as floats (or loaded) into the 0-d tensors that the graphs read."""
        for index, group in enumerate(self.minimizer.param_groups):
            for key in ("lr", *self.minimizer.numbers):
                value = group[key]
                held = self.static.get((index, key))
                if value is held:
                    continue
                if held is None:
                    held = self.static[index, key] = torch.zeros((), dtype=torch.float32, device=self.device)
                held.copy_(value) if isinstance(value, Tensor) else held.fill_(value)
                group[key] = held


_STREAMS: dict[torch.device, torch.cuda.Stream] = {}
"""One stream a device for all recordings: cuBLAS keeps 64 MiB of workspace for each stream it has seen."""

_COMPILED: WeakKeyDictionary[nn.Module, dict[Any, Callable[..., Tensor]]] = WeakKeyDictionary()


def _bind(model: nn.Module, loss: LossFunction, autocast: torch.dtype | None, device: str) -> Callable[..., Tensor]:
    """Forward and loss as a function of the inputs alone."""
    reference = weakref.ref(model)

    def compute(*inputs: Tensor) -> Tensor:
        if autocast is None:
            return loss(reference(), *inputs)
        with torch.autocast(device, dtype=autocast):
            return loss(reference(), *inputs)

    return compute


def _compile(
    model: nn.Module, loss: LossFunction, autocast: torch.dtype | None, device: str, options: dict[str, Any] | None
) -> Callable[..., Tensor]:
    """The same, compiled; made once for a model and a loss, so another minimizer on them compiles nothing again."""
    known = _COMPILED.setdefault(model, {})
    key = (loss, autocast, device, repr(options))
    if key not in known:
        compute: Any = _bind(model, loss, autocast, device)
        # torch keeps compiled versions by code object and gives up after a few: a code object for each model.
        compute.__code__ = compute.__code__.replace(co_name=f"compute_{next(_NUMBERS)}")
        known[key] = torch.compile(compute, dynamic=False, **(options or {}))
    return known[key]


_NUMBERS = itertools.count()


class _SameDraws:
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


class _EagerBatch:
    """The closure of a step that is not captured; can run on part of its batch."""

    def __init__(self, compute: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
        self.compute, self.inputs, self.size = compute, inputs, len(inputs[0])

    def __call__(self, part: slice = slice(None), weight: float = 1.0) -> Tensor:
        loss = self.compute(*(tensor[part] for tensor in self.inputs))
        (loss * weight).backward()
        return loss


class _SecondSet:
    """A second set of the perturbed parameters and of BatchNorm's buffers, swapped into the modules for a pass."""

    def __init__(self, minimizer: Minimizer, model: nn.Module) -> None:
        perturbed = {i for block in minimizer.blocks if block.perturbed for i in block.members}
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
            for module in RunningStatistics(model).modules
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


class _Kept:
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
        self.averages = {name: [t.clone() for t in vector] for name, vector in minimizer.averages.items()}
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
            for i, tensor in enumerate(vector):
                tensor.zero_() if name not in self.averages else tensor.copy_(self.averages[name][i])
        if self.random is not None:
            torch.cuda.set_rng_state(self.random)


def _check(minimizer: Minimizer) -> None:
    """Refuse what cannot be recorded, saying why."""
    if isinstance(minimizer.schedule, GradientNorm) or isinstance(minimizer, ESAM):
        raise ValueError(f"{minimizer.name} decides from the device's numbers in mid-step and cannot be captured")
    if minimizer.m is not None:
        raise ValueError(f"a captured step has one perturbation for its batch; m={minimizer.m!r} is not supported")
    if minimizer.unscaling.scaler is not None:
        raise ValueError("a gradient scaler decides on the host and cannot be captured; use bf16")
    if any(group.get("dampening") for group in minimizer.param_groups) and not minimizer.state:
        raise ValueError("SGD's dampening treats its first step apart: make one step before capturing")


def _make_capturable(minimizer: Minimizer) -> None:
    """Set what torch's optimizers need under capture: the fused form, counters on the device."""
    for group in minimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
        if "fused" in group:
            group["fused"], group["foreach"] = True, False
        for parameter in group["params"]:
            step = minimizer.state[parameter].get("step") if parameter in minimizer.state else None
            if isinstance(step, Tensor):
                minimizer.state[parameter]["step"] = step.to(parameter.device, torch.float32)
