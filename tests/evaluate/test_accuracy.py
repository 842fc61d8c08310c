from __future__ import annotations

import pytest
import torch

from steppe import data
from steppe.config import DataConfig
from steppe.evaluate import measure_accuracy, suit_batch


def test_agrees_with_a_direct_computation_whatever_the_batch():
    dataset = data.load(DataConfig())
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10), torch.nn.Dropout(0.5)).train()
    pixels = (dataset.test.images.float() / 255 - dataset.mean[0]) / dataset.std[0]
    logits = model.eval()(pixels)
    model.train()
    for batch_size in (7, 1000):
        found = measure_accuracy(model, dataset.test, dataset, device=torch.device("cpu"), batch_size=batch_size)
        loss = torch.nn.functional.cross_entropy(logits, dataset.test.labels).item()
        assert found["loss"] == pytest.approx(loss, rel=1e-6)
        assert found["accuracy"] == (logits.argmax(1) == dataset.test.labels).sum().item() / 359
        assert found["examples"] == 359
    assert model.training


def test_a_cpu_is_given_no_more_than_its_cache_is_good_for():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [suit_batch(1024, side, cpu) for side in (1, 8, 32, 64, 224)] == [1024, 1024, 64, 16, 8]
    assert suit_batch(8, 32, cpu) == 8
    assert suit_batch(1024, 32, gpu) == 1024
    dataset = data.load(DataConfig(image_size=32))
    seen = []
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(1024, 10))
    model.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    measure_accuracy(model, dataset.test, dataset, device=cpu)
    assert max(seen) == 64
    assert sum(seen) == 359
