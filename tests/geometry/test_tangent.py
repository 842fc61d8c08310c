from __future__ import annotations

import pytest
import torch
from cases import TinyConvNet, images
from oracle import make
from torch import Tensor, nn

from steppe.errors import ConfigError, SteppeError
from steppe.geometry import measure_tangent_kernel, tangent
from steppe.geometry.tangent import with_relu


def full_kernel(model: nn.Module, x: Tensor) -> Tensor:
    """The tangent kernel of all logits from an explicit Jacobian: (examples, classes, examples, classes)."""
    logits = model(x)
    rows = [
        torch.cat([g.flatten() for g in torch.autograd.grad(value, list(model.parameters()), retain_graph=True)])
        for value in logits.flatten()
    ]
    jacobian = torch.stack(rows)
    return (jacobian @ jacobian.T).reshape(*logits.shape, *logits.shape)


def condition(kernel: Tensor) -> float:
    values = torch.linalg.eigvalsh(kernel)
    return (values[-1] / values[0]).item()


@pytest.mark.parametrize("name", ["perceptron", "vit"])
@pytest.mark.parametrize("definition", ["all", "sum", "one"])
@pytest.mark.parametrize("memory_gib", [4.0, 1e-5], ids=["whole", "tiles"])
def test_agrees_with_an_explicit_jacobian(name, definition, memory_gib):
    model, batches = make(name)
    model.eval()
    block = 4
    x = torch.cat([x for x, _ in batches])
    found = measure_tangent_kernel(model, batches, definition=definition, logit=1, block=block, memory_gib=memory_gib)
    exact = []
    for start in range(0, len(x) - block + 1, block):
        kernel = full_kernel(model, x[start : start + block])
        flat = {
            "all": kernel.permute(1, 0, 3, 2).reshape(3 * block, 3 * block),
            "sum": kernel.sum((1, 3)),
            "one": kernel[:, 1, :, 1],
        }[definition]
        exact.append(flat)
    assert found["blocks"] == pytest.approx([condition(kernel) for kernel in exact], rel=1e-5)
    assert found["kappa"] == pytest.approx(sum(map(condition, exact)) / len(exact), rel=1e-5)
    assert found["kappa_of_mean"] == pytest.approx(condition(torch.stack(exact).mean(0)), rel=1e-5)
    assert found["resolved"]
    count = len(x) // block
    assert found["name"] == f"ntk_kappa_{definition}{'1' if definition == 'one' else ''}_4x{count}"
    assert found["settings"]["examples"] == 4 * count
    assert found["settings"]["precision"] == "float64"


def test_memory_that_runs_out_makes_fewer_rows_at_a_time(monkeypatch):
    model, batches = make("vit")
    whole = measure_tangent_kernel(model, batches, block=8)
    rows_of, asked = tangent._rows, []

    def hungry(*args):
        rows = rows_of(*args)
        compute = rows.compute

        def some(start, stop):
            asked.append(stop - start)
            if stop - start > 3:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return compute(start, stop)

        rows.compute = some
        return rows

    monkeypatch.setattr(tangent, "_rows", hungry)
    assert measure_tangent_kernel(model, batches, block=8)["kappa"] == pytest.approx(whole["kappa"], rel=1e-9)
    assert asked[:3] == [8, 4, 2]


def test_batchnorm_of_a_block_couples_its_examples():
    model, batches = make("resnet")
    x = torch.cat([x for x, _ in batches])
    model.train()
    found = measure_tangent_kernel(model, batches, block=8, batch_norm="batch")
    assert found["kappa"] == pytest.approx(condition(full_kernel(model, x).sum((1, 3))), rel=1e-6)
    model.eval()
    running = measure_tangent_kernel(model, batches, block=8)
    assert running["kappa"] == pytest.approx(condition(full_kernel(model, x).sum((1, 3))), rel=1e-6)
    assert running["kappa"] != pytest.approx(found["kappa"], rel=1e-2)


def test_relu_in_place_of_gelu():
    model, batches = make("vit")
    model.eval()
    changed = with_relu(model)
    assert not any(isinstance(module, nn.GELU) for module in changed.modules())
    assert any(isinstance(module, nn.GELU) for module in model.modules())
    found = measure_tangent_kernel(model, batches, block=9, relu=True)
    assert found["kappa"] == pytest.approx(condition(full_kernel(changed, batches[0][0]).sum((1, 3))), rel=1e-6)
    assert found["name"].endswith("_9x1_relu")
    assert found["stderr"] is None


def test_what_precision_cannot_tell_is_said():
    """Two equal images make the kernel singular."""
    model, batches = make("perceptron")
    x, y = batches[0]
    found = measure_tangent_kernel(model, [(torch.cat([x[:3], x[:1]]), y[:4])], block=4)
    assert not found["resolved"]
    assert found["kappa"] > 1e12


def test_float32_models_are_measured_in_float64_and_left_as_they_were():
    torch.manual_seed(0)
    model = TinyConvNet(dropout=0.5)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    random = torch.get_rng_state()
    for batch_norm in ("running", "batch"):
        found = measure_tangent_kernel(model, [images(12)], block=6, batch_norm=batch_norm)
        assert found["settings"]["precision"] == "float64"
        single = measure_tangent_kernel(model, [images(12)], block=6, batch_norm=batch_norm, double=False)
        assert single["settings"]["precision"] == "float32"
        assert single["kappa"] == pytest.approx(found["kappa"], rel=1e-2)
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert all(v.dtype == state[k].dtype for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert model.training
    assert torch.equal(torch.get_rng_state(), random)


def test_bad_input_gets_one_clear_message():
    model, batches = make("perceptron")
    with pytest.raises(SteppeError, match="do not fill a block of 48"):
        measure_tangent_kernel(model, batches)
    with pytest.raises(ConfigError, match="unknown definition"):
        measure_tangent_kernel(model, batches, block=4, definition="mean")
    with pytest.raises(ConfigError, match="no logit 3"):
        measure_tangent_kernel(model, batches, block=4, definition="one", logit=3)
    with torch.no_grad():
        model.out.bias[0] = float("nan")
    with pytest.raises(SteppeError, match="NaN"):
        measure_tangent_kernel(model, batches, block=4)
