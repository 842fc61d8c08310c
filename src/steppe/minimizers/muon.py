"""Muon (Jordan et al. 2024): momentum whose hidden matrices are orthogonalised, with AdamW or SGD for all the rest.

For a matrix with the momentum M = U S Vᵀ the step goes along U Vᵀ, so every direction is learned at one rate. A few
Newton–Schulz iterations, matrix products alone, bring M close to U Vᵀ. A convolution's kernel counts as the matrix of
its outputs by all else. Matrices of one shape are iterated as one batch, so that a captured step has few kernels.

The parameter groups say what happens to their members: `orthogonal` groups take Muon's step, the others take that of
`rest`. Every number of a step may be a 0-d tensor, and nothing asks the device, so the step can be captured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration: steep at zero, and any singular value ends between about 0.7 and 1.2."""


class Muon(Optimizer):
    """Orthogonalised momentum for hidden matrices and convolutions, another optimizer for the rest, as one.

    Args:
        params: parameters or groups. A group with `orthogonal=False` takes the step of `rest`; the others hold tensors
            of two dimensions or more.
        lr: with `hold_norm` the share of its norm that a step changes of a weight; else as for AdamW.
        momentum: of the orthogonal groups, and of `rest="sgd"`; always Nesterov's.
        weight_decay: decoupled, times `lr`; means nothing to weights whose norm is held.
        iterations: of Newton–Schulz; fewer are less exact and cheaper.
        hold_norm: keep the norm of every weight of the orthogonal groups at the root of its rows. For networks in which
            a normalisation follows every weight.
        rest: "adamw" or "sgd".
        betas: of AdamW.
        eps: of AdamW.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float | Tensor = 1e-3,
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        iterations: int = 5,
        hold_norm: bool = False,
        rest: str = "adamw",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        if rest not in _RULES:
            raise ValueError(f"rest is one of {', '.join(_RULES)}, not {rest!r}")
        if iterations < 1 or not 0 <= momentum < 1:
            raise ValueError("iterations are 1 or more, and momentum is at least 0 and below 1")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "iterations": iterations,
            "hold_norm": hold_norm,
            "orthogonal": True,
            "rest": rest,
            "betas": betas,
            "eps": eps,
            "capturable": True,  # by this torch loads counts of steps to the device
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; refuse vectors among what is to be orthogonalised."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        flat = [tuple(p.shape) for p in group["params"] if p.ndim < 2]
        if group["orthogonal"] and flat:
            self.param_groups.pop()
            raise ValueError(f"a tensor of shape {flat[0]} is no matrix: put it into a group with orthogonal=False")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                rule = _step_orthogonal if group["orthogonal"] else _RULES[group["rest"]]
                rule(parameters, [p.grad for p in parameters], [self.state[p] for p in parameters], group)
        return loss


def orthogonalise(matrices: Tensor, iterations: int) -> Tensor:
    """Replace the singular values of a batch of matrices (N, rows, columns) by numbers near 1.

    Args:
        matrices: any floats; the products are done in their precision.
        iterations: of Newton–Schulz.
    """
    a, b, c = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(iterations):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def _step_orthogonal(parameters: list[Tensor], gradients: list[Any], states: list[Any], group: dict[str, Any]) -> None:
    directions = _momentum(gradients, states, group["momentum"])
    updates = _orthogonalise_each(directions, group["iterations"])
    if group["hold_norm"]:
        scales = [p.shape[0] ** 0.5 / p.norm().clamp_min(1e-7) for p in parameters]
        torch._foreach_mul_(parameters, scales)
    else:  # a root mean square of 0.2, about that of AdamW's steps (Liu et al., arXiv:2502.16982)
        torch._foreach_mul_(updates, [0.2 * max(p.shape[0], p[0].numel()) ** 0.5 for p in parameters])
        _decay(parameters, group)
    _move(parameters, updates, group["lr"])


def _orthogonalise_each(directions: list[Tensor], iterations: int) -> list[Tensor]:
    """Orthogonalise tensors as matrices of their first dimension by the rest; those of one shape as one batch."""
    alike: dict[torch.Size, list[int]] = defaultdict(list)
    for index, direction in enumerate(directions):
        alike[direction.flatten(1).shape].append(index)
    found: list[Tensor] = list(directions)
    for members in alike.values():
        batch = torch.stack([directions[index].flatten(1) for index in members])
        done = orthogonalise(batch.bfloat16() if batch.is_cuda else batch, iterations).to(batch.dtype)
        for index, matrix in zip(members, done.unbind(), strict=True):
            found[index] = matrix.reshape(directions[index].shape)
    return found


def _step_sgd(parameters: list[Tensor], gradients: list[Any], states: list[Any], group: dict[str, Any]) -> None:
    directions = _momentum(gradients, states, group["momentum"])
    _decay(parameters, group)
    _move(parameters, directions, group["lr"])


def _step_adamw(parameters: list[Tensor], gradients: list[Any], states: list[Any], group: dict[str, Any]) -> None:
    first_decay, second_decay = group["betas"]
    for state, parameter in zip(states, parameters, strict=True):
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
    counts = [state["step"] for state in states]
    means, squares = [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states]
    torch._foreach_add_(counts, 1.0)
    torch._foreach_lerp_(means, gradients, 1 - first_decay)
    torch._foreach_mul_(squares, second_decay)
    torch._foreach_addcmul_(squares, gradients, gradients, 1 - second_decay)
    first = [1 - first_decay**count for count in counts]
    second = [(1 - second_decay**count).sqrt() for count in counts]
    roots = torch._foreach_div(torch._foreach_sqrt(squares), second)
    torch._foreach_add_(roots, group["eps"])
    updates = list(torch._foreach_div(torch._foreach_div(means, first), roots))
    _decay(parameters, group)
    _move(parameters, updates, group["lr"])


def _momentum(gradients: list[Any], states: list[Any], momentum: float) -> list[Tensor]:
    """Take the gradients into their running sums, and return what Nesterov's momentum steps along."""
    for state, gradient in zip(states, gradients, strict=True):
        if not state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
    sums = [state["momentum_buffer"] for state in states]
    torch._foreach_mul_(sums, momentum)
    torch._foreach_add_(sums, gradients)
    return list(torch._foreach_add(gradients, sums, alpha=momentum))


def _decay(parameters: list[Tensor], group: dict[str, Any]) -> None:
    if group["weight_decay"]:
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])


def _move(parameters: list[Tensor], updates: list[Tensor], lr: float | Tensor) -> None:
    torch._foreach_sub_(parameters, torch._foreach_mul(updates, lr))


_RULES = {"adamw": _step_adamw, "sgd": _step_sgd}
"""How the rest learns, by name."""
