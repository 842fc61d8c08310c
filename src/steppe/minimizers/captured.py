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
from .recording import Kept, SameDraws, SecondSet
from .schedules import GradientNorm
from .statistics import RunningStatistics

LossFunction = Callable[..., Tensor]
"""(model, *inputs) -> the batch's mean loss."""

Attack = Callable[[tuple[Tensor, ...], Tensor], tuple[Tensor, ...]]
"""(inputs, gradient with respect to the first of them) -> the inputs that the last pass sees."""


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
        attack: makes the last pass's inputs from the first pass's gradient with respect to `inputs[0]`, which the same
            backward gives; a step of one pass pays for one more, which leaves weights and statistics alone.
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
        attack: Attack | None = None,
    ) -> None:
        """Prepare; kinds of steps are recorded when they first come up, or all at once by `record`."""
        _check(minimizer)
        if warmup < 2:
            raise ValueError(f"a recording needs at least 2 steps before it, to make state and tables, not {warmup}")
        if attack is not None and minimizer.ascent_fraction is not None:
            raise ValueError("an attack needs the first gradient of every example: ascent_fraction leaves some out")
        self.minimizer, self.model, self.warmup, self.attack = minimizer, model, warmup, attack
        self.device = inputs[0].device
        self.captured = self.device.type == "cuda" if captured is None else captured
        self.inputs = tuple(torch.empty_like(tensor).copy_(tensor) for tensor in inputs)
        self.loss = torch.zeros((), device=self.device)
        self.plain = _bind(model, loss, autocast, self.device.type)
        self.compute = _compile(model, loss, autocast, self.device.type, compile_options) if compiled else self.plain
        self.static: dict[tuple[int, str], Tensor] = {}
        self.values: dict[tuple[int, str], float] = {}
        self.graphs: dict[Kind, torch.cuda.CUDAGraph] = {}
        self.settings: list[dict[str, Any]] = []
        self.pool: Any = None
        self.draws = SameDraws(minimizer.replay, self.device)
        self.statistics = RunningStatistics(model if attack is not None else None)
        self._prepare()

    def _prepare(self) -> None:
        """Make what depends on which parameters there are; recordings of others are of no use."""
        minimizer = self.minimizer
        if self.captured:
            _check_state(minimizer)
            _make_capturable(minimizer)
            self._refresh_numbers()
        self.forget()
        self.second = SecondSet(minimizer, self.model)
        if can_fuse(minimizer) and not isinstance(minimizer.perturbation, FusedPerturbation):
            minimizer.perturbation = FusedPerturbation(minimizer.perturbation)

    def forget(self) -> None:
        """Drop all recordings; the next step of each kind is recorded anew, with the settings of that moment."""
        self.graphs.clear()
        self.settings, self.pool = [], None

    def __call__(self, *inputs: Tensor) -> Tensor:
        """One step on a batch; returns the first pass's loss."""
        minimizer = self.minimizer
        if minimizer.outdated():
            minimizer.build()
        if minimizer.parameters is not self.second.originals:  # added to, frozen or unfrozen since
            self._prepare()
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
            self._check_settings()
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

    def _attacking_pass(self, inputs: tuple[Tensor, ...], shared: bool) -> tuple[Tensor, ...]:
        """A pass that attacks the inputs too; unless its backward is shared, the weights get no gradient from it."""
        watched = inputs[0].detach().requires_grad_()
        if not shared:
            self.statistics.save()
        with torch.enable_grad():
            loss = self.compute(watched, *inputs[1:])
            if shared:
                loss.backward()
            gradient = watched.grad if shared else torch.autograd.grad(loss, watched)[0]
        self.statistics.restore()
        self.loss.copy_(loss.detach())
        assert self.attack is not None
        assert gradient is not None
        return self.attack(inputs, gradient)

    @torch.no_grad()
    def _body(self, kind: Kind) -> None:
        """All device work of one step of this kind."""
        minimizer, inputs = self.minimizer, self.inputs
        minimizer._reset()
        minimizer.move_radius()
        minimizer.zero_grad()
        if kind.first:
            part = inputs
            if kind.second and minimizer.ascent_fraction is not None:
                count = max(1, round(len(inputs[0]) * minimizer.ascent_fraction))
                part = tuple(tensor[:count] for tensor in inputs)
            self.draws.record()
            if self.attack is not None:
                inputs = part = self._attacking_pass(inputs, shared=kind.second)
            if self.attack is None or not kind.second:
                self._pass(part, keep_loss=self.attack is None)
        if minimizer._ascend(kind):
            with self.second.in_place(with_buffers=kind.first), self.draws.again(kind.first):
                if self.attack is not None and not kind.first:
                    inputs = self._attacking_pass(inputs, shared=False)
                self._pass(inputs, keep_loss=not kind.first and self.attack is None)
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
        if self.attack is not None:
            raise ValueError("under an attack every batch has the shape of the example batch")
        return self.minimizer.step(_EagerBatch(self.plain, inputs))

    def _spent(self, kind: Kind) -> float:
        own = self.attack is not None and not (kind.first and kind.second)
        return self.minimizer._first_share(kind) + float(kind.second) + float(own)

    # -- recording ----------------------------------------------------------------------------------------------

    def _record(self, kind: Kind) -> None:
        _make_capturable(self.minimizer)  # a loaded state may say otherwise
        self.settings = _settings(self.minimizer)
        kept = Kept(self.minimizer, self.model)
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

    def _check_settings(self) -> None:
        """Refuse a change of a number that the recordings hold: they would go on with the old one."""
        if not self.graphs:
            return
        for index, (held, now) in enumerate(zip(self.settings, _settings(self.minimizer), strict=True)):
            for key in held.keys() & now.keys():
                if held[key] != now[key]:
                    raise ValueError(
                        f"{key} of parameter group {index} changed from {held[key]} to {now[key]}, and the recorded "
                        "step holds the old value: call forget() to record again, or leave it alone "
                        "(OneCycleLR: cycle_momentum=False)"
                    )

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


class _EagerBatch:
    """The closure of a step that is not captured; can run on part of its batch."""

    def __init__(self, compute: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
        self.compute, self.inputs, self.size = compute, inputs, len(inputs[0])

    def __call__(self, part: slice = slice(None), weight: float = 1.0) -> Tensor:
        loss = self.compute(*(tensor[part] for tensor in self.inputs))
        (loss * weight).backward()
        return loss


def _check(minimizer: Minimizer) -> None:
    """Refuse what cannot be recorded, saying why."""
    if isinstance(minimizer.schedule, GradientNorm) or isinstance(minimizer, ESAM):
        raise ValueError(f"{minimizer.name} decides from the device's numbers in mid-step and cannot be captured")
    if minimizer.m is not None:
        raise ValueError(f"a captured step has one perturbation for its batch; m={minimizer.m!r} is not supported")
    if hasattr(minimizer.model, "no_sync") or any(block.distributed for block in minimizer.blocks):
        raise ValueError("a captured step runs on one device: gradients of its second set of weights are not reduced")
    if minimizer.unscaling.scaler is not None:
        raise ValueError("a gradient scaler decides on the host and cannot be captured; use bf16")
    if any(group.get("dampening") for group in minimizer.param_groups) and not minimizer.state:
        raise ValueError("SGD's dampening treats its first step apart: make one step before capturing")


_NOT_FROM_ZERO = (torch.optim.NAdam, torch.optim.ASGD, torch.optim.Rprop)


def _check_state(minimizer: Minimizer) -> None:
    """Warm-up steps make the base optimizer's state, which is set to zero after them: refuse where that is wrong."""
    missing = any(p.requires_grad and p not in minimizer.state for p in minimizer.parameters)
    if missing and isinstance(minimizer.base, _NOT_FROM_ZERO):
        name = type(minimizer.base).__name__
        raise ValueError(f"{name}'s state does not start from zero: make one step before capturing")


def _settings(minimizer: Minimizer) -> list[dict[str, Any]]:
    """The numbers of each group that are no tensors of the graph."""
    tensors = ("lr", "initial_lr", "capturable", "fused", "foreach", *minimizer.numbers)
    return [
        {key: value for key, value in group.items() if key not in tensors and isinstance(value, int | float | tuple)}
        for group in minimizer.param_groups
    ]


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
            if isinstance(minimizer.base, torch.optim.SGD) and group["momentum"] and parameter.requires_grad:
                held = minimizer.state[parameter]
                if held.get("momentum_buffer") is None:  # fused SGD cannot start some of its buffers later than others
                    held["momentum_buffer"] = torch.zeros_like(parameter)
