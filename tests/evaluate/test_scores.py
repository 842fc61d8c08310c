from __future__ import annotations

import math

import pytest
import torch
from cases import TinyConvNet, images
from sklearn.metrics import accuracy_score, confusion_matrix, log_loss, top_k_accuracy_score

from steppe.evaluate import predict, score
from steppe.evaluate.scores import calibration_error


@pytest.fixture(scope="module")
def answers():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(400, 8, generator=generator)
    labels = torch.randint(7, (400,), generator=generator)  # class 7 has no image
    return logits, labels


def test_agrees_with_scikit_learn(answers):
    logits, labels = answers
    found = score(logits, labels)
    p = logits.double().softmax(1).numpy()
    every = list(range(8))
    assert found["top1"] == accuracy_score(labels, logits.argmax(1))
    assert found["top5"] == pytest.approx(top_k_accuracy_score(labels, p, k=5, labels=every), abs=1e-12)
    assert found["nll"] == pytest.approx(log_loss(labels, p, labels=every), rel=1e-9)
    assert found["confusion"] == confusion_matrix(labels, logits.argmax(1), labels=every).tolist()
    one_hot = torch.eye(8, dtype=torch.float64)[labels].numpy()
    assert found["brier"] == pytest.approx(((p - one_hot) ** 2).sum(1).mean(), rel=1e-12)
    assert found["per_class"][7] is None
    right = (logits.argmax(1) == labels)[labels == 3].double().mean().item()
    assert found["per_class"][3] == pytest.approx(right)
    assert found["examples"] == sum(row["count"] for row in found["reliability"]) == 400


def test_calibration_error_in_closed_form():
    """Two bins: ten answers of confidence 0.9 of which eight are right, ten of 0.55 of which all are."""
    confidence = torch.tensor([0.9] * 10 + [0.55] * 10, dtype=torch.float64)
    hits = torch.tensor([True] * 8 + [False] * 2 + [True] * 10)
    error, rows = calibration_error(confidence, hits, bins=10)
    assert error == pytest.approx(0.5 * abs(0.8 - 0.9) + 0.5 * abs(1 - 0.55))
    assert [row["count"] for row in rows] == [0, 0, 0, 0, 0, 10, 0, 0, 10, 0]
    assert rows[8]["accuracy"] == pytest.approx(0.8)
    assert calibration_error(confidence, hits, bins=1)[0] == pytest.approx(0.9 - (0.9 + 0.55) / 2)


def test_calibration_error_against_a_loop(answers):
    logits, labels = answers
    p = logits.double().softmax(1)
    confidence, hits = p.amax(1), p.argmax(1) == labels
    expected = 0.0
    for k in range(15):
        inside = (confidence > k / 15) & (confidence <= (k + 1) / 15)
        if inside.any():
            expected += inside.double().mean() * (hits[inside].double().mean() - confidence[inside].mean()).abs()
    assert score(logits, labels)["ece"] == pytest.approx(float(expected), abs=1e-12)


def test_few_classes_have_no_top5_and_certainty_is_finite():
    found = score(torch.tensor([[1000.0, -1000.0], [-1000.0, 1000.0]]), torch.tensor([0, 1]))
    assert found["top5"] is None
    assert (found["top1"], found["ece"], found["nll"], found["brier"]) == (1.0, 0.0, 0.0, 0.0)
    wrong = score(torch.tensor([[1000.0, -1000.0]]), torch.tensor([1]))
    assert wrong["nll"] == 2000
    assert wrong["brier"] == 2
    assert all(math.isfinite(wrong[key]) for key in ("nll", "brier", "ece"))


def test_predicting_leaves_the_model_as_it_was():
    model = TinyConvNet(dropout=0.5).train()
    model.norm.eval()
    model.conv.weight.grad = torch.ones_like(model.conv.weight)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.get_rng_state()
    x, y = images(10)
    logits, labels = predict(model, [(x[:7], y[:7]), (x[7:], y[7:])])
    assert torch.equal(labels, y)
    assert torch.allclose(logits, model.eval()(x), atol=1e-6)
    model.train()
    model.norm.eval()
    predict(model, [(x, y)])
    assert (model.training, model.norm.training, model.dropout.training) == (True, False, True)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert torch.equal(model.conv.weight.grad, torch.ones_like(model.conv.weight))
    assert torch.equal(torch.get_rng_state(), state)


def test_accuracies_of_classes_are_exact_shares():
    labels = torch.zeros(12, dtype=torch.long)
    answers = torch.tensor([0] * 11 + [1])
    assert score(torch.nn.functional.one_hot(answers, 2).float(), labels)["per_class"] == [11 / 12, None]
