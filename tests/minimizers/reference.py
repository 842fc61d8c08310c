"""Every method written out in NumPy, in float64, one formula after the other: the tests' oracle.

Nothing here is fast or general. A point is a list of arrays, a problem knows its per-example losses and gradients.
"""

from __future__ import annotations

import numpy as np

Point = list[np.ndarray]


class Regression:
    """½‖f(x) − y‖² for a two-layer tanh network; parameters W1, b1, W2, b2."""

    names = ("hidden.weight", "hidden.bias", "out.weight", "out.bias")

    def __init__(self, examples: int = 12, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.size = examples
        self.x, self.y = rng.normal(size=(examples, 4)), rng.normal(size=(examples, 3))
        self.start = [rng.normal(size=shape) * 0.7 for shape in ((6, 4), (6,), (3, 6), (3,))]

    def losses(self, w: Point, part=slice(None)) -> np.ndarray:
        hidden = np.tanh(self.x[part] @ w[0].T + w[1])
        return 0.5 * ((hidden @ w[2].T + w[3] - self.y[part]) ** 2).sum(axis=1)

    def gradient(self, w: Point, part=slice(None)) -> Point:
        x = self.x[part]
        hidden = np.tanh(x @ w[0].T + w[1])
        error = (hidden @ w[2].T + w[3] - self.y[part]) / len(x)
        back = (error @ w[2]) * (1 - hidden**2)
        return [back.T @ x, back.sum(axis=0), error.T @ hidden, error.sum(axis=0)]


class Quadratic:
    """½ (w − aᵢ)ᵀ H (w − aᵢ): the gradient is H(w − ā); w is cut into a weight and a bias."""

    names = ("weight", "bias")

    def __init__(self, examples: int = 10, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        root = rng.normal(size=(5, 5))
        self.size = examples
        self.h, self.a = root @ root.T / 5 + 0.1 * np.eye(5), rng.normal(size=(examples, 5))
        self.start = [rng.normal(size=3), rng.normal(size=2)]

    def losses(self, w: Point, part=slice(None)) -> np.ndarray:
        d = np.concatenate(w) - self.a[part]
        return 0.5 * np.einsum("ni,ij,nj->n", d, self.h, d)

    def gradient(self, w: Point, part=slice(None)) -> Point:
        g = self.h @ (np.concatenate(w) - self.a[part].mean(axis=0))
        return [g[:3], g[3:]]


def dot(a: Point, b: Point) -> float:
    return float(sum((x * y).sum() for x, y in zip(a, b, strict=True)))


def norm(a: Point) -> float:
    return dot(a, a) ** 0.5


def add(a: Point, b: Point, factor: float = 1.0) -> Point:
    return [x + factor * y for x, y in zip(a, b, strict=True)]


def scale(a: Point, factor: float) -> Point:
    return [factor * x for x in a]


def scaling_of(problem, w: Point, scaling: str, eta: float) -> Point:
    """T of ASAM's perturbation."""
    if scaling == "layer":
        return [np.full_like(x, np.sqrt((x**2).sum()) + eta) for x in w]
    chosen = [scaling == "all" or (scaling == "weights" and "weight" in name) for name in problem.names]
    return [np.abs(x) + eta if scaled else np.ones_like(x) for x, scaled in zip(w, chosen, strict=True)]


def perturbation(problem, w: Point, direction: Point, rho: float, scaling="none", eta=0.0) -> Point:
    """ρ T² d / ‖T d‖."""
    t = scaling_of(problem, w, scaling, eta)
    td = [x * y for x, y in zip(t, direction, strict=True)]
    return [rho * x * y / norm(td) for x, y in zip(t, td, strict=True)]


class Reference:
    """Minimizes a problem with one of the methods around SGD with momentum and weight decay."""

    def __init__(self, problem, lr=0.1, momentum=0.9, weight_decay=0.0) -> None:
        self.problem, self.lr, self.momentum, self.weight_decay = problem, lr, momentum, weight_decay
        self.w = [x.copy() for x in problem.start]
        self.v: Point | None = None
        self.memory: dict = {}
        self.steps = 0

    def g(self, w: Point, part=slice(None)) -> Point:
        return self.problem.gradient(w, part)

    def run(self, method: str, steps: int, **options) -> list[float]:
        losses = []
        for _ in range(steps):
            loss, gradient = getattr(self, method)(**options)
            gradient = add(gradient, self.w, self.weight_decay)
            self.v = gradient if self.v is None else add(scale(self.v, self.momentum), gradient)
            self.w = add(self.w, self.v, -self.lr)
            self.steps += 1
            losses.append(loss)
        return losses

    def loss(self, w: Point, part=slice(None)) -> float:
        return float(self.problem.losses(w, part).mean())

    def base(self):
        return self.loss(self.w), self.g(self.w)

    def sam(self, rho, scaling="none", eta=0.0, fraction=1.0, decay=False):
        part = slice(0, round(self.problem.size * fraction))
        first = self.g(self.w, part)
        source = add(first, self.w, self.weight_decay) if decay else first
        epsilon = perturbation(self.problem, self.w, source, rho, scaling, eta)
        return self.loss(self.w, part), self.g(add(self.w, epsilon))

    def asam(self, rho, eta, scaling="weights"):
        return self.sam(rho, scaling, eta)

    def micro(self, rho, m, scaling="none", eta=0.0):
        n, total, loss = self.problem.size, None, 0.0
        for start in range(0, n, m):
            part = slice(start, min(start + m, n))
            share = (part.stop - part.start) / n
            epsilon = perturbation(self.problem, self.w, self.g(self.w, part), rho, scaling, eta)
            gradient = scale(self.g(add(self.w, epsilon), part), share)
            total = gradient if total is None else add(total, gradient)
            loss += share * self.loss(self.w, part)
        return loss, total

    def looksam(self, rho, k, alpha):
        first, loss = self.g(self.w), self.loss(self.w)
        if self.steps % k:
            bend = self.memory["bend"]
            return loss, add(first, bend, alpha * norm(first) / norm(bend))
        sharp = self.g(add(self.w, perturbation(self.problem, self.w, first, rho)))
        self.memory["bend"] = add(sharp, first, -dot(first, sharp) / dot(first, first))
        return loss, sharp

    def msam(self, rho):
        w = self.w if self.v is None else add(self.w, self.v, -rho / norm(self.v))
        return self.loss(w), self.g(w)

    def gsam(self, rho, alpha, rho_min=0.0, lr_max=None):
        rho = max(0.0, rho_min + (rho - rho_min) * self.lr / (lr_max or self.lr))
        first = self.g(self.w)
        sharp = self.g(add(self.w, perturbation(self.problem, self.w, first, rho)))
        parallel = scale(sharp, dot(first, sharp) / dot(sharp, sharp))
        return self.loss(self.w), add(sharp, add(first, parallel, -1.0), -alpha)

    def fsam(self, rho, sigma, lam):
        first, average = self.g(self.w), self.memory.get("m")
        step = first if average is None else add(first, average, -sigma)
        self.memory["m"] = first if average is None else add(scale(average, lam), first, 1 - lam)
        epsilon = perturbation(self.problem, self.w, step, rho)
        return self.loss(self.w), self.g(add(self.w, epsilon))

    def lesam(self, rho, sigma, scaling="none", eta=0.0):
        first, loss = self.g(self.w), self.loss(self.w)
        t = scaling_of(self.problem, self.w, scaling, eta)
        radius = min(sigma / norm([x * y for x, y in zip(t, first, strict=True)]), rho)
        return loss, self.g(add(self.w, perturbation(self.problem, self.w, first, radius, scaling, eta)))

    def samon(self, rho, chosen):
        first = [x if take else np.zeros_like(x) for x, take in zip(self.g(self.w), chosen, strict=True)]
        return self.loss(self.w), self.g(add(self.w, perturbation(self.problem, self.w, first, rho)))

    def esam(self, rho, beta, gamma, masks):
        mask = masks[self.steps]
        first = [x if take else np.zeros_like(x) for x, take in zip(self.g(self.w), mask, strict=True)]
        moved = self.w
        if any(mask):
            moved = add(self.w, perturbation(self.problem, self.w, first, rho / beta))
        rise = self.problem.losses(moved) - self.problem.losses(self.w)
        part = np.argsort(-rise)[: round(gamma * self.problem.size)]
        return self.loss(self.w), self.g(moved, part)

    def aesam(self, rho, decay, start, end, num_steps):
        first, loss = self.g(self.w), self.loss(self.w)
        s = dot(first, first)
        mean = decay * self.memory.get("mean", s) + (1 - decay) * s
        variance = decay * self.memory.get("variance", 0.0) + (1 - decay) * (s - mean) ** 2
        self.memory |= {"mean": mean, "variance": variance}
        c = start + (end - start) * min(1.0, self.steps / num_steps)
        if s < mean + c * variance**0.5:
            self.memory["plain"] = self.memory.get("plain", 0) + 1
            return loss, first
        return loss, self.g(add(self.w, perturbation(self.problem, self.w, first, rho)))
