"""The captured step does what the eager step does. Without CUDA its steps run unrecorded, on the second set of weights.

On a machine with CUDA, `python -m pytest tests/minimizers/test_captured.py` (or running this file) records graphs.
"""

import copy

import pytest
import torch
from cases import TinyConvNet, TinyTransformer, images
from torch.nn.functional import cross_entropy

from steppe.minimizers import Batch, CapturedStep, Every, GradientNorm, create
from steppe.minimizers.capturable import settings_of

METHODS = ["base", "sam", "asam", "looksam", "msam", "gsam", "fsam", "samon", "lesam"]
OPTIONS = {"looksam": {"k": 2}, "gsam": {"rho_min": 0.01}, "msam": {"rho": 0.3}}
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="records CUDA graphs")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_cuda)]


def loss_of(model, x, y):
    return cross_entropy(model(x), y)


def eager_step(minimizer, model, x, y):
    def closure():
        loss = loss_of(model, x, y)
        loss.backward()
        return loss

    return minimizer.step(closure)


def pair(method, device, make=TinyConvNet, optimizer="SGD", **options):
    torch.manual_seed(0)
    models = [make().to(device)]
    models.append(copy.deepcopy(models[0]))
    minimizers = []
    for model in models:
        settings = {"momentum": 0.9} if optimizer == "SGD" else {}
        base = getattr(torch.optim, optimizer)(model.parameters(), lr=0.05, weight_decay=0.01, **settings)
        minimizers.append(create(method, base, model, **{**OPTIONS.get(method, {}), **options}))
    return models, minimizers


def batches(device, count=6, size=8):
    return [tuple(t.to(device) for t in images(size, seed=seed)) for seed in range(count)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_equals_the_eager_step(method, device, optimizer):
    models, minimizers = pair(method, device, optimizer=optimizer)
    data = batches(device)
    step = CapturedStep(minimizers[0], models[0], loss_of, data[0], autocast=None, compiled=False)
    pointers = [p.data_ptr() for p in models[0].parameters()]
    for number, (x, y) in enumerate(data):
        for minimizer in minimizers:
            minimizer.param_groups[0]["lr"] = 0.05 / (1 + number)  # a schedule must reach the graph
        loss = step(x, y)
        expected = eager_step(minimizers[1], models[1], x, y)
        assert torch.allclose(loss, expected, rtol=1e-4, atol=1e-6)
    for a, b in zip(models[0].state_dict().values(), models[1].state_dict().values(), strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-5)
    assert minimizers[0].gradient_evaluations == minimizers[1].gradient_evaluations
    assert minimizers[0].step_count == len(data)
    assert pointers == [p.data_ptr() for p in models[0].parameters()]
    if method == "looksam" and device == "cuda":
        assert len(step.graphs) == 2


def losses_of(model, x, y):
    return cross_entropy(model(x), y, reduction="none")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("beta", "gamma"), [(0.6, 0.5), (1.0, 0.5), (0.3, 1.0)])
def test_esam_equals_the_eager_step(device, beta, gamma):
    models, minimizers = pair("esam", device, make=TinyTransformer, beta=beta, gamma=gamma, rho=0.3)
    minimizers[0].seed = minimizers[1].seed = 3
    data = batches(device)
    step = CapturedStep(minimizers[0], models[0], losses_of, data[0], autocast=None, compiled=False)
    for x, y in [*data, *batches(device, 1, size=5), *data[:2]]:
        batch = Batch(len(x), lambda part, x=x, y=y: losses_of(models[1], x[part], y[part]))
        assert torch.allclose(step(x, y), minimizers[1].step(batch), rtol=1e-4)
        assert step.passes == (3 if gamma < 1 else 2)
    assert minimizers[0].gradient_evaluations == pytest.approx(minimizers[1].gradient_evaluations)
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-5)
    assert minimizers[0].mask is None  # used without the captured step it draws its own subset again


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", ["aesam", "asam", "fsam", "gsam", "looksam"])
def test_a_step_that_decides_by_its_gradient_equals_the_eager_one(device, method):
    given = {} if method == "aesam" else {"schedule": None}
    models, minimizers = pair(method, device, **given)
    if method != "aesam":
        for minimizer in minimizers:
            minimizer.schedule = GradientNorm(start=0.0, end=0.0)
    data = batches(device, 12)
    step = CapturedStep(minimizers[0], models[0], loss_of, data[0], autocast=None, compiled=False)
    passes = []
    for x, y in data:
        assert torch.allclose(step(x, y), eager_step(minimizers[1], models[1], x, y), rtol=1e-4)
        passes.append(step.passes)
    assert minimizers[0].sharp_step_count == minimizers[1].sharp_step_count == passes.count(2)
    assert 0 < passes.count(2) < len(data)
    assert minimizers[0].gradient_evaluations == minimizers[1].gradient_evaluations
    for a, b in zip(models[0].state_dict().values(), models[1].state_dict().values(), strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-5)


def test_esam_wants_a_loss_for_each_example():
    models, minimizers = pair("esam", "cpu")
    step = CapturedStep(minimizers[0], models[0], loss_of, images(), autocast=None, compiled=False)
    with pytest.raises(ValueError, match="one for each"):
        step(*images())


@pytest.mark.parametrize("device", DEVICES)
def test_schedules_and_fractions(device):
    options = {"schedule": Every(2), "ascent_fraction": 0.25}
    models, minimizers = pair("asam", device, make=TinyTransformer, **options)
    step = CapturedStep(minimizers[0], models[0], loss_of, batches(device)[0], autocast=None, compiled=False)
    quarter = batches(device)

    class Part:
        size = 8

        def __init__(self, x, y):
            self.x, self.y = x, y

        def __call__(self, part=slice(None), weight=1.0):
            loss = loss_of(models[1], self.x[part], self.y[part])
            (loss * weight).backward()
            return loss

    for x, y in quarter:
        minimizers[0].param_groups[0]["rho"] = minimizers[1].param_groups[0]["rho"] = float(x.abs().mean())
        assert torch.allclose(step(x, y), minimizers[1].step(Part(x, y)), rtol=1e-4)
    assert minimizers[0].gradient_evaluations == minimizers[1].gradient_evaluations == 3 * 1.25 + 3
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", [*METHODS, "esam"])
def test_micro_batches_make_the_update_of_the_whole_batch(method, device):
    models, minimizers = pair(method, device, make=TinyTransformer)
    loss = losses_of if method == "esam" else loss_of
    sizes = []

    def counting(model, x, y):
        sizes.append(len(x))
        return loss(model, x, y)

    data = batches(device)
    options = {"autocast": None, "compiled": False}
    steps = [CapturedStep(minimizers[0], models[0], counting, data[0], parts=3, **options)]
    steps += [CapturedStep(minimizers[1], models[1], loss, data[0], **options)]
    for minimizer in minimizers:
        minimizer.seed = 3
    for x, y in [*data, *batches(device, 1, size=7)]:
        assert torch.allclose(steps[0](x, y), steps[1](x, y), rtol=1e-4)
        assert steps[0].passes > steps[1].passes
    assert max(sizes) == 3, "8 examples in three parts: 3, 3 and 2"
    assert minimizers[0].gradient_evaluations == minimizers[1].gradient_evaluations
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-5)
    with pytest.raises(ValueError, match="in 9 parts"):
        CapturedStep(minimizers[0], models[0], loss, data[0], parts=9, **options)


@pytest.mark.parametrize("device", DEVICES)
def test_a_batch_of_another_size_runs_without_the_graph(device):
    models, minimizers = pair("sam", device)
    step = CapturedStep(minimizers[0], models[0], loss_of, batches(device)[0], autocast=None, compiled=False)
    for x, y in [*batches(device, 2), *batches(device, 1, size=5), *batches(device, 2)]:
        assert torch.allclose(step(x, y), eager_step(minimizers[1], models[1], x, y), rtol=1e-4)
    assert minimizers[0].step_count == 5


@pytest.mark.parametrize("device", DEVICES)
def test_a_loaded_state_is_what_the_next_step_uses(device):
    models, minimizers = pair("looksam", device)
    data = batches(device)
    step = CapturedStep(minimizers[0], models[0], loss_of, data[0], autocast=None, compiled=False)
    for x, y in data[:3]:
        step(x, y)
    saved = copy.deepcopy((models[0].state_dict(), minimizers[0].state_dict()))
    expected = [float(step(x, y)) for x, y in data]
    models[0].load_state_dict(saved[0])
    minimizers[0].load_state_dict(saved[1])
    assert [float(step(x, y)) for x, y in data] == pytest.approx(expected, rel=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on importing its compiler
def test_a_method_without_a_second_pass_has_no_second_set():
    for method, copies in (("base", False), ("sam", True), ("msam", True)):
        models, minimizers = pair(method, "cpu")
        step = CapturedStep(minimizers[0], models[0], loss_of, images(), autocast=None, compiled=False)
        assert any(twin is not None for twin in step.second.parameters) is copies
        assert bool(step.second.buffers) is copies


def test_the_second_set_needs_no_second_compilation():
    torch._dynamo.reset()
    compilations = []

    def backend(graph, inputs):
        compilations.append(len(inputs))
        return graph.forward

    models, minimizers = pair("sam", "cpu")
    step = CapturedStep(
        minimizers[0], models[0], loss_of, batches("cpu")[0], autocast=None, compile_options={"backend": backend}
    )
    for x, y in batches("cpu"):
        assert torch.allclose(step(x, y), eager_step(minimizers[1], models[1], x, y), rtol=1e-4)
    assert len(compilations) == 1
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_both_passes_draw_the_same_numbers_on_request(device):
    losses = {}
    for method, options in (("base", {}), ("sam", {"rho": 0.0, "replay_rng": True})):
        models, minimizers = pair(method, device, make=lambda: TinyConvNet(dropout=0.5), **options)
        data = batches(device)
        step = CapturedStep(minimizers[0], models[0], loss_of, data[0], autocast=None, compiled=False)
        step.record()
        torch.manual_seed(7)
        losses[method] = [float(step(x, y)) for x, y in data]
    assert losses["sam"] == pytest.approx(losses["base"], rel=1e-4)  # radius 0: the same masks give the same step
    assert len(set(losses["base"])) == len(losses["base"])


def test_what_cannot_be_captured_is_refused():
    x, y = images()
    for method, options, reason in (
        ("esam", {"replay_rng": True}, "different examples"),
        ("sam", {"m": 4}, "one perturbation"),
        ("sam", {"scaler": torch.amp.GradScaler("cpu")}, "scaler"),
    ):
        models, minimizers = pair(method, "cpu", **options)
        with pytest.raises(ValueError, match=reason):
            CapturedStep(minimizers[0], models[0], loss_of, (x, y))


def test_a_base_whose_state_does_not_start_from_zero_steps_once_before():
    x, y = images()
    models, minimizers = pair("sam", "cpu")
    with pytest.raises(ValueError, match="at least 2"):
        CapturedStep(minimizers[0], models[0], loss_of, (x, y), warmup=1)
    models, minimizers = pair("sam", "cpu", optimizer="NAdam")
    with pytest.raises(ValueError, match="make one step"):
        CapturedStep(minimizers[0], models[0], loss_of, (x, y), captured=True)
    eager_step(minimizers[0], models[0], x, y)
    CapturedStep(minimizers[0], models[0], loss_of, (x, y), captured=True)


def test_a_change_of_a_recorded_number_is_refused():
    models, minimizers = pair("gsam", "cpu")
    step = CapturedStep(minimizers[0], models[0], loss_of, images(), captured=True, compiled=False)
    step._record = lambda kind, part: None  # the recording itself needs CUDA
    step.settings, step.graphs = settings_of(minimizers[0]), {(minimizers[0].kind(), "whole"): None}
    step._check_settings()
    for key, value in (("momentum", 0.8), ("weight_decay", 0.5), ("rho_max", 0.9)):
        old = minimizers[0].param_groups[0][key]
        minimizers[0].param_groups[0][key] = value
        with pytest.raises(ValueError, match=rf"{key} of parameter group 0 .* forget\(\)"):
            step._check_settings()
        minimizers[0].param_groups[0][key] = old
    minimizers[0].param_groups[0].update(lr=0.7, rho=0.3)
    step._refresh_numbers()
    step._check_settings()
    minimizers[0].param_groups[0]["momentum"] = 0.8
    step.forget()
    step._check_settings()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("change", ["unfreeze", "add group"])
def test_parameters_that_join_later_take_part(device, change):
    models, minimizers = pair("sam", device, rho=0.3)
    for index, model in enumerate(models):
        model.conv.requires_grad_(False)
        if change == "add group":
            rest = [p for p in model.parameters() if p is not model.conv.weight]
            minimizers[index] = create("sam", torch.optim.SGD(rest, lr=0.05, momentum=0.9), model, rho=0.3)
    data = batches(device)
    step = CapturedStep(minimizers[0], models[0], loss_of, data[0], autocast=None, compiled=False)
    for number, (x, y) in enumerate(data):
        if number == 2:
            for model, minimizer in zip(models, minimizers, strict=True):
                model.conv.requires_grad_(True)
                if change == "add group":
                    minimizer.add_param_group({"params": [model.conv.weight]})
        step(x, y)
        eager_step(minimizers[1], models[1], x, y)
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-5)


@needs_cuda
@pytest.mark.parametrize("method", ["sam", "asam", "msam"])
def test_the_fused_kernels_equal_the_multi_tensor_form(method):
    from steppe.minimizers.fused import FusedPerturbation
    from steppe.minimizers.perturbation import Perturbation

    models, minimizers = pair(method, "cuda", make=TinyTransformer, rho=0.5)
    minimizer = minimizers[0]
    direction = [torch.randn_like(p) for p in models[0].parameters()]
    outs = []
    for form in (FusedPerturbation(Perturbation()), Perturbation()):
        out = [torch.full_like(p, float("nan")) for p in models[0].parameters()]
        with torch.no_grad():
            arguments = (minimizer.blocks, minimizer.param_groups, minimizer.parameters, direction, out)
            form(*arguments, scaling=minimizer.scaling, length=-0.7)
        outs.append(out)
    for a, b in zip(*outs, strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-7)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__, "-q", "-x"]))
