"""Multinomial logistic regression on features: the best linear head for a frozen network.

minimise  mean of -log p(label)  +  penalty/2 · ‖W‖²,   p = softmax(W x + b)

The problem is convex, so its solution needs no learning rate, schedule or number of epochs: L-BFGS runs until the
gradient is small. Features are centred and divided by their mean norm first, which makes one range of penalties right
for every network; of several networks side by side each is divided by its own, so that the penalty weighs them alike.
The returned head has that undone. The folds of a cross-validation are solved together, on the
leading principal components: one large matrix product is quicker than many small ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from steppe.config import derive_seed
from steppe.measuring import ignore

PENALTIES = (1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6)
"""What cross-validation chooses from, the strongest first: each solution is the start of the next one."""
FOLDS = 5
COMPONENTS = 512
"""Principal components that cross-validation works with: accuracies differ by less than their standard error."""
TOLERANCE = 2e-5
"""Largest entry of the gradient at which a problem counts as solved; accuracies no longer change below it."""
MAX_ITERATIONS = 80
FOLD_ITERATIONS = 25
"""Iterations for each penalty of a cross-validation, from the solution of the stronger one before."""


@dataclass(frozen=True)
class Head:
    """A linear classifier: logits = features @ weight.T + bias."""

    weight: Tensor
    bias: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Return the logits of a batch of features."""
        return features.float() @ self.weight.T + self.bias


@dataclass(frozen=True)
class CrossValidation:
    """The answers of heads on images they have not learned, at the best penalty.

    Args:
        penalty: the one with the best accuracy; among equals, the smaller loss.
        logits: (N, classes), each row by the head whose training left this image out.
        accuracy: of these answers.
        loss: their mean -log p(label).
    """

    penalty: float
    logits: Tensor
    accuracy: float
    loss: float

    @property
    def error(self) -> float:
        """The standard error of the accuracy, from the number of images."""
        return math.sqrt(max(self.accuracy * (1 - self.accuracy), 0.0) / len(self.logits))


def fit_head(
    features: Tensor, labels: Tensor, classes: int, penalty: float, *, widths: Sequence[int] | None = None
) -> Head:
    """Solve one problem.

    Args:
        features: (N, D), of any floating type.
        labels: (N,) of int64.
        classes: their number.
        penalty: of the squared weights.
        widths: how many features each network has; by default all are of one.
    """
    scaled, centre, scale = _standardise(features, widths)
    learned = torch.ones(1, len(labels), dtype=torch.bool, device=features.device)
    problem = _Problem(scaled, labels, classes, learned)
    problem.solve(penalty, MAX_ITERATIONS)
    weight, bias = problem.weights[:, :-1] / scale, problem.weights[:, -1]
    return Head(weight, bias - weight @ centre)


def cross_validate(
    features: Tensor,
    labels: Tensor,
    classes: int,
    *,
    penalties: Sequence[float] = PENALTIES,
    folds: int = FOLDS,
    seed: int = 0,
    widths: Sequence[int] | None = None,
    pause: Callable[[], None] = ignore,
) -> CrossValidation:
    """Choose a penalty by the answers on images that were left out.

    Args:
        features: (N, D), of any floating type.
        labels: (N,) of int64.
        classes: their number.
        penalties: tried in this order, the strongest first, until two in a row were worse.
        folds: parts of the images, each left out once; stratified by class.
        seed: of the division into folds.
        widths: how many features each network has; by default all are of one.
        pause: called between two penalties; what it raises ends the search.
    """
    fold = assign_folds(labels.cpu().numpy(), folds, seed)
    left_out = torch.from_numpy(fold[None] == np.arange(fold.max() + 1)[:, None]).to(features.device)
    components, spread = _principal_components(_standardise(features, widths)[0], seed)
    problem = _Problem(components, labels, classes, ~left_out, spread)
    found: list[CrossValidation] = []
    for penalty in penalties:
        pause()
        problem.solve(penalty, FOLD_ITERATIONS)
        logits = problem.logits_left_out(left_out)
        loss = torch.nn.functional.cross_entropy(logits, labels).item()
        accuracy = (logits.argmax(1) == labels).float().mean().item()
        found.append(CrossValidation(penalty, logits.cpu(), accuracy, loss))
        best = max(found, key=lambda one: (one.accuracy, -one.loss))
        if len(found) - found.index(best) > 2:
            break
    return max(found, key=lambda one: (one.accuracy, -one.loss))


def assign_folds(labels: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """Give every image the number of its fold: each class is spread over the folds as evenly as possible.

    Args:
        labels: (N,).
        folds: their number, at most the images of the largest class.
        seed: of the order within a class.
    """
    folds = max(2, min(folds, int(np.bincount(labels).max())))
    rng = np.random.default_rng(derive_seed(seed, "folds"))
    fold, start = np.empty(len(labels), np.int64), 0
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        fold[members] = (start + np.arange(len(members))) % folds
        start += len(members)  # the next class begins with the fold after this one's last
    return fold


def _standardise(features: Tensor, widths: Sequence[int] | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return centred features of mean norm 1, the centre, and what each was divided by; networks have equal norms."""
    x = features.float()
    centre = x.mean(0)
    x = x - centre
    widths = widths or (x.shape[1],)
    norms = torch.stack([part.norm(dim=1).mean().clamp_min(1e-12) for part in x.split(list(widths), 1)])
    scale = norms.repeat_interleave(torch.tensor(widths, device=x.device))
    x = x / scale
    rest = x.norm(dim=1).mean().clamp_min(1e-12)
    return x / rest, centre, scale * rest


def _principal_components(x: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return the leading principal components of centred features, and the standard deviation of each."""
    count = min(COMPONENTS, *x.shape)
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        torch.manual_seed(derive_seed(seed, "components") % 2**32)
        basis = torch.svd_lowrank(x, count, niter=2)[2] if count < x.shape[1] else torch.eye(count, device=x.device)
    components = x @ basis
    return components, components.square().mean(0).sqrt()


class _Problem:
    """Problems on the same images, of which each learns some; solved side by side."""

    def __init__(self, x: Tensor, labels: Tensor, classes: int, learned: Tensor, spread: Tensor | None = None) -> None:
        """Begin with weights of zero.

        Args:
            x: (N, D), standardised.
            labels: (N,) of int64.
            classes: their number.
            learned: (problems, N), the images that each problem learns.
            spread: standard deviations of the features; given, they are used to precondition the problem.
        """
        self.x, self.classes, self.count = x, classes, len(learned)
        self.spread = spread
        self.scale = torch.ones(x.shape[1], device=x.device)
        self.share = (learned / learned.sum(1, keepdim=True)).T.contiguous()[:, :, None]  # (N, problems, 1)
        self.index = labels[:, None, None].expand(-1, self.count, 1)
        self.weights = torch.zeros(self.count * classes, x.shape[1] + 1, device=x.device)

    def solve(self, penalty: float, iterations: int) -> None:
        """Move from the present weights to the solution for this penalty."""
        if self.spread is not None:  # the curvature along a component is about spread² / 10
            self.scale = (self.spread.square() / 10 + penalty).rsqrt()
        x, decay = self.x * self.scale, penalty * self.scale.square()
        weights = torch.cat([self.weights[:, :-1] / self.scale, self.weights[:, -1:]], 1).requires_grad_()
        optimizer = torch.optim.LBFGS(
            [weights],
            max_iter=iterations,
            tolerance_grad=TOLERANCE,
            tolerance_change=0.0,
            history_size=12,
            line_search_fn="strong_wolfe",
        )

        @torch.no_grad()
        def evaluate() -> Tensor:
            w = weights[:, :-1]
            logits = torch.addmm(weights[:, -1], x, w.T).view(len(x), self.count, self.classes)
            log_p = logits.log_softmax(2)
            loss = -(log_p.gather(2, self.index) * self.share).sum() + (decay * w.square()).sum() / 2
            slope = log_p.exp_()
            slope.scatter_add_(2, self.index, torch.full_like(self.share, -1.0).expand_as(self.index).contiguous())
            slope = (slope * self.share).flatten(1)
            weights.grad = torch.cat([slope.T @ x + decay * w, slope.sum(0)[:, None]], 1)
            return loss

        optimizer.step(evaluate)
        solved = weights.detach()
        self.weights = torch.cat([solved[:, :-1] * self.scale, solved[:, -1:]], 1)

    def logits_left_out(self, left_out: Tensor) -> Tensor:
        """Return the logits (N, classes) of every image by the problem for which `left_out` (problems, N) is true."""
        logits = torch.addmm(self.weights[:, -1], self.x, self.weights[:, :-1].T)
        chosen = left_out.int().argmax(0)
        return logits.view(len(self.x), self.count, self.classes)[torch.arange(len(self.x)), chosen]
