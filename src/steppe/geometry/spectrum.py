"""Spectral density of the Hessian by stochastic Lanczos quadrature (Ghorbani, Krishnan & Xiao 2019).

From a random start v, m steps of Lanczos give m nodes θ (Ritz values) and weights τ (squared first components of their
vectors) with Σ τ f(θ) ≈ vᵀf(H)v / ‖v‖², exact for polynomials up to degree 2m − 1. The mean over starts is the
spectrum's density. Nodes and weights are kept: a picture of any smoothness comes from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from steppe.errors import ConfigError
from steppe.geometry.curvature import ProductOptions, describe_options
from steppe.geometry.eigen import lanczos
from steppe.geometry.how import How
from steppe.geometry.parts import WHOLE
from steppe.geometry.products import Hessian
from steppe.geometry.selfcheck import Checks, check_products
from steppe.measuring import Batches, ignore


class Spectrum(TypedDict):
    """Nodes and weights of each probe; the weights of a probe add up to 1."""

    nodes: list[list[float]]
    weights: list[list[float]]
    part: str
    parameters: int
    probes: int
    steps: int
    checks: Checks | None
    settings: How


class FromProbe(TypedDict):
    """What one probe gave."""

    nodes: list[float]
    weights: list[float]
    fresh: int
    """Vectors that were drawn beside its start."""


def measure_spectrum(
    model: nn.Module,
    batches: Batches,
    *,
    part: str = WHOLE,
    probes: int = 5,
    steps: int = 50,
    check: bool = True,
    seed: int = 0,
    known: Sequence[FromProbe] = (),
    found_so_far: Callable[[list[FromProbe]], None] = ignore,
    **options: Unpack[ProductOptions],
) -> Spectrum:
    """Measure the density of the Hessian's eigenvalues.

    Args:
        model: the model; it is left as it was found.
        batches: normalised images and labels, on its device.
        part: whose diagonal block; a name of `steppe.models.blocks`, or `whole`.
        probes: how many random starts.
        steps: of Lanczos from each; that many products.
        check: check the products first.
        seed: of the starts.
        known: what the first probes gave before, with the same options.
        found_so_far: takes what the probes gave so far, after each.
        options: see `steppe.geometry.curvature.ProductOptions`.
    """
    if probes < 1 or steps < 1:
        raise ConfigError("probes and steps must be 1 or more")
    found = list(known)[:probes]
    with Hessian(model, batches, parts=(part,), **options) as hessian:
        hessian.reserve(part, steps + 4)
        checks = check_products(hessian, seed) if check else None
        size = hessian.size(part)
        basis = hessian.like(min(steps, size), size)
        generator = torch.Generator().manual_seed(seed)

        def multiply(vector: Tensor) -> Tensor:
            return hessian.multiply(vector, part)

        for one in found:  # draw what they drew
            hessian.random(part, generator)
            for _ in range(one["fresh"]):
                torch.randn(size, generator=generator)
        while len(found) < probes:
            start = hessian.random(part, generator)
            krylov = lanczos(multiply, start, basis, generator=generator)
            values, vectors = krylov.ritz()
            weights = (vectors[0] ** 2).tolist()
            found.append({"nodes": values.tolist(), "weights": weights, "fresh": krylov.fresh})
            found_so_far(found)
        settings = describe_options(model, batches, seed, options)
    return {
        "nodes": [one["nodes"] for one in found],
        "weights": [one["weights"] for one in found],
        "part": part,
        "parameters": size,
        "probes": probes,
        "steps": steps,
        "checks": checks,
        "settings": settings,
    }


def density(spectrum: Spectrum, grid: np.ndarray, width: float) -> np.ndarray:
    """The density at every point of a grid, each node drawn as a Gaussian; it integrates to 1.

    Args:
        spectrum: nodes and weights.
        grid: eigenvalues to give the density at.
        width: standard deviation of the Gaussians.
    """
    nodes = np.concatenate([np.asarray(probe) for probe in spectrum["nodes"]])
    weights = np.concatenate([np.asarray(probe) for probe in spectrum["weights"]]) / spectrum["probes"]
    bells = np.exp(-((grid[:, None] - nodes) ** 2) / (2 * width**2)) / (width * np.sqrt(2 * np.pi))
    return bells @ weights
