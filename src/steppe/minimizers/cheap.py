"""The methods that pay less than two gradients a step: each a small policy on the engine.

Formulas as in `methods`. Two more ways to pay less belong to the engine and combine with any of the methods:
`ascent_fraction` (the first gradient on a part of the batch) and `schedule` (which steps are sharp at all).
"""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from . import vectors
from .batch import Examples, require_batch
from .engine import Minimizer
from .methods import SAM
from .options import PLAIN, SHARP, Kind, Options, ScaledOptions
from .perturbation import Length
from .schedules import GradientNorm
from .vectors import Vector

REUSE = Kind("reuse")
MOMENTUM = Kind("momentum", first=False, second=True)

FORWARD_COST = 1.0 / 3.0
"""A forward pass alone, in gradients: backward costs about twice as much as forward."""


class LookSAM(SAM):
    """Look-ahead SAM: a sharp step every k-th time, its bend reused in between. Cost 1 + 1/k.

    On a sharp step g_s = g(w + ε) is used as it is, and its part orthogonal to the clean gradient is kept:
    g_v = g_s − (⟨g, g_s⟩ / ‖g‖²) g, over all parameters at once. On the other steps the base optimizer gets
    g + α · (‖g‖ / ‖g_v‖) · g_v.

    Liu, Mai, Chen, Hsieh, You, "Towards Efficient and Scalable Sharpness-Aware Minimization", CVPR 2022
    (arXiv:2203.02714). Published: k = 5, α = 0.7, for ViTs in batches of 4096 and more. The default is 0.1: two
    batches of 128 have little of their bends in common, and with 0.7 networks did not learn CIFAR in such batches.
    """

    name = "looksam"
    own_numbers = ("alpha",)
    keeps_first = True
    micro_batches = False

    def __init__(
        self,
        base: Optimizer,
        rho: float | Tensor = 0.05,
        k: int = 5,
        alpha: float | Tensor = 0.1,
        **options: Unpack[ScaledOptions],
    ) -> None:
        if k < 1:
            raise ValueError(f"every k-th step needs k >= 1, not {k}")
        Minimizer.__init__(self, base, rho=rho, alpha=alpha, **options)
        self.k = k

    def kind(self) -> Kind:
        """Sharp every k-th step."""
        if not self.schedule(self.step_count):
            return PLAIN
        return SHARP if self.step_count % self.k == 0 else REUSE

    def combine(self, kind: Kind, first: Vector | None) -> None:
        """Keep the bend of a sharp gradient as a unit vector, or add it to a plain one."""
        gradient = self.gradients()
        bend = self.average("bend")
        if kind == REUSE:
            squared = vectors.squared_norm(self.blocks, gradient)
            for block in self.blocks if squared is not None else ():
                assert squared is not None
                vectors.add_([block], gradient, bend, squared.sqrt() * self.param_groups[block.group]["alpha"])
        if kind != SHARP or first is None:
            return
        product = vectors.inner_product(self.blocks, first, gradient)
        squared = vectors.squared_norm(self.blocks, first)
        if product is None or squared is None:
            return
        vectors.scale_(self.blocks, bend, 0.0)
        vectors.copy_(self.blocks, bend, gradient)
        vectors.add_(self.blocks, bend, first, -product * vectors.guarded_reciprocal(squared))
        length, whole = (vectors.squared_norm(self.blocks, vector) for vector in (bend, gradient))
        assert length is not None
        assert whole is not None
        noise = 4 * max(torch.finfo(block.dtype).eps for block in self.blocks)
        inverse = vectors.guarded_reciprocal(length.sqrt())
        vectors.scale_(self.blocks, bend, torch.where(length > noise**2 * whole, inverse, torch.zeros_like(inverse)))


class MSAM(Minimizer):
    """Momentum SAM: looks ahead along the momentum, so one gradient is enough. Cost 1.

    The base optimizer steps with g(w + ε), where ε = −ρ · v / ‖v‖ and v is its momentum (SGD) or first moment (Adam).

    Becker, Altrock, Risse, "Momentum-SAM: Sharpness Aware Minimization without Computational Overhead", 2024
    (arXiv:2401.12033). Published: ρ around 3 for ResNets with SGD. Over Adam look for a smaller one: with 3 a ViT
    did not learn, with 0.3 it did.
    The only pass runs at the perturbed weights, and so do BatchNorm's running statistics: re-estimate them before
    evaluation (`reestimate_batchnorm`). The weights themselves are clean after every step. In the two-call form
    `ascend()` comes before the only backward pass.
    """

    name = "msam"
    micro_batches = False
    moments: ClassVar[tuple[str, ...]] = ("momentum_buffer", "exp_avg")

    def __init__(self, base: Optimizer, rho: float | Tensor = 3.0, **options: Unpack[ScaledOptions]) -> None:
        """`base` must keep momentum."""
        super().__init__(base, rho=rho, **options)
        if self.ascent_fraction is not None or isinstance(self.schedule, GradientNorm) or self.ascent_weight_decay:
            raise ValueError("msam takes no first gradient: ascent_fraction, GradientNorm and weight decay act on that")
        if any(group.get("momentum", 1.0) == 0 for group in self.param_groups):
            raise ValueError("msam looks along the base optimizer's momentum, and this one has momentum=0")

    def kind(self) -> Kind:
        """One pass, at the perturbed weights."""
        return MOMENTUM if self.schedule(self.step_count) else PLAIN

    def direction(self, gradient: Vector) -> tuple[Vector, Length]:
        """Against the base optimizer's momentum; nothing before its first step."""
        held = [self.state.get(parameter, {}) for parameter in self.parameters]
        momentum = [next((values[key] for key in self.moments if key in values), None) for values in held]
        if self.step_count > 0 and any(held) and all(moment is None for moment in momentum):
            raise ValueError(f"the base optimizer keeps no momentum under any of the names {', '.join(self.moments)}")
        return momentum, -1.0


class ESAM(SAM):
    """Efficient SAM: perturbs some parameters, and descends on the examples that mind. Cost 1 + 1/3 + γ.

    A random subset S of the parameter tensors, each in it with probability β: ε = (ρ/β) · g_S / ‖g_S‖. Of the batch,
    the share γ of examples whose loss rose most from w to w + ε makes the second gradient; finding them takes a forward
    pass of the whole batch at w + ε.

    Du, Yan, Feng, Zhou, Zhen, Goh, Tan, "Efficient Sharpness-aware Minimization for Improved Training of Neural
    Networks", ICLR 2022 (arXiv:2110.03141). Published: β = 0.6, γ = 0.5 (ResNet-18), β = 0.5 for the wider networks.
    The scoring pass costs a third of a gradient and the subset saves elementwise work alone, so measure against SAM
    before choosing it. The subset follows from `seed` and the number of the step, so it is the same on all processes.
    In the two-call form the choice of examples is left to the caller.
    """

    name = "esam"
    micro_batches = False

    def __init__(
        self,
        base: Optimizer,
        rho: float | Tensor = 0.05,
        beta: float = 0.6,
        gamma: float = 0.5,
        **options: Unpack[ScaledOptions],
    ) -> None:
        """With γ < 1 the closure must be a `Batch`."""
        if not (0.0 < beta <= 1.0 and 0.0 < gamma <= 1.0):
            raise ValueError(f"beta and gamma lie in (0, 1], not {beta} and {gamma}")
        super().__init__(base, rho=rho, **options)
        if self.ascent_fraction is not None:
            raise ValueError("esam compares all examples' losses before and after: it takes no ascent_fraction")
        self.beta, self.gamma = beta, gamma
        alone = not (dist.is_available() and dist.is_initialized())
        self.seed = torch.initial_seed() % 2**32 if alone else 0

    @property
    def draws_subset(self) -> bool:
        """Unless all tensors are in it."""
        return self.beta < 1.0

    @property
    def chooses_examples(self) -> bool:
        """Unless all examples are chosen."""
        return self.gamma < 1.0

    def direction(self, gradient: Vector) -> tuple[Vector, Length]:
        """The gradient on a random subset of the tensors."""
        if not self.draws_subset:
            return gradient, 1.0
        if self.mask is not None:
            there = [(g, weight) for g, weight in zip(gradient, self.mask, strict=True) if g is not None]
            torch._foreach_mul_([g for g, _ in there], [weight for _, weight in there])
            return gradient, 1.0 / self.beta
        chosen = self.subset({i for i, g in enumerate(gradient) if g is not None})
        return [g if chosen[i] else None for i, g in enumerate(gradient)], 1.0 / self.beta

    def subset(self, there: set[int]) -> list[bool]:
        """Each tensor with probability β, by the seed and the number of the step."""
        generator = torch.Generator().manual_seed(self.seed + self.step_count)
        draws = torch.rand(len(self.parameters), generator=generator).tolist()
        open_to_it = {i for block in self.blocks if block.perturbed for i in block.members if i in there}
        limit = max(self.beta, min((draws[i] for i in open_to_it), default=0.0))
        return [draw <= limit for draw in draws]

    def select(self, closure: Any) -> tuple[Examples, float] | None:
        """The examples whose loss rose most."""
        if not self.chooses_examples:
            return None
        batch = require_batch(closure, "esam's choice of examples", "latest", "score")
        before = batch.latest
        assert before is not None
        count, cost = self.second_share(batch.size)
        if self.replay is not None:
            self.replay.replay(last=False)
        rise = batch.score() - before
        return rise.topk(count).indices, cost

    def second_share(self, size: int) -> tuple[int, float]:
        """The share γ, after a forward pass of the whole batch."""
        if not self.chooses_examples:
            return size, 1.0
        count = max(1, round(self.gamma * size))
        return count, FORWARD_COST + count / size

    def highest_cost(self, kind: Kind) -> float:
        """With the forward pass that chooses the examples."""
        return super().highest_cost(kind) + (FORWARD_COST + self.gamma - 1.0) * (kind.second and self.chooses_examples)


class AESAM(SAM):
    """Adaptive policy: sharp where the gradient is large for its recent history. Cost between 1 and 2, about 1.5.

    With s = ‖g(w)‖² and its running mean μ and variance σ² (memory δ), a step is sharp when s ≥ μ + c σ; c moves
    linearly from λ₂ to λ₁ over training. The rule is `schedules.GradientNorm`, and can be given to other methods.

    Jiang, Yang, Zhang, Kwok, "An Adaptive Policy to Employ Sharpness-Aware Minimization", ICLR 2023
    (arXiv:2304.14647). Published: δ = 0.9, λ₁ = −1, λ₂ = 1.
    The decision is the host's, so each step reads one number from the device, a captured one too.
    """

    name = "aesam"
    micro_batches = False

    def __init__(
        self,
        base: Optimizer,
        rho: float | Tensor = 0.05,
        decay: float = 0.9,
        start: float = 1.0,
        end: float = -1.0,
        num_steps: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        """`start` is λ₂, `end` is λ₁, reached after `num_steps`."""
        options["schedule"] = GradientNorm(decay, start, end, num_steps)
        super().__init__(base, rho=rho, **options)
