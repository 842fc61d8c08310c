"""The oracle's problems as torch models, and how to run a minimizer on them."""

from __future__ import annotations

import numpy as np
import torch
from cases import Perceptron
from reference import Quadratic, Regression
from torch import Tensor, nn

from steppe.minimizers import Batch, Minimizer, create


class QuadraticModel(nn.Module):
    """Holds w in two parts and returns the example-wise quadratic losses."""

    def __init__(self, problem: Quadratic) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.tensor(part)) for part in problem.start)
        self.h, self.a = torch.tensor(problem.h), torch.tensor(problem.a)

    def losses(self, part: slice | Tensor) -> Tensor:
        d = torch.cat([self.weight, self.bias]) - self.a[part]
        return 0.5 * torch.einsum("ni,ij,nj->n", d, self.h, d)


class RegressionModel(Perceptron):
    """The same two-layer network, with its data."""

    def __init__(self, problem: Regression) -> None:
        super().__init__()
        self.double()
        self.x, self.y = torch.tensor(problem.x), torch.tensor(problem.y)
        for parameter, value in zip(self.parameters(), problem.start, strict=True):
            parameter.data.copy_(torch.tensor(value))

    def losses(self, part: slice | Tensor) -> Tensor:
        return 0.5 * (self(self.x[part]) - self.y[part]).square().sum(dim=1)


PROBLEMS = {"quadratic": (Quadratic, QuadraticModel), "mlp": (Regression, RegressionModel)}


def build(problem_name: str, method: str, *, lr=0.1, momentum=0.9, weight_decay=0.0, **options):
    """A problem, its model, a minimizer on it and a batch."""
    make_problem, make_model = PROBLEMS[problem_name]
    problem = make_problem()
    model = make_model(problem)
    base = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
    minimizer = create(method, base, model, **options)
    return problem, model, minimizer, Batch(problem.size, model.losses)


def two_calls(minimizer: Minimizer, closure) -> Tensor:
    """One step in the two-call form."""
    minimizer.zero_grad()
    loss = None
    if minimizer.needs_first_pass():
        with minimizer.first_pass():
            loss = closure()
    if minimizer.ascend():
        with minimizer.second_pass():
            second = closure()
        loss = second if loss is None else loss
    minimizer.descend()
    return loss


def assert_same(model: nn.Module, point: list[np.ndarray], rtol: float = 1e-10) -> None:
    for parameter, expected in zip(model.parameters(), point, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=rtol, atol=1e-12)
