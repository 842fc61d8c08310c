"""The same figures on a GPU as on the CPU."""

from __future__ import annotations

import pytest
import torch
from oracle import make

from steppe.geometry import (
    measure_curvature,
    measure_noise_loss,
    measure_sharpness,
    measure_tangent_kernel,
    measure_trace,
)
from steppe.geometry.products import Hessian

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("name", ["transformer", "vit", "resnet"])
def test_the_device_does_not_change_a_figure(name):
    model, batches = make(name)
    here = (
        measure_curvature(model, batches, tolerance=1e-6)["parts"]["whole"]["lambda_max"]["value"],
        measure_trace(model, batches, probes=10)["parts"]["whole"]["mean"],
        measure_sharpness(model, batches, scaling="weights", steps=3)["value"],
        measure_tangent_kernel(model, batches, block=4)["kappa"],
        measure_noise_loss(model, batches, sigma=0.1, draws=3)["mean"],
    )
    model.cuda()
    moved = [(x.cuda(), y.cuda()) for x, y in batches]
    state = torch.cuda.get_rng_state()
    found = measure_curvature(model, moved, tolerance=1e-6)
    there = (
        found["parts"]["whole"]["lambda_max"]["value"],
        measure_trace(model, moved, probes=10)["parts"]["whole"]["mean"],
        measure_sharpness(model, moved, scaling="weights", steps=3)["value"],
        measure_tangent_kernel(model, moved, block=4)["kappa"],
        measure_noise_loss(model, moved, sigma=0.1, draws=3)["mean"],
    )
    assert found["settings"]["device"] == "cuda"
    assert there == pytest.approx(here, rel=1e-4)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert torch.backends.cudnn.enabled


def test_float32_product_equals_that_of_the_cpu():
    model, batches = make("vit")
    with Hessian(model, batches) as hessian:
        vector = hessian.random("whole", torch.Generator().manual_seed(0))
        expected = hessian.multiply(vector)
    model.float().cuda()
    with Hessian(model, [(x.float().cuda(), y.cuda()) for x, y in batches]) as hessian:
        found = hessian.multiply(vector.float().cuda())
    torch.testing.assert_close(found.cpu().double(), expected, rtol=1e-3, atol=1e-4)


def test_products_leave_no_memory_behind():
    model, batches = make("vit")
    model.float().cuda()
    moved = [(x.float().cuda(), y.cuda()) for x, y in batches]
    held = []
    for keep in (False, True, False, True):
        with Hessian(model, moved, keep=keep) as hessian:
            vector = hessian.random("whole", torch.Generator().manual_seed(0))
            for _ in range(4):
                hessian.multiply(vector)
                held.append(torch.cuda.memory_allocated())
            del vector
        held.append(torch.cuda.memory_allocated())
    assert held[:10] == held[10:]
    assert held[1] == held[3]
    assert held[6] == held[8]
