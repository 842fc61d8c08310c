"""Curvature, sharpness and neurons as `steppe geometry` measures them: functions of (model, data, settings).

Each stores how it was computed (`how`) beside its figures; what was asked is stored by whoever runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor, nn

from steppe.data import Dataset
from steppe.errors import ConfigError, MeasureError
from steppe.geometry.curvature import measure_curvature, measure_trace, top_eigenvectors
from steppe.geometry.how import spread_over_subsets
from steppe.geometry.norms import measure_activations, measure_gradient_norms, measure_missing_rate, weight_norms
from steppe.geometry.parts import WHOLE, trained_parameters
from steppe.geometry.sharpness import measure_sharpness
from steppe.geometry.spectrum import measure_spectrum
from steppe.geometry.tangent import measure_tangent_kernel
from steppe.measuring import Batches, Settings, in_smaller_chunks
from steppe.models import activations, blocks, partitions

T = TypeVar("T")

SCALINGS = ("none", "weights", "all", "layer")


def curvature(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    """λmax of the whole Hessian and of its blocks, λmin of the whole; on request λmax of subsets of the data."""
    parts = _parts(model, settings["parts"])
    each = settings["iterations"] * (1 if settings["method"] == "lanczos" else 2)
    keys = ("method", "top", "iterations", "tolerance")
    known = {part: found for part, found in _known(settings, dict).items() if part in parts and _whole(found)}
    options: dict[str, Any] = {"parts": parts, "known": known}
    found = _of_hessian(measure_curvature, model, dataset, settings, keys, dict.fromkeys(parts, each), **options)
    if settings["subsets"] > 1:
        plain = {key: settings[key] for key in ("method", "iterations", "tolerance", "seed", "precision")}

        def largest(batches: Batches) -> float:
            same: dict[str, Any] = {"loss": settings.chosen_loss, "batch_norm": settings["batchnorm"], "check": False}
            whole = measure_curvature(model, batches, both_ends=(), **plain, **same)["parts"][WHOLE]
            return whole["lambda_max"]["value"]

        found["subsets"] = spread_over_subsets(largest, _images(dataset, settings), settings["subsets"])
    return found


def trace(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    """The trace of the Hessian and of its blocks, with error bars."""
    parts = _parts(model, settings["parts"])
    known = _known(settings, dict)
    known = known if set(known) == set(parts) and _whole(known) else {}
    options: dict[str, Any] = {"parts": parts, "known": known, "already": min(map(len, known.values()), default=0)}
    return _of_hessian(measure_trace, model, dataset, settings, ("probes",), {WHOLE: settings["probes"]}, **options)


def spectrum(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    """The density of the Hessian's eigenvalues, and how far its nodes reach."""
    products = {WHOLE: settings["steps"] * settings["probes"]}
    known = _known(settings, list)
    known = known if _whole(known) else []
    options: dict[str, Any] = {"known": known, "already": len(known) * settings["steps"]}
    found = _of_hessian(measure_spectrum, model, dataset, settings, ("probes", "steps"), products, **options)
    nodes = [node for probe in found["nodes"] for node in probe]
    return {**found, "smallest": min(nodes), "largest": max(nodes)}


def _of_hessian(
    measure: Callable[..., Any],
    model: nn.Module,
    dataset: Dataset,
    settings: Settings,
    keys: tuple[str, ...],
    products: Mapping[str, int],
    already: int = 0,
    **options: Any,
) -> dict[str, Any]:
    """Take a measure of the Hessian with these of the settings, going on where it was stopped.

    `products` says how many each part takes at most, `already` how many of a part were made before.
    """
    total, before, sum_ = sum(products.values()), {}, 0
    for part, most in products.items():
        before[part], sum_ = sum_, sum_ + most

    def progress(part: str, done: int) -> None:
        settings.tell(before.get(part, 0) + min(already + done, products.get(part, 0)), total)

    found = measure(
        model,
        _images(dataset, settings),
        loss=settings.chosen_loss,
        batch_norm=settings["batchnorm"],
        progress=progress,
        found_so_far=settings.keep,
        **{key: settings[key] for key in (*keys, "seed", "precision", "compiled")},
        **options,
    )
    return _told(found)


def sharpness(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    """Sharpness in the ball of every scaling, to first order and by several steps of ascent."""
    batches = _images(dataset, settings)
    out: dict[str, Any] = {}
    ways = {"first_order": 1, "ascent": settings["steps"]}
    for scaling in SCALINGS:
        out[scaling] = {"step_size": {}}
        for way, steps in ways.items():
            options: dict[str, Any] = {"scaling": scaling, "steps": steps, "loss": settings.chosen_loss}
            found = _told(measure_sharpness(model, batches, rho=settings[f"rho_{scaling}"], **options))
            out[scaling] |= {way: found["value"], "rho": found["rho"], "eta": found["eta"]}
            out[scaling]["step_size"][way] = found["step_size"]
            out["how"] = found["how"]
            done = SCALINGS.index(scaling) * len(ways) + list(ways).index(way) + 1
            settings.tell(done, len(SCALINGS) * len(ways))
    return out


def tangent_kernel(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    """The condition number of the tangent kernel, of the trained weights or of the initial ones."""
    model = settings.chosen_weights(model)
    block = settings["block"]
    batches = settings.batches(dataset.train, dataset, settings["blocks"] * block, block)
    asked = {key: settings[key] for key in ("definition", "logit", "relu")}
    return _told(measure_tangent_kernel(model, batches, block=block, tell=settings.tell, **asked))


def norms(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    """Norms of weights (frozen ones too), gradients and activations, and the share of active neurons, by block."""
    batches = _images(dataset, settings)
    parts = _parts(model, "all")
    settings.tell(0, 2)
    gradients = _told(measure_gradient_norms(model, batches, parts=parts, loss=settings.chosen_loss))
    settings.tell(1, 2)
    out: dict[str, Any] = {"weights": weight_norms(model, _all_parts(model)), "gradients": gradients["parts"]}
    modules = activations(model)

    def count(size: int) -> Any:
        return measure_activations(model, _images(dataset, settings, size), modules=modules)["blocks"]

    neurons = in_smaller_chunks(count, settings.batch_size, settings.say) if modules else {}
    return {**out, "activations": neurons, "how": gradients["how"]}


def missing_rate(model: nn.Module, dataset: Dataset, settings: Settings) -> dict[str, Any]:
    """How often a mixture of two images is taken for a third class."""

    def mix(size: int) -> Any:
        some = _images(dataset, settings, size)
        return measure_missing_rate(model, some, weight=settings["weight"], seed=settings["seed"])

    return _told(in_smaller_chunks(mix, settings.batch_size, settings.say))


_EIGENVECTOR_EXAMPLES = 1000
"""The Hessian whose eigenvectors span a landscape is taken on this many of its images at most."""


def eigenvectors(
    model: nn.Module, dataset: Dataset, settings: Settings, count: int
) -> tuple[list[list[Tensor]], dict[str, Any]]:
    """Directions of a landscape: the Hessian's top eigenvectors, as long as the trained weights; and how found."""
    batches = settings.batches(dataset.train, dataset, min(settings["examples"], _EIGENVECTOR_EXAMPLES))
    options: dict[str, Any] = {"top": count, "seed": settings["seed"], "loss": settings.chosen_loss}
    found, vectors = top_eigenvectors(model, batches, both_ends=(), **options)
    own = trained_parameters(model)
    length = sum(float(p.detach().double().square().sum()) for p in own.values()) ** 0.5
    directions = [[vector[name] * length for name in own] for vector in vectors[WHOLE]]
    about = {"eigenvalues": found["parts"][WHOLE]["top"], "how": found["settings"]}
    return directions, about | {"iterations": found["iterations"], "tolerance": found["tolerance"]}


def _known(settings: Settings, kind: type[T]) -> T:
    """What was found before the measure was stopped, if it is of the right kind."""
    return settings.known if isinstance(settings.known, kind) else kind()


def _whole(found: Any) -> bool:
    """Whether no number is missing: one that is not finite is kept as none."""
    inner = found.values() if isinstance(found, Mapping) else found if isinstance(found, list) else ()
    return found is not None and all(map(_whole, inner))


def _images(dataset: Dataset, settings: Settings, size: int | None = None) -> Batches:
    """The training images to measure on, `size` at a time; where a batch has its own statistics, as many as asked."""
    if settings["examples"] < 1:
        raise ConfigError("at least one example is needed", where="--set")
    if settings.get("batchnorm") == "batch":
        size = settings["batch"]
    return settings.batches(dataset.train, dataset, settings["examples"], size)


def _all_parts(model: nn.Module) -> Mapping[str, list[str]]:
    """The whole and every part that has a name, frozen parameters included."""
    everything = {WHOLE: [name for name, _ in model.named_parameters()]}
    try:
        return {**everything, **{part: list(names) for part, names in blocks(model).items() if names}}
    except ConfigError:
        return everything


def _parts(model: nn.Module, asked: str) -> Mapping[str, list[str]]:
    """The parts to measure: `whole`, `roles` (with the first, middle and last block), `all`, or names with commas."""
    everything = {WHOLE: [name for name, p in model.named_parameters() if p.requires_grad]}
    if asked == WHOLE:
        return everything
    try:
        named, ways = blocks(model), partitions(model)
    except ConfigError as error:
        if asked in ("roles", "all"):
            return everything
        raise MeasureError(error.what, fix="measure the whole model: --set lambda_max.parts=whole") from None
    trained = set(everything[WHOLE])  # of a run that fine-tuned a part, the frozen ones have no curvature to show
    kept = {part: [name for name in names if name in trained] for part, names in named.items()}
    kept = {part: names for part, names in kept.items() if names}
    numbered = [part for part in ways["blocks"] if part.startswith("block") and part in kept]
    some = {numbered[0], numbered[(len(numbered) - 1) // 2], numbered[-1]} if numbered else set()
    choices: dict[str, Callable[[str], bool]] = {
        "all": lambda part: True,
        "roles": lambda part: part in ways.get("roles", {}) or part in some,
    }
    if asked in choices:
        return {**everything, **{part: names for part, names in kept.items() if choices[asked](part)}}
    wanted = [part.strip() for part in asked.split(",")]
    for part in wanted:
        if part != WHOLE and part not in named:
            fix = f"it has: {', '.join([WHOLE, *named])}"
            raise MeasureError(f"this model has no part {part!r}", fix=fix)
        if part != WHOLE and part not in kept:
            raise MeasureError(
                f"{part!r} was not trained: all of it is frozen", fix=f"choose {', '.join([WHOLE, *kept])}"
            )
    return {part: everything[WHOLE] if part == WHOLE else kept[part] for part in wanted}


def _told(found: Any) -> dict[str, Any]:
    """The figures, with how they were computed under `how`: `settings` is for what was asked."""
    out = dict(found)
    return {**{key: value for key, value in out.items() if key != "settings"}, "how": out.get("settings")}
