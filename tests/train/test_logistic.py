"""The logistic regression of a probe: against scikit-learn and automatic differentiation in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from steppe.errors import Interrupted
from steppe.train import logistic
from steppe.train.logistic import PENALTIES, Head, assign_folds, cross_validate, fit_head

CLASSES = 4


def blobs(count: int = 240, width: int = 12, spread: float = 1.6, seed: int = 0):
    """Features of overlapping classes around centres, far from the origin and of large norm."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    centres = torch.randn(CLASSES, width, generator=torch.Generator().manual_seed(99))
    features = centres[labels] + spread * torch.randn(count, width, generator=generator)
    return 7 * features + 30, labels


def standardised(features: torch.Tensor) -> torch.Tensor:
    x = features.double() - features.double().mean(0)
    return x / x.norm(dim=1).mean()


def objective(x: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, penalty: float):
    nll = torch.nn.functional.cross_entropy(x @ weight.T + bias, labels)
    return nll + penalty / 2 * weight.square().sum()


def in_standard_units(head: Head, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The head as it was solved for: on features that are centred and divided by their mean norm."""
    centre = features.double().mean(0)
    scale = (features.double() - centre).norm(dim=1).mean()
    return head.weight.double() * scale, head.bias.double() + head.weight.double() @ centre


@pytest.mark.parametrize("penalty", [1e-2, 1e-3, 1e-4])
def test_head_solves_the_objective_that_scikit_learn_solves(penalty):
    features, labels = blobs()
    head = fit_head(features, labels, CLASSES, penalty)
    x = standardised(features)
    reference = LogisticRegression(C=1 / (penalty * len(x)), tol=1e-10, max_iter=10_000).fit(x.numpy(), labels.numpy())
    theirs = torch.from_numpy(reference.coef_), torch.from_numpy(reference.intercept_)
    ours = in_standard_units(head, features)
    losses = [objective(x, labels, *solution, penalty).item() for solution in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)
    assert losses[0] >= losses[1] - 1e-6, "theirs is the minimum"
    right = (head(features).argmax(1) == labels).double().mean().item()
    assert right == pytest.approx(reference.score(x.numpy(), labels.numpy()), abs=1e-3)


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_networks_side_by_side_count_alike_however_large_their_features_are(factor):
    features, labels = blobs(width=12)
    other, _ = blobs(width=8, seed=1)
    plain, scaled = torch.cat([features, other], 1), torch.cat([features, factor * other], 1)
    widths = [12, 8]
    heads = [fit_head(each, labels, CLASSES, 1e-3, widths=widths) for each in (plain, scaled)]
    torch.testing.assert_close(heads[0](plain), heads[1](scaled), rtol=0, atol=5e-2)
    found = [cross_validate(each, labels, CLASSES, penalties=(1e-3,), widths=widths) for each in (plain, scaled)]
    torch.testing.assert_close(found[0].logits, found[1].logits, rtol=0, atol=5e-2)
    alone = fit_head(scaled, labels, CLASSES, 1e-3)
    assert (alone(scaled) - heads[0](plain)).abs().max() > 0.5, "undivided, the larger ones decide"


def test_gradient_at_the_solution_is_nothing_in_double_precision():
    features, labels = blobs()
    weight, bias = (part.requires_grad_() for part in in_standard_units(fit_head(features, labels, 4, 1e-3), features))
    objective(standardised(features), labels, weight, bias, 1e-3).backward()
    assert weight.grad.abs().max() < 2 * logistic.TOLERANCE
    assert bias.grad.abs().max() < 2 * logistic.TOLERANCE


@pytest.mark.parametrize("preconditioned", [False, True])
def test_gradient_of_every_fold_agrees_with_automatic_differentiation(monkeypatch, preconditioned):
    """Asked for at random weights; the solver's own steps are left out."""
    seen = {}

    class Once:
        def __init__(self, parameters, **_):
            (self.weights,) = parameters

        def step(self, evaluate):
            with torch.no_grad():
                self.weights.copy_(torch.randn(self.weights.shape, generator=torch.Generator().manual_seed(1)))
            seen.update(loss=evaluate().item(), weights=self.weights.detach().clone(), gradient=self.weights.grad)

    monkeypatch.setattr(torch.optim, "LBFGS", Once)
    features, labels = blobs(60)
    x = standardised(features)
    learned = torch.arange(60)[None] % 3 != torch.arange(3)[:, None]
    spread = x.square().mean(0).sqrt() if preconditioned else None
    problem = logistic._Problem(x.float(), labels, CLASSES, learned, None if spread is None else spread.float())
    problem.solve(0.01, 1)
    scale = torch.ones(x.shape[1]) if spread is None else (spread.square() / 10 + 0.01).rsqrt()
    weights = seen["weights"].double().requires_grad_()
    split = weights.view(3, CLASSES, -1)
    total = sum(
        objective(x[mine], labels[mine], own[:, :-1] * scale, own[:, -1], 0.01)
        for own, mine in zip(split, learned, strict=True)
    )
    total.backward()
    assert seen["loss"] == pytest.approx(total.item(), rel=1e-5)
    torch.testing.assert_close(seen["gradient"].double(), weights.grad, rtol=1e-4, atol=1e-5)


def test_penalty_with_the_best_answers_on_images_left_out_is_chosen():
    features, labels = blobs(spread=6.0)
    found = cross_validate(features, labels, CLASSES)
    each = [cross_validate(features, labels, CLASSES, penalties=[penalty]) for penalty in PENALTIES]
    assert found.penalty in PENALTIES
    assert found.accuracy >= max(one.accuracy for one in each) - 0.02
    assert found.accuracy > each[-1].accuracy or found.penalty == PENALTIES[-1]


def test_weaker_penalties_are_left_out_once_two_in_a_row_are_worse(monkeypatch):
    features, labels = blobs(spread=6.0)
    asked = []
    solve = logistic._Problem.solve

    def count(problem, penalty, iterations):
        asked.append(penalty)
        solve(problem, penalty, iterations)

    monkeypatch.setattr(logistic._Problem, "solve", count)
    found = cross_validate(features, labels, CLASSES)
    assert asked == list(PENALTIES[: len(asked)])
    assert len(asked) <= PENALTIES.index(found.penalty) + 3


def test_answers_of_cross_validation_are_of_images_left_out():
    """Labels that mean nothing are memorised by a head, and cannot be foretold."""
    features = torch.randn(120, 200, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(0, 2, (120,), generator=torch.Generator().manual_seed(1))
    found = cross_validate(features, labels, 2)
    assert (fit_head(features, labels, 2, found.penalty)(features).argmax(1) == labels).all()
    assert found.accuracy < 0.7
    assert found.accuracy == (found.logits.argmax(1) == labels).float().mean().item()
    assert found.loss == pytest.approx(torch.nn.functional.cross_entropy(found.logits, labels).item())


def test_each_answer_is_by_a_head_that_learned_the_other_folds():
    features, labels = blobs(60)
    found = cross_validate(features, labels, CLASSES, penalties=[1e-2], seed=3)
    fold = torch.from_numpy(assign_folds(labels.numpy(), logistic.FOLDS, 3))
    x = standardised(features)
    for number in fold.unique():
        mine, c = fold != number, 1 / (1e-2 * int((fold != number).sum()))
        reference = LogisticRegression(C=c, tol=1e-10, max_iter=10_000).fit(x[mine].numpy(), labels[mine].numpy())
        theirs = torch.from_numpy(reference.predict_proba(x[~mine].numpy()))
        torch.testing.assert_close(found.logits[~mine].softmax(1).double(), theirs, rtol=0, atol=2e-3)


@pytest.mark.parametrize("counts", [(10, 10, 10), (50, 7, 3), (5, 1, 9)])
def test_folds_are_stratified_and_as_large_as_each_other(counts):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    fold = assign_folds(labels, 5, 0)
    assert set(fold) == set(range(5))
    sizes = np.bincount(fold)
    assert sizes.max() - sizes.min() <= 1
    for label in range(len(counts)):
        members = np.bincount(fold[labels == label], minlength=5)
        assert members.max() - members.min() <= 1


def test_folds_are_no_more_than_the_largest_class_has_images():
    assert set(assign_folds(np.array([0, 0, 0, 1, 1]), 5, 0)) == {0, 1, 2}
    assert set(assign_folds(np.array([0, 1, 2]), 5, 0)) == {0, 1}


def test_the_seed_alone_decides_the_folds():
    labels = np.arange(100) % 4
    assert (assign_folds(labels, 5, 1) == assign_folds(labels, 5, 1)).all()
    assert (assign_folds(labels, 5, 1) != assign_folds(labels, 5, 2)).any()


def test_the_same_seed_gives_the_same_answers_whatever_was_drawn_before(monkeypatch):
    monkeypatch.setattr(logistic, "COMPONENTS", 6)  # fewer than features: their basis is found with random numbers
    features, labels = blobs()
    state = torch.random.get_rng_state()
    first = cross_validate(features, labels, CLASSES, seed=1)
    assert torch.equal(state, torch.random.get_rng_state())
    torch.manual_seed(123)
    again = cross_validate(features, labels, CLASSES, seed=1)
    assert torch.equal(first.logits, again.logits)
    assert not torch.equal(first.logits, cross_validate(features, labels, CLASSES, seed=2).logits)


def test_cross_validation_can_be_stopped_between_penalties():
    features, labels = blobs(40)

    def stop() -> None:
        raise Interrupted("stopped")

    with pytest.raises(Interrupted):
        cross_validate(features, labels, CLASSES, pause=stop)


def test_features_without_any_difference_give_the_shares_of_the_classes():
    labels = torch.tensor([0] * 30 + [1] * 10)
    head = fit_head(torch.ones(40, 3), labels, 2, 1e-3)
    torch.testing.assert_close(head(torch.ones(1, 3)).softmax(1), torch.tensor([[0.75, 0.25]]), rtol=0, atol=1e-3)
