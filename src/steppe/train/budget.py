"""What a run may spend, and how far along it is: in epochs, in gradients, or in seconds."""

from __future__ import annotations

from steppe.config import BudgetConfig, RunConfig
from steppe.errors import TrainingError
from steppe.minimizers import Minimizer


def spent_share(budget: BudgetConfig, epochs: tuple[int, int], gradients: float, seconds: float) -> float:
    """The share of a budget that is spent.

    Args:
        budget: what may be spent.
        epochs: steps so far, and steps in an epoch.
        gradients: gradient evaluations so far.
        seconds: of training so far.
    """
    if budget.epochs is not None:
        steps, per_epoch = epochs
        return steps / (budget.epochs * per_epoch)
    if budget.seconds is not None:
        return seconds / budget.seconds
    assert budget.gradient_evaluations is not None
    return gradients / budget.gradient_evaluations


def next_cost(config: RunConfig, minimizer: Minimizer) -> float:
    """The most that the coming step may cost, in gradients.

    Args:
        config: the run, or one stage of it.
        minimizer: which is to make the step.
    """
    kind = minimizer.kind()
    gradients = minimizer.highest_cost(kind)
    if config.objective.name == "adversarial" and not (kind.first and kind.second):
        gradients += 1.0
    return gradients * (2 if config.objective.name == "contrastive" else 1)


def check_budget(config: RunConfig, stages: list[tuple[str | None, float]], minimizer: Minimizer) -> None:
    """Refuse a budget of gradients that does not pay for one step of each stage.

    Args:
        config: the run.
        stages: name of each, and the share of the budget at which it ends.
        minimizer: of the first; those that follow have steps of one gradient.
    """
    gradients, cost, start = config.budget.gradient_evaluations, next_cost(config, minimizer), 0.0
    for name, end in stages if gradients is not None else ():
        part = (gradients or 0) * (end - start)
        if part < cost - 1e-6:
            share = f", of which {part:g} are for the stage {name!r}," if name else ""
            what = f"a budget of {gradients} gradient(s){share} does not pay for one step"
            raise TrainingError(what, where="budget.gradient_evaluations", fix=f"a step costs {cost:g}")
        start, cost = end, 1.0


def total_epochs(config: RunConfig, steps_per_epoch: int, steps: int, share: float) -> float:
    """About how many epochs the whole budget buys, judged by what is spent so far.

    Args:
        config: the run.
        steps_per_epoch: steps in an epoch.
        steps: steps so far.
        share: the share of the budget that they spent.
    """
    budget = config.budget
    if budget.epochs is not None:
        return budget.epochs
    if budget.seconds is not None:
        return max(steps / steps_per_epoch / max(share, 1e-9), 1) if steps else 1
    assert budget.gradient_evaluations is not None
    return budget.gradient_evaluations / config.expected_gradients / steps_per_epoch
