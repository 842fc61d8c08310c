"""Curvature of the loss: largest and smallest eigenvalues of the Hessian and of its diagonal blocks, and its trace.

λmax is the worst curvature at a point; table 4 of Chen, Hsieh & Gong (2022) gives it for the whole of a model, its
embedding, its attention, its MLPs and single blocks. Power iteration is what that paper used (100 iterations); Lanczos
gets more out of the same products, and the other end of the spectrum with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict, Unpack

import torch
from torch import Tensor, nn

from steppe.errors import ConfigError
from steppe.geometry.eigen import Eigenpair, extreme_eigenpairs, power_iteration
from steppe.geometry.how import How, describe
from steppe.geometry.parts import WHOLE, Parts
from steppe.geometry.products import Hessian, Progress
from steppe.geometry.selfcheck import Checks, check_products
from steppe.measuring import CROSS_ENTROPY, Batches, BatchNormMode, Loss, Precision, ignore


class ProductOptions(TypedDict, total=False):
    """What every curvature figure takes, with the defaults of `Hessian`.

    loss: of each example. batch_norm: `running` or `batch` statistics. precision: `float32` or `tf32`. chunk: examples
    at a time. keep: keep graphs between products. compiled: compile the products. progress: told of every product.
    """

    loss: Loss
    batch_norm: BatchNormMode
    precision: Precision
    chunk: int | None
    keep: bool
    compiled: bool
    progress: Progress | None


class EigenOptions(ProductOptions, total=False):
    """What `measure_curvature` and `top_eigenvectors` take, with the defaults of the latter but for `top`.

    parts: names of `steppe.models.blocks`, or `whole`; or names with the parameters they stand for. method: `lanczos`
    or `power`. iterations: products at most, for each end by power iteration. tolerance: residual, in units of the
    eigenvalue, at which it counts as converged and the iteration stops. both_ends: parts of which λmin is found too; it
    is often near zero, and takes several times the products of λmax. check: check the products first (see
    `steppe.geometry.selfcheck`). seed: of the start vector.
    """

    parts: Parts
    method: Literal["lanczos", "power"]
    iterations: int
    tolerance: float
    both_ends: Sequence[str]
    check: bool
    seed: int


class Eigenvalue(TypedDict):
    """An eigenvalue and how well its vector fits: some true one lies within `residual` of `value`."""

    value: float
    residual: float
    converged: bool


class PartCurvature(TypedDict):
    """The ends of the spectrum of one diagonal block of the Hessian; λmin where it was asked for."""

    lambda_max: Eigenvalue
    lambda_min: NotRequired[Eigenvalue]
    top: list[Eigenvalue]
    parameters: int
    products: int


class Curvature(TypedDict):
    """Eigenvalues by part, and how they were measured."""

    parts: dict[str, PartCurvature]
    method: str
    iterations: int
    tolerance: float
    checks: Checks | None
    settings: How


class TraceEstimate(TypedDict):
    """The trace of one diagonal block, with its standard error over probes."""

    mean: float
    stderr: float
    parameters: int


class Trace(TypedDict):
    """Traces by part, and how they were measured."""

    parts: dict[str, TraceEstimate]
    probes: int
    checks: Checks | None
    settings: How


def measure_curvature(
    model: nn.Module,
    batches: Batches,
    *,
    top: int = 1,
    known: Mapping[str, PartCurvature] | None = None,
    found_so_far: Callable[[dict[str, PartCurvature]], None] = ignore,
    **options: Unpack[EigenOptions],
) -> Curvature:
    """Measure λmax, λmin and the largest eigenvalues of the Hessian of the mean loss, and of its diagonal blocks.

    Power iteration finds the eigenvalue of the largest magnitude; where that is not λmax, or λmin is asked for too, a
    second one, shifted by it, finds the other end.

    Args:
        model: the model; computes where its parameters are. It is left as it was found.
        batches: normalised images and labels, on its device.
        top: how many of the largest eigenvalues to find; more than one by Lanczos only.
        known: parts found before, with the same options.
        found_so_far: takes the parts found so far, after each.
        options: see `EigenOptions` and `ProductOptions`.
    """
    return top_eigenvectors(model, batches, top=top, known=known, found_so_far=found_so_far, **options)[0]


def top_eigenvectors(
    model: nn.Module,
    batches: Batches,
    *,
    parts: Parts = (WHOLE,),
    method: Literal["lanczos", "power"] = "lanczos",
    top: int = 2,
    iterations: int = 100,
    tolerance: float = 1e-3,
    both_ends: Sequence[str] = (WHOLE,),
    check: bool = True,
    seed: int = 0,
    known: Mapping[str, PartCurvature] | None = None,
    found_so_far: Callable[[dict[str, PartCurvature]], None] = ignore,
    **options: Unpack[ProductOptions],
) -> tuple[Curvature, dict[str, list[dict[str, Tensor]]]]:
    """As `measure_curvature`, with the unit eigenvectors of the largest eigenvalues.

    Returns:
        The figures, and for every part its vectors, largest eigenvalue first, each as parameter name -> tensor; a
        part that was `known` has no vectors.
    """
    if method not in ("lanczos", "power"):
        raise ConfigError(f"unknown method {method!r}", fix="choose lanczos or power")
    if iterations < 1 or top < 1:
        raise ConfigError("iterations and top must be 1 or more")
    if method == "power" and top > 1:
        raise ConfigError("power iteration finds one eigenvalue", fix="use Lanczos for the top k")
    if isinstance(both_ends, str) or not {*both_ends} <= {*parts, WHOLE}:
        raise ConfigError(
            f"both_ends must name some of the parts: {', '.join(parts)}", fix="give a list of their names"
        )
    if method == "lanczos" and top > iterations:
        fix = f"ask for at most {iterations}, or for more iterations"
        raise ConfigError(f"{iterations} iterations of Lanczos do not find {top} eigenvalues", fix=fix)
    figures: dict[str, PartCurvature] = {}
    vectors: dict[str, list[dict[str, Tensor]]] = {}
    with Hessian(model, batches, parts=parts, **options) as hessian:
        for part in parts:
            if top > hessian.size(part):
                raise ConfigError(f"{part!r} has {hessian.size(part)} parameters, and no {top} eigenvalues")
            hessian.reserve(part, iterations + 4 if method == "lanczos" else 4)
        checks = check_products(hessian, seed) if check else None
        for part in parts:
            if known and part in known:
                figures[part] = known[part]
                continue
            before = hessian.products[part]
            both = part in both_ends
            largest, smallest = _ends(hessian, part, method, top, iterations, tolerance, seed, both_ends=both)
            figures[part] = {
                "lambda_max": _figure(largest[0]),
                "top": [_figure(pair) for pair in largest],
                "parameters": hessian.size(part),
                "products": hessian.products[part] - before,
            }
            if smallest:
                figures[part]["lambda_min"] = _figure(smallest)
            vectors[part] = [hessian.unflatten(pair.vector, part) for pair in largest]
            found_so_far(figures)
        settings = describe_options(model, batches, seed, options)
    found: Curvature = {
        "parts": figures,
        "method": method,
        "iterations": iterations,
        "tolerance": tolerance,
        "checks": checks,
        "settings": settings,
    }
    return found, vectors


def _ends(
    hessian: Hessian, part: str, method: str, top: int, iterations: int, tolerance: float, seed: int, *, both_ends: bool
) -> tuple[list[Eigenpair], Eigenpair | None]:
    generator = torch.Generator().manual_seed(seed)
    start = hessian.random(part, generator)

    def multiply(vector: Tensor) -> Tensor:
        return hessian.multiply(vector, part)

    if method == "lanczos":
        basis = hessian.like(min(iterations, hessian.size(part)), hessian.size(part))
        largest, smallest, _ = extreme_eigenpairs(
            multiply, start, basis, tolerance, top=top, generator=generator, both_ends=both_ends
        )
        return largest, smallest
    first = power_iteration(multiply, start, iterations, tolerance)
    if first.value > 0 and not both_ends:
        return [first], None
    start = hessian.random(part, generator)
    second = power_iteration(multiply, start, iterations, tolerance, shift=first.value)
    return ([first], second) if first.value >= second.value else ([second], first)


def measure_trace(
    model: nn.Module,
    batches: Batches,
    *,
    parts: Parts = (WHOLE,),
    probes: int = 100,
    check: bool = True,
    seed: int = 0,
    known: Mapping[str, Sequence[float]] | None = None,
    found_so_far: Callable[[dict[str, list[float]]], None] = ignore,
    **options: Unpack[ProductOptions],
) -> Trace:
    """Estimate the trace of the Hessian and of its diagonal blocks: the mean of vᵀHv over random signs v (Hutchinson).

    One product serves every part: the terms between two parts have mean zero.

    Args:
        model: the model; it is left as it was found.
        batches: normalised images and labels, on its device.
        parts: as for `measure_curvature`.
        probes: how many v.
        check: check the products first.
        seed: of the probes.
        known: part -> what its first probes gave before, with the same options.
        found_so_far: takes what the probes gave so far, after each.
        options: see `ProductOptions`.
    """
    if probes < 2:
        raise ConfigError("a trace needs two probes or more: its error comes from their spread")
    with Hessian(model, batches, parts=parts, **options) as hessian:
        checks = check_products(hessian, seed) if check else None
        generator = torch.Generator().manual_seed(seed)
        done = min(probes, *(len(known[part]) for part in parts)) if known else 0
        terms: dict[str, list[float]] = {part: list(known[part][:done]) if known else [] for part in parts}
        for number in range(probes):
            probe = hessian.random(WHOLE, generator, signs=True)
            if number < done:
                continue
            products = hessian.unflatten(probe * hessian.multiply(probe))
            sums = dict(zip(products, torch.stack([p.sum() for p in products.values()]).tolist(), strict=True))
            for part in parts:
                terms[part].append(math.fsum(sums[name] for name in hessian.parts[part]))
            found_so_far(terms)
        sizes = {part: hessian.size(part) for part in parts}
        settings = describe_options(model, batches, seed, options)
    estimates: dict[str, TraceEstimate] = {}
    for part, values in terms.items():
        drawn = torch.tensor(values, dtype=torch.float64)
        estimates[part] = {
            "mean": float(drawn.mean()),
            "stderr": float(drawn.std()) / probes**0.5,
            "parameters": sizes[part],
        }
    return {"parts": estimates, "probes": probes, "checks": checks, "settings": settings}


def _figure(pair: Eigenpair) -> Eigenvalue:
    return {"value": pair.value, "residual": pair.residual, "converged": pair.converged}


def describe_options(model: nn.Module, batches: Batches, seed: int, options: Any) -> How:
    """Write down how a curvature figure is measured."""
    kept = {key: options[key] for key in ("batch_norm", "precision") if key in options}
    return describe(model, batches, loss=options.get("loss", CROSS_ENTROPY), seed=seed, **kept)
