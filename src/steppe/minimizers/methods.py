"""The methods that pay for two gradients on every sharp step: each a small policy on the engine.

In the formulas g(w) is the gradient of the batch's loss at w, ρ the radius, ‖·‖ one norm over all parameters that are
perturbed, and T the scaling (1 unless `scaling` says otherwise). Costs are in gradients of a whole batch a step.
The methods that pay less are in `cheap`.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor
from torch.optim import Optimizer

from . import vectors
from .engine import Minimizer
from .options import PLAIN, SHARP, Kind, Options, ScaledOptions
from .perturbation import Length
from .schedules import set_scalar
from .vectors import Vector
from .wrapper import fill


class Base(Minimizer):
    """No perturbation: the base optimizer itself. Cost 1."""

    name = "base"

    def __init__(self, base: Optimizer, **options: Unpack[Options]) -> None:
        super().__init__(base, **options)


class SAM(Minimizer):
    """Sharpness-aware minimization. Cost 2.

    The base optimizer steps with g(w + ε), where ε = ρ · g(w) / ‖g(w)‖.

    Foret, Kleiner, Mobahi, Neyshabur, "Sharpness-Aware Minimization for Efficiently Improving Generalization", ICLR
    2021 (arXiv:2010.01412). Published radii: 0.05 (CIFAR-10, ImageNet with ResNets), 0.1 (CIFAR-100), 0.2 for ViTs
    trained from scratch (Chen, Hsieh, Gong, ICLR 2022, arXiv:2106.01548). There the weight decay was part of the loss
    (`ascent_weight_decay=True`) and each accelerator had its own ε (`m="rank"`).
    """

    name = "sam"

    def __init__(self, base: Optimizer, rho: float | Tensor = 0.05, **options: Unpack[ScaledOptions]) -> None:
        super().__init__(base, rho=rho, **options)

    def kind(self) -> Kind:
        """Sharp where the schedule says so."""
        return SHARP if self.schedule(self.step_count) else PLAIN


class ASAM(SAM):
    """Adaptive SAM: the neighbourhood stretches with the weights. Cost 2.

    ε = ρ · T² g(w) / ‖T g(w)‖, with T = |w| + η on what is scaled and 1 elsewhere.

    Kwon, Kim, Park, Choi, "ASAM: Adaptive Sharpness-Aware Minimization for Scale-Invariant Learning of Deep Neural
    Networks", ICML 2021 (arXiv:2102.11600). Published: η = 0.01; ρ = 0.5 (CIFAR-10), 1.0 (CIFAR-100).
    `scaling` says what is scaled: "weights" as the authors do, "all", or "layer"; ρ does not carry over between them,
    nor from davda54/sam's `adaptive=True`, which is "all" with η = 0 and is used with ρ around 2.
    """

    name = "asam"

    def __init__(
        self,
        base: Optimizer,
        rho: float | Tensor = 0.5,
        eta: float | Tensor = 0.01,
        **options: Unpack[Options],
    ) -> None:
        """`scaling="weights"`, the default, needs `model` for the names."""
        options.setdefault("scaling", "weights")
        Minimizer.__init__(self, base, rho=rho, eta=eta, **options)


class SAMON(SAM):
    """SAM on normalisation layers only. Cost 2, with next to no elementwise work.

    ε = ρ · g_N(w) / ‖g_N(w)‖ on the affine parameters N of normalisation layers, 0 elsewhere: the norm is taken over
    what is perturbed, so ρ is larger than SAM's.

    Müller, Vlaar, Rolnick, Hein, "Normalization Layers Are All That Sharpness-Aware Minimization Needs", NeurIPS 2023
    (arXiv:2306.04226). The authors' scripts scale elementwise on all of them (`scaling="all"`) with ρ up to 10 for
    WRN-28-10 on CIFAR-100; the default here, unscaled with ρ = 0.5, is a starting point and no published number.
    """

    name = "samon"

    def __init__(self, base: Optimizer, rho: float | Tensor = 0.5, **options: Unpack[ScaledOptions]) -> None:
        """Needs `model`, to know the normalisation layers."""
        options.setdefault("perturb", "norm")
        super().__init__(base, rho=rho, **options)


class GSAM(SAM):
    """Surrogate-gap guided SAM. Cost 2.

    With ε as in SAM and g_p = g(w + ε), the clean gradient g(w) = g_∥ + g_⊥ is split against g_p, and the base
    optimizer steps with g_p − α · g_⊥. The radius follows the learning rate:
    ρ = max(0, ρ_min + (ρ_max − ρ_min) · s), with s = (lr − lr_min) / (lr_max − lr_min) kept between 0 and 1.
    `rho` in the groups is written before every step: to change the radius, change `rho_max` and `rho_min` there.

    Zhuang, Gong, Yuan, Cui, Adam, Dvornek, Tatikonda, Duncan, Liu, "Surrogate Gap Minimization Improves
    Sharpness-Aware Training", ICLR 2022 (arXiv:2203.08065). big_vision's ViT recipe for ImageNet has ρ from 0.6 down
    to 0.1 and α = 0.6.
    """

    name = "gsam"
    own_numbers = ("alpha",)
    keeps_first = True
    micro_batches = False

    def __init__(
        self,
        base: Optimizer,
        rho: float | Tensor = 0.05,
        rho_min: float = 0.0,
        alpha: float | Tensor = 0.4,
        lr_max: float | None = None,
        lr_min: float = 0.0,
        **options: Unpack[ScaledOptions],
    ) -> None:
        """`rho` holds at `lr_max`, by default each group's initial learning rate."""
        self.line = (rho_min, lr_max, lr_min)
        Minimizer.__init__(self, base, rho=rho, alpha=alpha, **options)

    def build(self) -> None:
        """Put the ends of the radius's line into the groups too."""
        super().build()
        rho_min, lr_max, lr_min = self.line
        for group in self.param_groups:
            if "rho_max" not in group and isinstance(group["rho"], Tensor):
                group["rho"] = group["rho"].clone()  # written by every step, and groups may have shared it
            highest = float(group.get("initial_lr", group["lr"])) if lr_max is None else lr_max
            ends = {"rho_max": float(group["rho"]), "rho_min": rho_min, "lr_max": highest, "lr_min": lr_min}
            fill(group, ends)

    def move_radius(self) -> None:
        """ρ from the learning rate, group by group; in tensors where either is one, so that a capture holds it."""
        for group in self.param_groups:
            span = group["lr_max"] - group["lr_min"]
            share = (group["lr"] - group["lr_min"]) / span if span else 1.0
            share = share.clamp(0.0, 1.0) if isinstance(share, Tensor) else min(1.0, max(0.0, share))
            radius = group["rho_min"] + (group["rho_max"] - group["rho_min"]) * share
            if isinstance(radius, Tensor):
                radius = radius.clamp(min=0.0)
                group["rho"] = group["rho"].copy_(radius) if isinstance(group["rho"], Tensor) else radius
            else:
                set_scalar(group, "rho", max(0.0, radius))

    def combine(self, kind: Kind, first: Vector | None) -> None:
        """g_p − α (g − c g_p) = (1 + α c) g_p − α g, with c = ⟨g, g_p⟩ / ‖g_p‖²."""
        if first is None:
            return
        second = self.gradients()
        product = vectors.inner_product(self.blocks, first, second)
        squared = vectors.squared_norm(self.blocks, second)
        if product is None or squared is None:
            return
        share = product * vectors.guarded_reciprocal(squared)
        for block in self.blocks:
            alpha = self.param_groups[block.group]["alpha"]
            vectors.scale_([block], second, 1.0 + alpha * share)
            vectors.add_([block], second, first, -alpha)


class FSAM(SAM):
    """Friendly SAM: ascends along the batch's noise. Cost 2.

    d = g(w) − σ m,  ε = ρ · d / ‖d‖,  then m ← λ m + (1 − λ) g(w), with m an average of raw gradients. It begins with a
    parameter's first gradient, and nothing is taken off that one: the first step is SAM's.

    Li, Zhou, He, Cheng, Huang, "Friendly Sharpness-Aware Minimization", CVPR 2024 (arXiv:2403.12350). Published: σ = 1;
    λ = 0.6 (ResNet-18) to 0.95; the authors' CIFAR-100 runs use ρ = 0.2.
    As in the authors' code (nblt/F-SAM), the average is taken off before it takes the gradient in, and a parameter
    without a gradient keeps its average. The paper has it the other way round, which for σ = 1 is the same ε.
    A step that fails in its second pass is made again from the average it began with.
    """

    name = "fsam"
    own_numbers = ("sigma", "lam")
    micro_batches = False
    counts = frozenset({"gradients"})

    def __init__(
        self,
        base: Optimizer,
        rho: float | Tensor = 0.05,
        sigma: float = 1.0,
        lam: float = 0.6,
        **options: Unpack[ScaledOptions],
    ) -> None:
        """`lam` is λ, the average's memory."""
        Minimizer.__init__(self, base, rho=rho, sigma=sigma, lam=lam, **options)

    def direction(self, gradient: Vector) -> tuple[Vector, Length]:
        """The gradient less its running average, which then takes the gradient in."""
        average, count = self.average("gradient"), self.average("gradients")
        for block in self.blocks:
            group = self.param_groups[block.group]
            sigma, lam = (vectors.as_scalar(group[key], block) for key in ("sigma", "lam"))
            steps, means, counts = vectors.pick(block, gradient, average, count)
            if not steps:
                continue
            if self._taken_in == self.step_count:
                _take_out(steps, means, counts, float(lam))
            vectors.add_([block], gradient, average, -sigma)
            share = (
                1.0 - (torch.stack(counts) > 0).to(block.dtype) * lam
            )  # of the gradient g = d + σ m in the new average
            torch._foreach_mul_(means, list((1.0 + share * (sigma - 1.0)).unbind()))
            torch._foreach_addcmul_(means, steps, list(share.unbind()))
            torch._foreach_add_(counts, 1.0)
        return gradient, 1.0


class LESAM(SAM):
    """Loss-equated SAM: the radius makes the loss rise by about σ, whatever the gradient's norm. Cost 2.

    ε = ρ_t · g(w) / ‖g(w)‖ with ρ_t = min(σ / ‖g(w)‖, ρ): to first order the loss rises by σ. Under a scaling T both
    norms are those of T g.

    Wang, Liu, Xie, Gao, "Fix the Loss, Not the Radius: Rethinking the Adversarial Perturbation of Sharpness-Aware
    Minimization", ICML 2026 (arXiv:2605.10183). Published for ResNet-18 on CIFAR-100: σ = 0.35 without a limit on the
    radius; the authors' code has ρ = 0.3 by default. There σ rises from 0 in the first twentieth of the training and
    falls to 0 along a cosine in the last fifth. `steppe train` does so; elsewhere set `sigma` in the groups.
    """

    name = "lesam"
    own_numbers = ("sigma",)

    def __init__(
        self,
        base: Optimizer,
        rho: float | Tensor = 0.3,
        sigma: float | Tensor = 0.35,
        **options: Unpack[ScaledOptions],
    ) -> None:
        """`rho` is the largest radius."""
        Minimizer.__init__(self, base, rho=rho, sigma=sigma, **options)

    def direction(self, gradient: Vector) -> tuple[Vector, Length]:
        """The gradient, at the length that its norm allows."""
        return gradient, self._length

    def _length(self, norm: Tensor) -> Tensor:
        """min(σ / (ρ ‖g‖), 1), with σ and ρ of the first group."""
        group = self.param_groups[0]
        return (group["sigma"] * vectors.guarded_reciprocal(norm * group["rho"])).clamp(max=1.0)


def _take_out(gradients: list[Tensor], means: list[Tensor], counts: list[Tensor], lam: float) -> None:
    """Undo what a step that failed has taken in."""
    for gradient, mean, count in zip(gradients, means, counts, strict=True):
        if count > 1 and lam > 0:
            mean.lerp_(gradient, (lam - 1.0) / lam)
            count -= 1
        else:  # nothing was there before, or nothing is left of it
            mean.zero_()
            count.zero_()
