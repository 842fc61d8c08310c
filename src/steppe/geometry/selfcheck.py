"""A curvature figure checks itself before it is given: is the product symmetric, and is it the gradient's derivative?

Second derivatives are seldom used, and operations exist whose second derivative is wrong without a word. Symmetry,
uᵀHv = vᵀHu, is measured on the very products that the figure will be made of. The derivative is compared with
central differences of the gradient on a few examples in float64, with steps so short that hardly any ReLU switches
(with longer ones the kinks of a ReLU network, whose Hessian does not see them, would drown it).
"""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import TypedDict

import torch
from torch import Tensor

from steppe.errors import MeasureError
from steppe.geometry.products import Hessian
from steppe.measuring import Batches

_STEPS = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9)
"""Relative to the weights. A ResNet-18 of 32 pixels has millions of ReLUs: down to 1e-7 some of them switch."""
_FEW = 8
_ALLOWED = 0.02
"""How far a product may be from differences of gradients, as a share."""


class Checks(TypedDict):
    """How far the products were from what they must be; None where a check could not be made."""

    symmetry: float
    finite_differences: float | None


def check_products(hessian: Hessian, seed: int = 0) -> Checks:
    """Make both checks.

    Args:
        hessian: entered; its products are measured.
        seed: of the vectors.

    Raises:
        MeasureError: a product is wrong, or the gradient jumps here, so that there is nothing to be right about.
    """
    few = [(images[:_FEW], targets[:_FEW]) for images, targets in hessian.batches[:1]]
    symmetry = _asymmetry(hessian, seed)
    allowed = 1e-5 if _dtype(hessian) == torch.float64 else 0.1 if hessian.precision == "tf32" else 0.02
    if not symmetry <= allowed:
        raise MeasureError(
            f"the Hessian's products are not symmetric (off by {symmetry:.1%}), so no figure is given",
            fix="look for an operation of the model whose second derivative is wrong or random",
        )
    differences = None if few[0][0].device.type == "mps" else _difference_error(hessian, few, seed)
    if differences is not None and not differences <= _ALLOWED:
        raise MeasureError(
            f"the Hessian's products differ by {differences:.1%} from differences of gradients, so no figure is given",
            fix="look for an operation of the model whose second derivative is wrong",
        )
    return {"symmetry": symmetry, "finite_differences": differences}


def _dtype(hessian: Hessian) -> torch.dtype:
    return next(iter(hessian.named.values())).dtype


def _asymmetry(hessian: Hessian, seed: int) -> float:
    """|uᵀHv − vᵀHu| in units of what uᵀHv is for random vectors, ‖Hv‖ ‖u‖ / √n."""
    generator = torch.Generator().manual_seed(seed)
    u, v = (hessian.random("whole", generator) for _ in range(2))
    hu, hv = hessian.multiply(u), hessian.multiply(v)
    scale = (hu.norm() * v.norm() + hv.norm() * u.norm()) / 2 / len(u) ** 0.5
    return float((torch.dot(u, hv) - torch.dot(v, hu)).abs() / scale) if float(scale) else 0.0


def _difference_error(hessian: Hessian, few: Batches, seed: int) -> float:
    """‖(∇L(w + tv) − ∇L(w − tv))/2t − Hv‖ / ‖Hv‖ in float64, for the best of a few t."""
    model = copy.deepcopy(hessian.model).double()
    wide = [(images.double() if images.is_floating_point() else images, targets) for images, targets in few]
    with Hessian(model, wide, loss=hessian.loss, batch_norm=hessian.batch_norm, checked=True, keep=False) as exact:
        weights = list(exact.named.values())
        direction = exact.random("whole", torch.Generator().manual_seed(seed + 1))
        moved = exact.multiply(direction)
        steps = exact.unflatten(direction).values()
        total = float(torch.stack([w.detach().norm() for w in weights]).norm())
        length = (total or 1.0) / float(direction.norm())  # a fresh head may be all zeros
        origin = [w.detach().clone() for w in weights]
        errors = []
        for relative in _STEPS:
            t = length * relative
            sides: list[Tensor] = []
            for sign in (1.0, -1.0):
                with torch.no_grad():
                    for weight, start, step in zip(weights, origin, steps, strict=True):
                        weight.copy_(start + sign * t * step)
                sides.append(exact.gradient())
            error = ((sides[0] - sides[1]) / (2 * t) - moved).norm()
            rounding = torch.finfo(torch.float64).eps * (1 + sides[0].norm()) / t  # all there is where H is zero
            errors.append(float(error / (moved.norm() + 10 * rounding)))
    if min(errors) > _ALLOWED and all(5 * large < small for large, small in pairwise(errors)):
        raise MeasureError(
            "the gradient jumps at these very weights, so the loss has no curvature there",
            fix="measure trained weights: in a fresh network with layers of zeros, ReLUs sit exactly at their kink",
        )
    return min(errors)
