from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from oracle import dense_hessian, known_hessian, make, positions
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from steppe.config import RunConfig
from steppe.errors import ConfigError
from steppe.geometry import measure_curvature, measure_spectrum, measure_trace, top_eigenvectors
from steppe.geometry.eigen import extreme_eigenpairs, power_iteration
from steppe.geometry.how import spread_over_subsets
from steppe.geometry.parts import resolve_parts
from steppe.geometry.spectrum import density
from steppe.measuring import CROSS_ENTROPY, ClassLoss, trained_loss
from steppe.train.objectives import example_losses

PARTS = ("whole", "embedding", "attention", "mlp", "block1", "block2", "norm", "head")


@pytest.mark.parametrize("method", ["lanczos", "power"])
def test_eigenvalues_of_the_whole_and_of_every_part(method):
    model, batches = make("vit")
    dense = known_hessian("vit")
    options = {"parts": PARTS, "method": method, "iterations": 400, "tolerance": 1e-4}
    found = measure_curvature(model, batches, both_ends=PARTS, **options)
    for part, names in resolve_parts(model, PARTS).items():
        here = positions(model, names)
        exact = torch.linalg.eigvalsh(dense[here][:, here])
        figure = found["parts"][part]
        for end, true in (("lambda_max", exact[-1]), ("lambda_min", exact[0])):
            assert abs(figure[end]["value"] - true) <= figure[end]["residual"] + 1e-6, (part, end)
            assert figure[end]["residual"] <= 1e-4 * abs(figure[end]["value"]) or not figure[end]["converged"]
        assert figure["lambda_max"]["converged"]
        assert figure["parameters"] == len(here)
    assert found["checks"]["finite_differences"] < 1e-4
    assert found["settings"] == {
        "loss": "cross-entropy",
        "examples": 9,
        "batch": 9,
        "batch_norm": "running",
        "precision": "float64",
        "device": "cpu",
        "seed": 0,
    }
    json.dumps(found)


@pytest.mark.parametrize("name", ["perceptron", "transformer", "resnet"])
def test_the_largest_five(name):
    model, batches = make(name)
    exact = torch.linalg.eigvalsh(known_hessian(name))
    found = measure_curvature(model, batches, top=5, tolerance=1e-6)["parts"]["whole"]
    values = torch.tensor([pair["value"] for pair in found["top"]], dtype=torch.float64)
    torch.testing.assert_close(values, exact.flip(0)[:5], rtol=1e-5, atol=1e-6)
    assert all(pair["converged"] for pair in found["top"])
    assert found["top"][0] == found["lambda_max"]


def test_eigenvectors_have_the_parameters_shapes():
    model, batches = make("vit")
    figures, vectors = top_eigenvectors(model, batches, top=2, tolerance=1e-6)
    dense = known_hessian("vit")
    for pair, vector in zip(figures["parts"]["whole"]["top"], vectors["whole"], strict=True):
        assert {n: v.shape for n, v in vector.items()} == {n: p.shape for n, p in model.named_parameters()}
        flat = torch.cat([v.flatten() for v in vector.values()])
        assert flat.norm().item() == pytest.approx(1)
        torch.testing.assert_close(dense @ flat, pair["value"] * flat, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["perceptron", "resnet"])
def test_float32_finds_the_same_to_its_precision(name):
    model, batches = make(name)
    exact = torch.linalg.eigvalsh(known_hessian(name))
    single = [(x.float(), y) for x, y in batches]
    found = measure_curvature(model.float(), single)
    assert found["settings"]["precision"] == "float32"
    assert found["parts"]["whole"]["lambda_max"]["value"] == pytest.approx(exact[-1].item(), rel=1e-3)
    assert found["parts"]["whole"]["lambda_min"]["value"] == pytest.approx(exact[0].item(), rel=1e-3)
    assert found["parts"]["whole"]["lambda_max"]["converged"]


def test_too_few_iterations_are_not_called_converged():
    model, batches = make("vit")
    for method in ("power", "lanczos"):
        found = measure_curvature(model, batches, method=method, iterations=2, tolerance=1e-6)["parts"]["whole"]
        assert not found["lambda_max"]["converged"]
        assert found["lambda_max"]["residual"] > 1e-6 * found["lambda_max"]["value"]


def test_power_iteration_tells_a_negative_end_from_lambda_max():
    operator = torch.diag(torch.tensor([-9.0, -1, 0, 2, 4], dtype=torch.float64))
    start = torch.ones(5, dtype=torch.float64)
    first = power_iteration(lambda v: operator @ v, start, 500, 1e-9)
    assert first.value == pytest.approx(-9)
    other = power_iteration(lambda v: operator @ v, start, 500, 1e-9, shift=first.value)
    assert other.value == pytest.approx(4)

    def minus(logits: Tensor, targets: Tensor) -> Tensor:
        return -CROSS_ENTROPY(logits, targets)

    minus.name = "minus cross-entropy"
    model, batches = make("resnet")
    exact = torch.linalg.eigvalsh(-known_hessian("resnet"))
    found = measure_curvature(model, batches, loss=minus, method="power", iterations=1000, tolerance=1e-6)
    assert found["settings"]["loss"] == "minus cross-entropy"
    assert found["parts"]["whole"]["lambda_max"]["value"] == pytest.approx(exact[-1].item(), rel=1e-4)
    assert found["parts"]["whole"]["lambda_min"]["value"] == pytest.approx(exact[0].item(), rel=1e-4)


@pytest.mark.parametrize("method", ["lanczos", "power"])
def test_lambda_min_is_not_waited_for_where_it_is_not_asked_for(method):
    model, batches = make("vit")
    options = {"parts": PARTS, "method": method, "iterations": 400, "tolerance": 1e-4}
    largest = measure_curvature(model, batches, **options)["parts"]
    both = measure_curvature(model, batches, both_ends=PARTS, **options)["parts"]
    assert largest["whole"] == both["whole"]
    for part in PARTS[1:]:
        assert largest[part]["lambda_max"]["converged"]
        assert largest[part]["lambda_max"]["value"] == pytest.approx(both[part]["lambda_max"]["value"], rel=1e-3)
        if "lambda_min" in largest[part]:  # the end that power iteration meets first, where it is the larger one
            assert method == "power"
            assert -largest[part]["lambda_min"]["value"] > largest[part]["lambda_max"]["value"]
        else:
            assert largest[part]["products"] < both[part]["products"]


def test_the_second_largest_is_not_taken_for_the_largest():
    """Spectra with a start that hardly sees the largest: one look at the residual took the next one, by up to 12 %."""
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        bulk = 0.05 * torch.rand(990, generator=generator, dtype=torch.float64)
        outliers = torch.randn(10, generator=generator, dtype=torch.float64).exp()
        spectrum, start = torch.cat([bulk, outliers]), torch.randn(1000, generator=generator, dtype=torch.float64)
        start[spectrum.argmax()] *= 0.1

        def multiply(vector: Tensor, spectrum: Tensor = spectrum) -> Tensor:
            return spectrum * vector

        basis = torch.empty(100, 1000, dtype=torch.float64)
        options = {"top": 1, "generator": generator, "both_ends": False}
        (largest,), nothing, steps = extreme_eigenpairs(multiply, start, basis, 1e-2, **options)
        assert nothing is None
        assert largest.value == pytest.approx(spectrum.max().item(), rel=1e-2), seed
        assert steps < 40


@pytest.mark.parametrize("both_ends", ["block1", ("block1", "block9")])
def test_both_ends_names_parts(both_ends):
    model, batches = make("vit")
    with pytest.raises(ConfigError, match="both_ends must name some of the parts: whole, block1"):
        measure_curvature(model, batches, parts=("whole", "block1"), both_ends=both_ends)


def test_lanczos_leaves_an_invariant_subspace():
    operator = torch.diag(torch.tensor([3.0, 3, 3, 1, 0, 0], dtype=torch.float64))
    largest, smallest, steps = extreme_eigenpairs(
        lambda v: operator @ v,
        torch.ones(6, dtype=torch.float64),
        torch.empty(6, 6, dtype=torch.float64),
        1e-9,
        top=4,
        generator=torch.Generator().manual_seed(0),
    )
    assert [pair.value for pair in largest] == pytest.approx([3, 3, 3, 1])
    assert smallest.value == pytest.approx(0, abs=1e-12)
    assert steps == 6


def test_a_part_without_curvature_is_left_at_once():
    """A fresh head of zeros passes nothing back: all but its own block of the Hessian is zero."""
    model, batches = make("vit")
    nn.init.zeros_(model.head.weight)
    found = measure_curvature(model, batches, parts=("block1",), top=2)["parts"]["block1"]
    assert found["lambda_max"] == {"value": 0.0, "residual": 0.0, "converged": True}
    assert found["products"] < 10


def test_trace_lies_within_its_error():
    model, batches = make("vit")
    dense = known_hessian("vit")
    found = measure_trace(model, batches, parts=PARTS, probes=400)
    for part, names in resolve_parts(model, PARTS).items():
        here = positions(model, names)
        estimate = found["parts"][part]
        assert abs(estimate["mean"] - dense[here, here].sum()) < 4 * estimate["stderr"], part
    whole = found["parts"]["whole"]
    variance = 2 * (dense.square().sum() - dense.diagonal().square().sum()) / 400  # of random signs
    assert whole["stderr"] == pytest.approx(variance.sqrt().item(), rel=0.2)
    roles = sum(found["parts"][part]["mean"] for part in ("embedding", "attention", "mlp", "norm", "head"))
    assert whole["mean"] == pytest.approx(roles)


def test_spectrum_has_the_moments_of_its_probes():
    model, batches = make("resnet")
    dense = known_hessian("resnet")
    found = measure_spectrum(model, batches, probes=3, steps=10)
    generator = torch.Generator().manual_seed(0)
    for nodes, weights in zip(found["nodes"], found["weights"], strict=True):
        probe = torch.randn(len(dense), generator=generator).double()
        probe /= probe.norm()
        assert sum(weights) == pytest.approx(1)
        moved = probe
        for power in range(1, 20):  # quadrature with ten nodes is exact up to degree 19
            moved = dense @ moved
            found_moment = sum(w * n**power for n, w in zip(nodes, weights, strict=True))
            assert found_moment == pytest.approx((probe @ moved).item(), rel=1e-4), power


def test_density_agrees_with_the_exact_one():
    model, batches = make("perceptron")
    exact = torch.linalg.eigvalsh(known_hessian("perceptron")).numpy()
    spectrum = measure_spectrum(model, batches, probes=100, steps=30)
    grid = np.linspace(-1.5, 2, 400)
    found = density(spectrum, grid, 0.1)
    bells = np.exp(-((grid[:, None] - exact) ** 2) / 0.02) / (0.1 * np.sqrt(2 * np.pi))
    assert np.trapezoid(found, grid) == pytest.approx(1, abs=1e-3)
    assert np.abs(found - bells.mean(1)).max() < 0.1 * bells.mean(1).max()


def test_batchnorm_modes_have_different_curvature():
    model, batches = make("resnet")
    model.train()
    exact = torch.linalg.eigvalsh(dense_hessian(model, batches, CROSS_ENTROPY))
    found = measure_curvature(model, batches, batch_norm="batch", tolerance=1e-6)
    assert found["parts"]["whole"]["lambda_max"]["value"] == pytest.approx(exact[-1].item(), rel=1e-5)
    assert found["settings"]["batch_norm"] == "batch"
    running = measure_curvature(model, batches)["parts"]["whole"]["lambda_max"]["value"]
    assert running != pytest.approx(exact[-1].item(), rel=1e-2)


def test_deterministic_from_the_seed():
    model, batches = make("transformer")
    torch.manual_seed(1)
    first = measure_curvature(model, batches), measure_trace(model, batches, probes=5)
    torch.manual_seed(2)
    assert (measure_curvature(model, batches), measure_trace(model, batches, probes=5)) == first
    assert measure_trace(model, batches, probes=5, seed=1) != first[1]


def test_the_loss_is_the_one_trained_with():
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(6, 4, generator=generator), torch.randint(4, (6,), generator=generator)
    mixed = torch.softmax(torch.randn(6, 4, generator=generator), 1)
    for sigmoid in (False, True):
        for smoothing in (0.0, 0.2):
            config = RunConfig(sigmoid_loss=sigmoid, label_smoothing=smoothing)
            for targets in (labels, mixed):
                torch.testing.assert_close(
                    trained_loss(config)(logits, targets), example_losses(logits, targets, config)
                )
    assert ClassLoss(sigmoid=True, label_smoothing=0.1).name == "sigmoid, label smoothing 0.1"


def test_spread_over_subsets():
    x = torch.arange(10.0)
    batches = [(x[:3], torch.zeros(3)), (x[3:], torch.ones(7))]
    found = spread_over_subsets(lambda part: torch.cat([images for images, _ in part]).mean().item(), batches, 2)
    assert found["values"] == [4.0, 5.0]
    assert found["mean"] == 4.5
    assert found["stderr"] == pytest.approx(0.5)
    with pytest.raises(ConfigError, match="subsets"):
        spread_over_subsets(lambda part: 0.0, batches, 11)


def test_wrong_settings_get_one_clear_message():
    model, batches = make("perceptron")
    with pytest.raises(ConfigError, match="unknown method"):
        measure_curvature(model, batches, method="arnoldi")
    with pytest.raises(ConfigError, match="one eigenvalue"):
        measure_curvature(model, batches, method="power", top=2)
    with pytest.raises(ConfigError, match="do not find 101 eigenvalues"):
        measure_curvature(model, batches, top=101)
    with pytest.raises(ConfigError, match="'whole' has 51 parameters, and no 52 eigenvalues"):
        measure_curvature(model, batches, top=52)
    with pytest.raises(ConfigError, match="two probes"):
        measure_trace(model, batches, probes=1)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:FutureWarning")  # torch's own, on the way to a jvp
@pytest.mark.parametrize("name", ["perceptron", "resnet"])
def test_agrees_with_curvlinops_where_it_is_right(name):
    curvlinops = pytest.importorskip("curvlinops", reason="curvlinops is not installed", exc_type=ImportError)
    model, batches = make(name)
    model.eval()
    operator = curvlinops.HessianLinearOperator(
        model, nn.CrossEntropyLoss(), list(model.parameters()), batches, num_data=sum(len(y) for _, y in batches)
    )
    dense = operator @ torch.eye(operator.shape[1], dtype=torch.float64)
    found = measure_curvature(model, batches, tolerance=1e-8)["parts"]["whole"]
    exact = torch.linalg.eigvalsh((dense + dense.T) / 2)
    assert found["lambda_max"]["value"] == pytest.approx(exact[-1].item(), rel=1e-6)
    assert found["lambda_min"]["value"] == pytest.approx(exact[0].item(), rel=1e-6)


@pytest.mark.parametrize("name", ["perceptron", "transformer", "vit", "resnet"])
def test_agrees_with_hessian_eigenthings_on_one_batch(name):
    """It differentiates twice backward, as we do, so LayerNorm is no trap; its caller chooses math attention."""
    other = pytest.importorskip("hessian_eigenthings", reason="hessian-eigenthings is not installed")
    model, batches = make(name)
    model.eval()
    batch = tuple(torch.cat(parts) for parts in zip(*batches, strict=True))
    found = measure_curvature(model, batches, top=3, tolerance=1e-8)["parts"]["whole"]
    with sdpa_kernel(SDPBackend.MATH):
        operator = other.HessianOperator(model, [batch], other.supervised_loss(nn.CrossEntropyLoss()))
        theirs = other.lanczos(
            operator, k=3, max_iter=min(100, operator.size), tol=1e-10, reorthogonalize=True, which="LA", seed=0
        )
    ours = torch.tensor([pair["value"] for pair in found["top"]], dtype=torch.float64)
    torch.testing.assert_close(ours, theirs.eigenvalues.sort(descending=True).values, rtol=1e-6, atol=1e-8)


def test_hessian_eigenthings_weighs_batches_alike_and_examples_not():
    """Why the test above gives it one batch: of two of unlike size, each counts half."""
    other = pytest.importorskip("hessian_eigenthings", reason="hessian-eigenthings is not installed")
    model, batches = make("perceptron")
    assert len({len(y) for _, y in batches}) == 2
    operator = other.HessianOperator(model, batches, other.supervised_loss(nn.CrossEntropyLoss()))
    theirs = other.lanczos(operator, k=1, max_iter=50, which="LA", seed=0).eigenvalues[0].item()
    exact = torch.linalg.eigvalsh(known_hessian("perceptron"))[-1].item()
    assert measure_curvature(model, batches)["parts"]["whole"]["lambda_max"]["value"] == pytest.approx(exact, rel=1e-5)
    assert theirs != pytest.approx(exact, rel=1e-3)
