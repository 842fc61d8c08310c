"""Two processes (gloo, CPU) against one: DDP with a global and with a per-rank ε, and FSDP2."""

import os
import subprocess
import sys
from pathlib import Path

import distributed_worker as worker
import numpy as np
import pytest
import torch
from cases import images
from torch.nn.functional import cross_entropy

from steppe.minimizers import SAM, Batch, Every

WHOLE = slice(0, 8)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(worker.__file__)
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},  # FSDP would take a GPU where there is one
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes), "\n".join(outputs)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def assert_close(result, expected):
    for a, b in zip(result, expected, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", [name for name in worker.DDP_CASES if not name.startswith(("per rank", "micro"))])
def test_ddp_equals_a_single_process(results, name):
    model = worker.make_model()
    method, options = worker.DDP_CASES[name]
    worker.train(model, method, options, WHOLE)
    for rank in results:
        assert_close(rank[f"ddp {name}"], worker.whole(model))


@pytest.mark.parametrize("name", worker.FSDP_CASES)
def test_fsdp_equals_a_single_process(results, name):
    model = worker.make_model()
    method, options = worker.FSDP_CASES[name]
    worker.train(model, method, options, WHOLE)
    for rank in results:
        assert_close(rank[f"fsdp {name}"], worker.whole(model))


@pytest.mark.parametrize(("name", "m"), [("per rank", 4), ("micro", 2)])
def test_an_epsilon_for_each_part_equals_micro_batches_on_one_process(results, name, m):
    model = worker.make_model()
    worker.train(model, "sam", {"rho": 0.3, "m": m}, WHOLE)
    assert_close(results[0][f"ddp {name}"], worker.whole(model))
    for a, b in zip(results[0][f"ddp {name}"], results[1][f"ddp {name}"], strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("name", "options"), [("per rank, every other step", {"m": 4, "schedule": Every(2)}), ("per rank, base", {})]
)
def test_steps_that_are_not_sharp_are_synchronised(results, name, options):
    """Without a second pass the first one is the last, so its gradients must be reduced."""
    for a, b in zip(results[0][f"ddp {name}"], results[1][f"ddp {name}"], strict=True):
        assert torch.equal(a, b)
    model = worker.make_model()
    worker.train(model, worker.DDP_CASES[name][0], {"rho": 0.3, **options}, WHOLE)
    assert_close(results[0][f"ddp {name}"], worker.whole(model))


def test_an_overflow_on_one_process_skips_the_step_on_both(results):
    model = worker.make_model()
    for rank in results:
        assert float(rank["overflow"][0]) == 32.0
    for a, b in zip(results[0]["overflow"], results[1]["overflow"], strict=True):
        assert torch.equal(a, b)
    x, y = images(4)
    minimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1))
    minimizer.step(Batch(4, lambda part: cross_entropy(model(x[part].double()), y[part], reduction="none")))
    assert_close(results[0]["overflow"][1:], worker.whole(model))
