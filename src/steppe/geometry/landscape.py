"""The loss along lines and squares through a model's weights, and between two models.

Directions are filter-normalised (Li et al. 2018, arXiv:1712.09913): each filter of a direction gets the length of the
same filter of the weights, so that a picture does not depend on how layers happen to be scaled; biases and the
parameters of norms, which have no filters, stay where they are. Coordinates are fractions of the weights' own lengths,
symmetric about zero, and the same for every model: pictures can be laid side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from steppe.errors import MeasureError, SteppeError
from steppe.measuring import CROSS_ENTROPY, Batches, Loss, as_found, finite, ignore

Direction = Sequence[Tensor]
"""One tensor for each trainable parameter, in the order of `trainable`."""

Row = list[float | None]


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters a direction has a part for."""
    return [p for p in model.parameters() if p.requires_grad]


def random_directions(model: nn.Module, count: int, *, seed: int = 0, normalise: bool = True) -> list[list[Tensor]]:
    """Draw Gaussian directions; models of one shape get the same ones before they are normalised.

    Args:
        model: through whose weights they go.
        count: how many.
        seed: of the draw.
        normalise: give each filter the length of the model's.
    """
    generator = torch.Generator().manual_seed(seed)  # on the CPU: the same on every device
    found = []
    for _ in range(count):
        direction = [
            torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.device, p.dtype)
            for p in trainable(model)
        ]
        found.append(filter_normalise(direction, model) if normalise else direction)
    return found


@torch.no_grad()
def filter_normalise(direction: Direction, model: nn.Module) -> list[Tensor]:
    """Give every filter (slice of the first dimension) of a direction the length of the model's; 0 for vectors.

    A Hessian eigenvector is usually taken as it is; this is for directions without a length of their own.
    """
    parameters = trainable(model)
    _check_shapes(direction, parameters)
    out = []
    for part, weight in zip(direction, parameters, strict=True):
        if weight.ndim <= 1:
            out.append(torch.zeros_like(weight))
            continue
        own, wanted = part.flatten(1).norm(dim=1), weight.flatten(1).norm(dim=1)
        factor = torch.where(own > 0, wanted / own.clamp_min(torch.finfo(own.dtype).tiny), 0.0)
        out.append(part * factor.view(-1, *[1] * (part.ndim - 1)))
    return out


def coordinates(points: int, radius: float) -> list[float]:
    """Evenly spaced from -radius to radius, exactly symmetric; the middle one of an odd number is exactly 0."""
    if points < 2 or not radius > 0:
        raise MeasureError("a landscape needs at least two points a side and a radius above 0")
    return [radius * (2 * k - (points - 1)) / (points - 1) for k in range(points)]


def batch_norms(model: nn.Module) -> list[Any]:
    """The layers whose statistics can be taken anew."""
    return [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]


class LossAt:
    """The mean loss over fixed batches, at weights that are written into the model.

    On CUDA the passes over all batches are recorded once as a graph and replayed. With `reestimate`, BatchNorm's
    statistics are taken anew at each point, as plain averages over the batches; otherwise they stay.
    """

    def __init__(
        self, model: nn.Module, batches: Batches, loss: Loss = CROSS_ENTROPY, *, reestimate: bool = False
    ) -> None:
        """Prepare for a model in evaluation mode; use within `as_found`."""
        if not batches:
            raise MeasureError("there are no images to take the loss on")
        self.model, self.batches, self.loss = model, batches, loss
        self.examples = sum(len(labels) for _, labels in batches)
        self.parameters: list[Tensor] = list(trainable(model))
        self.norms = batch_norms(model)
        self.reestimate = reestimate and bool(self.norms)
        if self.reestimate and any(len(labels) == 1 for _, labels in batches):
            what = "BatchNorm's statistics cannot be taken on one image, and the last batch has no more"
            raise SteppeError(what, fix="take an image more or less, or batches of another size")
        self.total = torch.zeros((), dtype=torch.float64, device=batches[0][0].device)
        self._graph: torch.cuda.CUDAGraph | None = None

    @torch.no_grad()
    def here(self) -> float:
        """The loss at the weights as they are."""
        if self.total.device.type != "cuda":
            self._sweep()
        else:
            if self._graph is None:
                self._record()
            assert self._graph is not None
            self._graph.replay()
        return self.total.item() / self.examples

    @torch.no_grad()
    def along(self, origin: Direction, directions: Sequence[Direction], steps: Sequence[float]) -> float:
        """The loss at origin + Σ step · direction; exactly at the origin where all steps are 0."""
        torch._foreach_copy_(self.parameters, list(origin))
        for direction, step in zip(directions, steps, strict=True):
            torch._foreach_add_(self.parameters, list(direction), alpha=step)
        return self.here()

    def _sweep(self) -> None:
        self.total.zero_()
        if self.reestimate:
            self._take_statistics()
        for images, labels in self.batches:
            self.total += self.loss(self.model(images), labels).sum(dtype=torch.float64)

    def _take_statistics(self) -> None:
        """Average over the batches: with momentum n_i / (n_1 + … + n_i), the running value is their weighted mean."""
        before = [(norm, norm.momentum) for norm in self.norms]
        seen = 0
        try:
            for norm in self.norms:
                norm.train()
            for images, _ in self.batches:
                seen += len(images)
                for norm in self.norms:
                    norm.momentum = len(images) / seen
                self.model(images)
        finally:
            for norm, momentum in before:
                norm.momentum = momentum
                norm.eval()

    def _record(self) -> None:
        stream = torch.cuda.Stream(self.total.device)
        stream.wait_stream(torch.cuda.current_stream(self.total.device))
        with torch.cuda.stream(stream):
            self._sweep()  # libraries choose their kernels before anything is recorded
        torch.cuda.current_stream(self.total.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._sweep()
        self._graph = graph


def measure_line(
    model: nn.Module,
    batches: Batches,
    direction: Direction,
    *,
    points: int = 51,
    radius: float = 1.0,
    loss: Loss = CROSS_ENTROPY,
    reestimate: bool = False,
    known: Row | None = None,
    keep: Callable[[Row], None] = ignore,
    tell: Callable[[int, int], None] = ignore,
) -> dict[str, Any]:
    """Measure the loss along a direction through the weights. Values that are not finite come as None.

    Args:
        model: left as it was found.
        batches: normalised images and labels, where the model is.
        direction: any: random and filter-normalised, an eigenvector, the way to another model.
        points: how many; with an odd number one is the model itself.
        radius: the largest step in units of the direction.
        loss: gives each example's loss.
        reestimate: take BatchNorm's statistics anew at each point.
        known: losses found before.
        keep: takes the losses so far.
        tell: takes how many points are done, and of how many.
    """
    steps = coordinates(points, radius)
    found = list(known or [])[:points]
    with as_found(model):
        origin = _origin(model, [direction])
        probe = LossAt(model, batches, loss, reestimate=reestimate)
        centre = probe.here()
        for step in steps[len(found) :]:
            found.append(finite(probe.along(origin, [direction], [step])))
            keep(found)
            tell(len(found), points)
    middle = finite(centre)
    return {"steps": steps, "loss": found, "centre": middle, "rise": rise(found, middle), "examples": probe.examples}


def measure_square(
    model: nn.Module,
    batches: Batches,
    directions: Sequence[Direction],
    *,
    points: int = 50,
    radius: float = 1.0,
    loss: Loss = CROSS_ENTROPY,
    reestimate: bool = False,
    known: list[Row] | None = None,
    keep: Callable[[list[Row]], None] = ignore,
    tell: Callable[[int, int], None] = ignore,
) -> dict[str, Any]:
    """Measure the loss on a square spanned by two directions, 50 × 50 = 2,500 points by default.

    The square is centred exactly on the weights. With an even number of points a side none lies on the centre itself,
    whose loss is measured besides and given as `centre`. Values that are not finite come as None.

    Args:
        model: left as it was found.
        batches: normalised images and labels, where the model is.
        directions: two.
        points: a side.
        radius: the largest step in units of the directions.
        loss: gives each example's loss.
        reestimate: take BatchNorm's statistics anew at each point.
        known: rows found before, the last perhaps not whole.
        keep: takes the rows so far, after each point.
        tell: takes how many points are done, and of how many.

    Returns:
        steps (of both axes), loss (row i is at steps[i] of the second direction), centre, examples.
    """
    if len(directions) != 2:
        raise MeasureError(f"a square is spanned by two directions, not {len(directions)}")
    across, up = directions
    steps = coordinates(points, radius)
    rows = [list(row) for row in known or []][:points]
    with as_found(model):
        origin = _origin(model, directions)
        probe = LossAt(model, batches, loss, reestimate=reestimate)
        centre = probe.here()
        done = max(0, len(rows) - 1)
        for index in range(done, points):
            if index == len(rows):
                rows.append([])
            for x in steps[len(rows[index]) :]:
                rows[index].append(finite(probe.along(origin, [across, up], [x, steps[index]])))
                keep(rows)
                tell(index * points + len(rows[index]), points**2)
    middle = finite(centre)
    risen = rise([loss for row in rows for loss in row], middle)
    return {"steps": steps, "loss": rows, "centre": middle, "rise": risen, "examples": probe.examples}


def measure_between(
    model: nn.Module,
    other: nn.Module,
    batches: Batches,
    *,
    points: int = 21,
    loss: Loss = CROSS_ENTROPY,
    reestimate: bool = True,
    known: Row | None = None,
    keep: Callable[[Row], None] = ignore,
    tell: Callable[[int, int], None] = ignore,
) -> dict[str, Any]:
    """Measure the loss on the way from one model to another, and the barrier between them.

    At t the weights are (1 - t) a + t b, exactly a and b at the ends. The barrier is the most by which the loss rises
    above the straight line between its ends; 0 where it never does.

    Args:
        model: left as it was found.
        other: of the same shape.
        batches: normalised images and labels, where the models are.
        points: both ends included.
        loss: gives each example's loss.
        reestimate: take BatchNorm's statistics anew at each point; otherwise they are interpolated like weights.
        known: losses found before.
        keep: takes the losses so far.
        tell: takes how many points are done, and of how many.
    """
    if points < 2:
        raise MeasureError("a way between two models needs at least two points, its ends")
    shares = [k / (points - 1) for k in range(points)]
    found = list(known or [])[:points]
    ours, theirs = model.state_dict(), other.state_dict()
    if {k: v.shape for k, v in ours.items()} != {k: v.shape for k, v in theirs.items()}:
        raise MeasureError("the two models are not of one shape", fix="compare runs of the same model and classes")
    names = [name for name, value in ours.items() if value.is_floating_point()]
    with as_found(model):
        live = [ours[name] for name in names]
        start = [tensor.clone() for tensor in live]
        end = [theirs[name].to(tensor.device, tensor.dtype) for name, tensor in zip(names, live, strict=True)]
        probe = LossAt(model, batches, loss, reestimate=reestimate)
        for share in shares[len(found) :]:
            with torch.no_grad():
                torch._foreach_copy_(live, torch._foreach_lerp(start, end, share))
            found.append(finite(probe.here()))
            keep(found)
            tell(len(found), points)
    return {"shares": shares, "loss": found, "barrier": barrier(shares, found), "examples": probe.examples}


def rise(losses: Sequence[float | None], centre: float | None) -> float | None:
    """How much higher losses are than that in the middle, on average; None where one of them is not finite."""
    values = [value for value in losses if value is not None]
    if len(values) < len(losses) or centre is None:
        return None
    return math.fsum(values) / len(values) - centre


def barrier(shares: Sequence[float], losses: Sequence[float | None]) -> float | None:
    """The most by which losses rise above the straight line between their ends; None where one is not finite."""
    values = [value for value in losses if value is not None]
    if len(values) < len(losses):
        return None
    first, last = values[0], values[-1]
    return max(0.0, *(v - ((1 - t) * first + t * last) for t, v in zip(shares, values, strict=True)))


def _origin(model: nn.Module, directions: Sequence[Direction]) -> list[Tensor]:
    parameters = trainable(model)
    for direction in directions:
        _check_shapes(direction, parameters)
        if not all(bool(torch.isfinite(part).all()) for part in direction):
            raise MeasureError("a direction holds NaN or infinity")
    return [p.detach().clone() for p in parameters]


def _check_shapes(direction: Direction, parameters: Sequence[Tensor]) -> None:
    if [tuple(d.shape) for d in direction] != [tuple(p.shape) for p in parameters]:
        raise MeasureError("a direction has not the shape of the model's trainable parameters")
