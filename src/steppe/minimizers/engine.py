"""The engine: a base optimizer whose gradient is taken elsewhere.

A step is at most two passes. The first gradient says where to look, the perturbation moves the weights there, the
second gradient is taken there, the weights come back from a snapshot and the base optimizer steps. A method says what
the direction is, what becomes of the two gradients, and which steps pay for the second one; all the rest (exact
restoring, BatchNorm, random numbers, mixed precision, clipping, sharded norms, accounting) is here, once.

Nothing in a step reads the device, runs a kernel for each tensor from Python, or changes a data pointer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from . import vectors
from .batch import Examples, require_batch
from .checks import check_closure, check_groups, check_loss, check_numbers, check_options
from .micro_batches import micro_passes
from .options import PLAIN, Kind
from .parameters import Filter
from .perturbation import Length, Perturbation
from .precision import Unscaling
from .schedules import Always, GradientNorm, Schedule
from .state import load, state_of
from .statistics import RandomReplay, RunningStatistics
from .vectors import Vector
from .wrapper import Wrapper


class Minimizer(Wrapper):
    """The base optimizer behind the interface of all methods, and the engine the methods are made of.

    Args:
        base: any torch optimizer instance. Its `param_groups` are this object's: learning-rate schedulers built on
            either act on both. The method's numbers (`rho`, …) live there too, so they can be scheduled and can differ
            from group to group.
        model: the network, for parameter names and BatchNorm's running statistics (which then move once a step). A
            DDP- or FSDP2-wrapped model is given as it is.
        perturb: which parameters the perturbation moves: "all", "weights", "norm", "no-norm", or a function of
            (name, parameter, module). Its norm is taken over these alone.
        scaling: T of the perturbation: "none", "weights", "all" or "layer"; see `steppe.minimizers.perturbation`.
        schedule: which steps are sharp; see `steppe.minimizers.schedules`.
        ascent_fraction: take the first gradient on this share of the batch (needs a `Batch` as closure).
        m: m-sharpness. None: one ε for the global batch. "rank": one ε for each process, from its own share of the
            batch (DDP). A number: one ε for each micro-batch of m examples (needs a `Batch` as closure).
        ascent_weight_decay: count the group's weight decay into the first gradient, as where it is part of the loss.
        replay_rng: draw the same random numbers in both passes (dropout, stochastic depth).
        clip_norm: clip the norm of the final gradient, and only of that.
        scaler: a `torch.amp.GradScaler`; the closure scales its loss with it, an overflow in either pass skips the
            step. Call `scaler.update()` after the step, as always.
        numbers: the method's hyper-parameters, put into every parameter group that does not bring its own.
    """

    name: ClassVar[str] = "base"
    keeps_first: ClassVar[bool] = False
    """Whether the method needs the first gradient again after the second pass."""
    _snapshot: Vector | None
    micro_batches: ClassVar[bool] = True
    """Whether a step can be made of independent micro-batches (no memory of the first gradient)."""
    own_numbers: ClassVar[tuple[str, ...]] = ()
    """Hyper-parameters of the method besides ρ and η."""
    seed: int = 0
    """What a method's own draws follow from, with the number of the step (ESAM)."""
    mask: Tensor | None = None
    """One number a tensor, 1 where it is in the step's subset: a captured step fills it on the device."""

    def __init__(
        self,
        base: Optimizer,
        *,
        model: nn.Module | None = None,
        perturb: str | Filter = "all",
        scaling: str = "none",
        schedule: Schedule | None = None,
        ascent_fraction: float | None = None,
        m: int | Literal["rank"] | None = None,
        ascent_weight_decay: bool = False,
        replay_rng: bool = False,
        clip_norm: float | None = None,
        scaler: Any = None,
        **numbers: float | Tensor,
    ) -> None:
        check_numbers(self.name, numbers, ("rho", "eta", *self.own_numbers))
        super().__init__(base, model, perturb, scaling, {"rho": 0.0, "eta": 0.0, **numbers})
        self.schedule: Schedule = schedule if schedule is not None else Always()
        self.m, self.ascent_fraction, self.ascent_weight_decay = m, ascent_fraction, ascent_weight_decay
        self.clip_norm, self.unscaling = clip_norm, Unscaling(scaler)
        check_options(self)
        self.statistics = RunningStatistics(model)
        self.replay = RandomReplay({block.device for block in self.blocks}) if replay_rng else None
        self.step_count = 0
        self.sharp_step_count = 0
        self.gradient_evaluations = 0.0
        """Gradients paid for so far, in gradients of a whole batch."""
        self.perturbation = Perturbation()
        """How perturbed weights are written; a captured step puts a fused kernel here."""
        self.perturbed_copy: Vector | None = None
        """Where they are written; None: to the weights themselves, after a snapshot."""
        self._moved = self._stepping = False
        self._taken_in: int | None = None
        """The step that failed after its first gradient was taken in; made again, it must not be taken in twice."""
        self._kind: Kind | None = None
        self._first: Vector | None = None
        self._reset()

    # -- what a method may change -------------------------------------------------------------------------------

    def kind(self) -> Kind:
        """The kind of the coming step, decided on the host."""
        return PLAIN

    def direction(self, gradient: Vector) -> tuple[Vector, Length]:
        """Direction of the perturbation and its length in units of ρ (negative: against it; or by the norm).

        The first gradient may be overwritten and returned, unless `keeps_first`.
        """
        return gradient, 1.0

    def combine(self, kind: Kind, first: Vector | None) -> None:
        """Turn the gradients into the final one, in place in the parameters' `.grad`."""

    def move_radius(self) -> None:
        """Set the radius before a step, for methods that schedule it themselves."""

    @property
    def draws_subset(self) -> bool:
        """Whether a step perturbs a random subset of the tensors; `subset` tells which."""
        return False

    def subset(self, there: set[int]) -> list[bool]:
        """Which tensors the coming step perturbs: drawn on the host, and never none.

        Args:
            there: numbers of the tensors that have a gradient.
        """
        return [True] * len(self.parameters)

    @property
    def chooses_examples(self) -> bool:
        """Whether the second pass sees chosen examples; `select` chooses them."""
        return False

    def second_share(self, size: int) -> tuple[int, float]:
        """How many of a batch's examples make the second gradient, and what that costs, the choosing included.

        Args:
            size: the number of examples in the batch.
        """
        return size, 1.0

    def select(self, closure: Any) -> tuple[Examples, float] | None:
        """Examples for the second pass, and its cost with the choosing; None: the whole batch."""
        return None

    def highest_cost(self, kind: Kind) -> float:
        """Return the most that a step of this kind costs, in gradients of a whole batch.

        Args:
            kind: of the step.
        """
        return self._first_share(kind) + kind.second

    # -- a step -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[..., Tensor] | None = None) -> Tensor:  # type: ignore[override]
        """Make one step; returns the loss of the first pass.

        The closure runs forward and backward and returns the loss; it is called once for every pass, with gradients
        zeroed before each. If it raises, the weights are put back and the step did not happen. Without one the step is
        refused, and the error says what to do instead.
        """
        closure = check_closure(closure)
        if self._stepping:
            raise RuntimeError("step() inside its own closure: the closure runs forward and backward and no more")
        kind = self._begin()
        self._stepping = True
        try:
            loss = micro_passes(self, closure, kind) if isinstance(self.m, int) else self._passes(closure, kind)
            self._finish(kind)
        except BaseException:
            self._taken_in = self.step_count if self._ascended else self._taken_in
            self.abandon()
            raise
        finally:
            self._stepping = False
        return loss

    @torch.no_grad()
    def ascend(self) -> bool:
        """Two-call form, first call: move to the perturbed weights; True if a second pass is wanted there.

        Call it after the first backward pass (for MSAM, which needs none, before its only pass). On a step that is not
        sharp it moves nothing and returns False; the gradients stay for `descend`.
        """
        if self._kind is not None:
            raise RuntimeError("ascend() twice without descend(); after an error in between, call abandon() first")
        if isinstance(self.m, int):
            raise RuntimeError(f"m={self.m} makes many ascents a step: use step(closure) with a Batch")
        kind = self._begin()
        self._spent += self._first_share(kind)
        return self._ascend(kind)

    @torch.no_grad()
    def descend(self) -> None:
        """Two-call form, second call: put the weights back, make the final gradient and step the base optimizer."""
        if self._kind is None:
            raise RuntimeError("descend() without ascend()")
        try:
            self._restore()
            self._spent += float(self._ascended)
            self._finish(self._kind)
        except BaseException:
            self.abandon()
            raise

    def needs_first_pass(self) -> bool:
        """Two-call form: whether the coming step wants a backward pass before `ascend` (MSAM's does not)."""
        return self.kind().first

    @contextmanager
    def first_pass(self) -> Iterator[None]:
        """Two-call form: encloses the first forward and backward pass where `replay_rng` or `m="rank"` is set."""
        if self.replay is not None:
            self.replay.record()
        sharp = (self._kind or self.kind()).second
        with self.without_sync() if self.m == "rank" and sharp else nullcontext():
            yield

    @contextmanager
    def second_pass(self) -> Iterator[None]:
        """Two-call form: encloses the second pass where `replay_rng` is set."""
        if self.replay is not None and (self._kind is None or self._kind.first):
            self.replay.replay()
        yield

    @torch.no_grad()
    def abandon(self) -> None:
        """Put weights and running statistics back: the step that was begun did not happen."""
        self._restore()
        self._reset()

    @contextmanager
    def unperturbed(self) -> Iterator[None]:
        """Encloses evaluation or saving: inside, the weights are the clean ones.

        Every method leaves the weights clean after a step, so this does something only between `ascend` and `descend`.
        """
        if not self._moved or self._snapshot is None:
            yield
            return
        with torch.no_grad():
            moved = vectors.clone(self.blocks, self.parameters)
            self._write(self._snapshot)
        try:
            yield
        finally:
            with torch.no_grad():
                self._write(moved)

    # -- the passes ---------------------------------------------------------------------------------------------

    def _begin(self) -> Kind:
        self.abandon()
        if self.outdated():
            self.build()
        self.unscaling.begin()
        self.move_radius()
        self._kind = self.kind()
        return self._kind

    def _passes(self, closure: Callable[..., Tensor], kind: Kind) -> Tensor:
        loss: Tensor | None = None
        if kind.first:
            part: tuple[Examples, ...] = ()
            if kind.second and self.ascent_fraction is not None:
                size = require_batch(closure, "ascent on a fraction of the batch").size
                part = (slice(0, max(1, round(size * self.ascent_fraction))),)
            self.zero_grad()
            with self.first_pass(), torch.enable_grad():
                loss = check_loss(closure(*part))
            self._spent += self._first_share(kind)
        if self._ascend(kind):
            chosen = self.select(closure)
            with self.second_pass(), torch.enable_grad():
                second = check_loss(closure() if chosen is None else closure(chosen[0]))
            self._spent += 1.0 if chosen is None else chosen[1]
            loss = second if loss is None else loss
            self._restore()
        assert loss is not None
        return loss.detach()

    def _ascend(self, kind: Kind) -> bool:
        """Perturb, if the step is sharp; gradients are then empty for the second pass."""
        self._ascended = False
        if not kind.second:
            return False
        gradient = self.gradients()
        first: Vector | None = None
        if kind.first:
            self._unscaled, self._overflowed = True, not self.unscaling.unscale(self.param_groups)
            if self._overflowed or not self._worth_it(gradient):
                return False
            self.statistics.save()
            first = self.keep(gradient) if self.keeps_first else None
        source = self.with_decay(gradient) if kind.first and self.ascent_weight_decay else gradient
        direction, length = self.direction(source)
        consume = direction is source and (source is not gradient or first is None)
        self._first, self._ascended, self._unscaled = first, True, False
        self._move(direction, length, consume)
        self.zero_grad()
        return True

    def _worth_it(self, gradient: Vector) -> bool:
        """Whether a schedule that looks at the gradient wants this step sharp."""
        if not isinstance(self.schedule, GradientNorm):
            return True
        if self._decided or self._taken_in == self.step_count:  # by a captured step; or for a pass that failed
            return True
        squared = vectors.squared_norm(self.blocks, gradient)
        return squared is not None and self.schedule.observe(self.step_count, squared)

    def _move(self, direction: Vector, length: Length, consume: bool) -> None:
        out = self.perturbed_copy
        if out is None:
            if self._snapshot is None:
                self._snapshot = self.perturbation.make_snapshot(self.blocks, self.parameters)
            vectors.copy_(self.blocks, self._snapshot, self.parameters)
            out, self._moved = self.parameters, True
        where = (self.blocks, self.param_groups, self.parameters, direction, out)
        try:
            self.perturbation(*where, scaling=self.scaling, length=length, consume=consume)
        except (RuntimeError, NotImplementedError) as error:
            if any(d is not None and d.layout != torch.strided for d in direction):
                raise ValueError(
                    "a gradient is sparse, and a perturbation is not: make it dense (sparse=False)"
                ) from error
            raise
        torch.clear_autocast_cache()

    def _restore(self) -> None:
        if self._moved and self._snapshot is not None:
            self._write(self._snapshot)
            self._moved = False
        self.statistics.restore()

    def _write(self, weights: Vector) -> None:
        """Other weights in place; an autocast region around the step must cast them anew."""
        vectors.copy_(self.blocks, self.parameters, weights)
        torch.clear_autocast_cache()

    def _finish(self, kind: Kind) -> None:
        if not self._unscaled and not self._overflowed:
            self._overflowed = not self.unscaling.unscale(self.param_groups)
        if not self._overflowed:
            self._descend(kind)
            torch.clear_autocast_cache()
        self._count(self._ascended, self._spent)
        self._reset()

    def _descend(self, kind: Kind) -> None:
        """Device work of the last part of a step: final gradient, clipping, base update."""
        self.combine(kind if self._ascended or not kind.second else PLAIN, self._first)
        if self.clip_norm is not None:
            self.clip(self.clip_norm)
        self.base.step()

    def _count(self, sharp: bool, spent: float) -> None:
        """Host work of the last part of a step."""
        self.gradient_evaluations += spent
        self.sharp_step_count += int(sharp)
        self.step_count += 1
        self._opt_called = True  # learning-rate schedulers look here for the order of calls

    def _reset(self) -> None:
        self._kind = self._first = None
        self._ascended = self._unscaled = self._overflowed = self._decided = False
        self._spent = 0.0

    def build(self) -> None:
        """(Re)read the base optimizer's groups; a snapshot of other parameters is no longer of use."""
        super().build()
        check_groups(self)
        self._snapshot = None

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: all but the buffers of a step, which the copy makes for itself."""
        if self._moved:
            raise RuntimeError("a minimizer cannot be copied between ascend() and descend()")
        return {**super().__getstate__(), "_snapshot": None, "perturbation": Perturbation(), "perturbed_copy": None}

    # -- plumbing -----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The base optimizer's state, the counters and the averages: plain containers, numbers and tensors."""
        return state_of(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state; refuses one of another method or of another library.

        A step that was begun is forgotten. Its weights are the model's affair, which has its own state to load: nothing
        is written over them here (`abandon()` before loading puts them back).
        """
        self._moved = self.statistics.saved = False
        self._reset()
        load(self, state_dict)

    def _first_share(self, kind: Kind) -> float:
        if not kind.first:
            return 0.0
        return self.ascent_fraction if kind.second and self.ascent_fraction is not None else 1.0
