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

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from . import vectors
from .capturable import check_capturable, check_state, make_capturable, settings_of
from .compiling import EagerBatch, LossFunction, bind, compile_loss
from .engine import Minimizer
from .fused import FusedPerturbation, can_fuse
from .options import Kind
from .recording import Kept, SameDraws, SecondSet
from .schedules import GradientNorm
from .statistics import RunningStatistics

Attack = Callable[[tuple[Tensor, ...], Tensor], tuple[Tensor, ...]]
"""(inputs, gradient with respect to the first of them) -> the inputs that the last pass sees."""


class CapturedStep:
    """Makes a minimizer's steps from recorded graphs.

        step = CapturedStep(minimizer, model, lambda model, x, y: cross_entropy(model(x), y), (x, y))
        for x, y in loader:
            loss = step(x, y)

    Args:
        minimizer: any method, without a gradient scaler or micro-batches. A step that is sharp or not by its gradient's
            norm (AE-SAM) is two graphs, and the host reads that norm in between.
        model: the network whose parameters the base optimizer holds.
        loss: takes the model and the inputs and returns the mean loss, or one loss for each example.
        inputs: an example batch; shapes, dtypes, strides and device are those of every batch to come. A batch of
            another shape (the last one of an epoch) is run without the graph.
        autocast: dtype of the forward pass's autocast, None for none.
        compiled: compile forward and loss with `torch.compile` (static shapes), one compilation for each batch size.
        captured: record CUDA graphs; False runs the same steps without recording (the default off CUDA).
        warmup: steps before the recording; weights, statistics and state are put back after them.
        attack: makes the last pass's inputs from the first pass's gradient with respect to `inputs[0]`, which the same
            backward gives; a step of one pass pays for one more, which leaves weights and statistics alone.
        parts: run every pass in so many micro-batches, one after another: the same update, less memory.
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
        parts: int = 1,
    ) -> None:
        """Prepare; kinds of steps are recorded when they first come up, or all at once by `record`."""
        check_capturable(minimizer)
        if warmup < 2:
            raise ValueError(f"a recording needs at least 2 steps before it, to make state and tables, not {warmup}")
        if attack is not None and minimizer.ascent_fraction is not None:
            raise ValueError("an attack needs the first gradient of every example: ascent_fraction leaves some out")
        if attack is not None and (self._looks(minimizer) or minimizer.chooses_examples):
            raise ValueError(f"an attack needs a second pass of the whole batch, and {minimizer.name} may leave it out")
        if not 1 <= parts <= len(inputs[0]):
            raise ValueError(f"a batch of {len(inputs[0])} cannot be run in {parts} parts")
        self.minimizer, self.model, self.warmup, self.attack = minimizer, model, warmup, attack
        self.micro = -(-len(inputs[0]) // parts)
        self.device = inputs[0].device
        self.captured = self.device.type == "cuda" if captured is None else captured
        self.inputs = tuple(torch.empty_like(tensor).copy_(tensor) for tensor in inputs)
        self.loss = torch.zeros((), device=self.device)
        self.plain = bind(model, loss, autocast, self.device.type)
        self.compute = (
            compile_loss(model, loss, autocast, self.device.type, compile_options) if compiled else self.plain
        )
        self.static: dict[tuple[int, str], Tensor] = {}
        self.values: dict[tuple[int, str], float] = {}
        self.graphs: dict[tuple[Kind, str], torch.cuda.CUDAGraph] = {}
        self.passes = 0
        """How often the latest step ran the loss: once a pass and micro-batch."""
        self.calls: dict[tuple[Kind, str], int] = {}
        self.squared = torch.zeros((), device=self.device)
        self.each: Tensor | None = None
        self.looked: list[Tensor | None] = []
        self.settings: list[dict[str, Any]] = []
        self.pool: Any = None
        self.draws = SameDraws(minimizer.replay, self.device)
        self.statistics = RunningStatistics(model if attack is not None else None)
        self._prepare()

    def _prepare(self) -> None:
        """Make what depends on which parameters there are; recordings of others are of no use."""
        minimizer = self.minimizer
        if self.captured:
            check_state(minimizer)
            make_capturable(minimizer)
            self._refresh_numbers()
        self.forget()
        self.second = SecondSet(minimizer, self.model)
        self.mask = torch.ones(len(minimizer.parameters), device=self.device) if minimizer.draws_subset else None
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
        if self.captured:
            self._refresh_numbers()
            self._check_settings()
            self.record(kind)
            self.draws.align()
        self._fill_mask()
        self.passes = 0
        sharp = kind.second
        if self._looks(minimizer) and kind.second:
            self._run(kind, LOOK)
            assert isinstance(minimizer.schedule, GradientNorm)
            sharp = minimizer.schedule.observe(minimizer.step_count, self.squared)
            self._run(kind, GO_ON if sharp else STOP)
        else:
            self._run(kind, WHOLE)
        minimizer._count(sharp, self._spent(kind, sharp))
        return self.loss.clone()

    def _run(self, kind: Kind, part: str) -> None:
        """Do one part of a step: replay it, or without recordings make it."""
        if self.captured:
            self.graphs[kind, part].replay()
        else:
            with self._on_second_set():
                self._body(kind, part)
        self.passes += self.calls[kind, part]

    def _fill_mask(self) -> None:
        """Bring the coming step's subset of the tensors to the device, without waiting for it."""
        if self.mask is None:
            return
        there = {i for i, twin in enumerate(self.second.parameters) if twin is not None}
        chosen = torch.tensor(self.minimizer.subset(there), dtype=self.mask.dtype)
        self.mask.copy_(chosen.pin_memory() if self.captured else chosen, non_blocking=True)

    def record(self, *kinds: Kind) -> None:
        """Record kinds of steps ahead of time, so that no step of the training stops for it."""
        if self.captured:
            for kind in kinds or (self.minimizer.kind(),):
                parts = (LOOK, GO_ON, STOP) if kind.second and self._looks(self.minimizer) else (WHOLE,)
                for part in parts:
                    if (kind, part) not in self.graphs:
                        self._record(kind, part)

    # -- one step, as it is recorded ----------------------------------------------------------------------------

    @staticmethod
    def _looks(minimizer: Minimizer) -> bool:
        """Whether a step looks at its first gradient before it goes on."""
        return isinstance(minimizer.schedule, GradientNorm)

    def _pass(self, inputs: tuple[Tensor, ...], keep_loss: bool) -> None:
        losses, found = [], []
        for part, share in self._divide(inputs):
            with torch.enable_grad():
                loss, each = self._call(part)
                (loss * share if share < 1 else loss).backward()
            losses.append(loss.detach() * share)
            found.append(each)
        if keep_loss:
            self._keep(losses)
            self.each = _joined(found)

    def _divide(self, inputs: tuple[Tensor, ...]) -> Iterator[tuple[tuple[Tensor, ...], float]]:
        """The micro-batches of a pass, each with its share of the examples."""
        size = len(inputs[0])
        for start in range(0, size, self.micro):
            part = tuple(tensor[start : start + self.micro] for tensor in inputs)
            yield part, len(part[0]) / size

    def _call(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor | None]:
        self.counted += 1
        return self.compute(*inputs)

    def _keep(self, losses: list[Tensor]) -> None:
        """Keep the loss of the pass that counts."""
        self.loss.copy_(torch.stack(losses).sum())

    def _attacking_pass(self, inputs: tuple[Tensor, ...], shared: bool) -> tuple[Tensor, ...]:
        """A pass that attacks the inputs too; unless its backward is shared, the weights get no gradient from it."""
        assert self.attack is not None
        losses, attacked = [], []
        if not shared:
            self.statistics.save()
        for part, share in self._divide(inputs):
            watched = part[0].detach().requires_grad_()
            with torch.enable_grad():
                loss, _ = self._call((watched, *part[1:]))
                if shared:
                    (loss * share if share < 1 else loss).backward()
                gradient = watched.grad if shared else torch.autograd.grad(loss, watched)[0]
            assert gradient is not None
            losses.append(loss.detach() * share)
            attacked.append(self.attack(part, gradient))
        self.statistics.restore()
        self._keep(losses)
        return (
            attacked[0] if len(attacked) == 1 else tuple(torch.cat(tensors) for tensors in zip(*attacked, strict=True))
        )

    def _choose(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Choose the examples whose loss rose most, by a forward pass at the perturbed weights (ESAM)."""
        if not self.minimizer.chooses_examples:
            return inputs
        after = _joined([self._call(part)[1] for part, _ in self._divide(inputs)])
        if after is None or self.each is None:
            name = self.minimizer.name
            raise ValueError(f"{name} chooses examples by their losses: let the loss return one for each (no mean)")
        count, _ = self.minimizer.second_share(len(inputs[0]))
        chosen = (after - self.each).topk(count).indices
        return tuple(torch.empty_like(tensor[:count]).copy_(tensor[chosen]) for tensor in inputs)

    @torch.no_grad()
    def _body(self, kind: Kind, part: str) -> None:
        """All device work of one part of a step of this kind."""
        minimizer, inputs = self.minimizer, self.inputs
        self.counted = 0
        if part in (WHOLE, LOOK):
            minimizer._reset()
            minimizer.move_radius()
            minimizer.zero_grad()
            inputs = self._first_pass(kind) if kind.first else inputs
        if part == LOOK:
            squared = vectors.squared_norm(minimizer.blocks, minimizer.gradients())
            self.squared.zero_() if squared is None else self.squared.copy_(squared)
        else:
            minimizer._decided = part == GO_ON
            if part != STOP and minimizer._ascend(kind):
                with self.second.in_place(with_buffers=kind.first), self.draws.again(kind.first):
                    if self.attack is not None and not kind.first:
                        inputs = self._attacking_pass(inputs, shared=False)
                    inputs = self._choose(inputs)
                    self._pass(inputs, keep_loss=not kind.first and self.attack is None)
                self.second.hand_over_gradients()
            minimizer._descend(kind)
            minimizer._reset()
        self.calls[kind, part] = self.counted

    def _first_pass(self, kind: Kind) -> tuple[Tensor, ...]:
        """The pass before the perturbation; returns what the last pass sees."""
        inputs, part = self.inputs, self.inputs
        if kind.second and self.minimizer.ascent_fraction is not None:
            count = max(1, round(len(inputs[0]) * self.minimizer.ascent_fraction))
            part = tuple(tensor[:count] for tensor in inputs)
        self.draws.record()
        if self.attack is not None:
            inputs = part = self._attacking_pass(inputs, shared=kind.second)
        if self.attack is None or not kind.second:
            self._pass(part, keep_loss=self.attack is None)
        return inputs

    @contextmanager
    def _on_second_set(self) -> Iterator[None]:
        """Perturbed weights go to the second set, and the statistics need no saving."""
        minimizer = self.minimizer
        statistics, minimizer.statistics = minimizer.statistics, RunningStatistics(None)
        minimizer.perturbed_copy, minimizer.mask = self.second.parameters, self.mask
        try:
            yield
        finally:
            minimizer.statistics, minimizer.perturbed_copy, minimizer.mask = statistics, None, None

    def _uncaptured(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """A batch of another shape: the same method, eagerly."""
        if self.attack is not None:
            raise ValueError("under an attack every batch has the shape of the example batch")
        batch = EagerBatch(self.plain, inputs, self.micro)
        loss = self.minimizer.step(batch)
        self.passes = batch.calls
        return loss

    def _spent(self, kind: Kind, sharp: bool) -> float:
        own = self.attack is not None and not (kind.first and kind.second)
        second = self.minimizer.second_share(len(self.inputs[0]))[1] if sharp else 0.0
        return self.minimizer._first_share(kind) + second + float(own)

    # -- recording ----------------------------------------------------------------------------------------------

    def _record(self, kind: Kind, part: str) -> None:
        make_capturable(self.minimizer)  # a loaded state may say otherwise
        self.settings = settings_of(self.minimizer)
        kept = Kept(self.minimizer, self.model)
        stream = _STREAMS.setdefault(self.device, torch.cuda.Stream(self.device))
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with self._on_second_set(), torch.cuda.device(self.device):
            with torch.cuda.stream(stream):
                for _ in range(self.warmup):
                    self._give_gradients(part)
                    self._body(kind, part)
            torch.cuda.current_stream(self.device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            self.draws.register(graph)
            self._give_gradients(part)
            # other threads may pin memory meanwhile, as loaders do
            with torch.cuda.graph(graph, pool=self.pool, stream=stream, capture_error_mode="thread_local"):
                self._body(kind, part)
        if isinstance(self.minimizer.perturbation, FusedPerturbation):
            self.minimizer.perturbation.fill_tables()
        if part == LOOK:  # where this graph leaves its gradients, for the two that may follow it
            self.looked = self.minimizer.gradients()
            torch._foreach_zero_([gradient for gradient in self.looked if gradient is not None])
        self.minimizer.zero_grad()
        self.second.clear_gradients()
        self.pool = graph.pool()
        self.graphs[kind, part] = graph
        kept.put_back()

    def _give_gradients(self, part: str) -> None:
        """Before a part is made for its recording: none, or for a part that goes on from a look, that one's."""
        if part in (GO_ON, STOP):
            self.minimizer.set_gradients(self.looked)
        else:
            self.minimizer.zero_grad()

    def _check_settings(self) -> None:
        """Refuse a change of a number that the recordings hold: they would go on with the old one."""
        if not self.graphs:
            return
        for index, (held, now) in enumerate(zip(self.settings, settings_of(self.minimizer), strict=True)):
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


def _joined(found: list[Tensor | None]) -> Tensor | None:
    """The losses of all examples, where the loss gives them."""
    there = [each for each in found if each is not None]
    return None if not there else there[0] if len(there) == 1 else torch.cat(there)


WHOLE, LOOK, GO_ON, STOP = "whole", "look", "go on", "stop"
"""Parts of a step that are recorded apart: all of it; or up to the first gradient's norm, and what follows."""

_STREAMS: dict[torch.device, torch.cuda.Stream] = {}
"""One stream a device for all recordings: cuBLAS keeps 64 MiB of workspace for each stream it has seen."""
