from __future__ import annotations

import gc
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import oracle
import pytest
import torch
from cases import TinyConvNet, TinyTransformer, images
from oracle import CASES, dense_hessian, known_hessian, make, positions
from torch import Tensor, nn

from steppe.config import ModelConfig
from steppe.errors import ConfigError, MeasureError, SteppeError
from steppe.geometry.memory import SavedBytes
from steppe.geometry.products import Hessian
from steppe.geometry.selfcheck import check_products
from steppe.measuring import CROSS_ENTROPY, ClassLoss
from steppe.models import build

LOSSES = [CROSS_ENTROPY, ClassLoss(sigmoid=True), ClassLoss(label_smoothing=0.1)]


def all_columns(hessian: Hessian, part: str = "whole") -> Tensor:
    size = hessian.size(part)
    return torch.stack([hessian.multiply(row, part) for row in torch.eye(size, dtype=torch.float64)])


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_every_column_is_a_difference_of_gradients(name, loss):
    model, batches = make(name)
    with Hessian(model, batches, loss=loss) as hessian:
        dense = known_hessian(name, loss)
        torch.testing.assert_close(all_columns(hessian), dense, rtol=1e-5, atol=1e-6)


def test_hessian_of_a_swin_is_a_difference_of_gradients():
    """Swin's attention has a learned bias and, in every second block, a mask."""
    torch.manual_seed(0)
    model = build(ModelConfig(name="swin_tiny_p2"), image_size=16, channels=3, classes=4).double().eval()
    batches = [(torch.randn(3, 3, 16, 16, dtype=torch.float64), torch.tensor([0, 1, 2]))]
    with Hessian(model, batches) as hessian:
        vector = hessian.random("whole", torch.Generator().manual_seed(0))
        found = hessian.multiply(vector)
    ends = []
    for step in (1e-5, -2e-5):
        with torch.no_grad():
            for parameter, along in zip(model.parameters(), hessian.unflatten(vector).values(), strict=True):
                parameter += step * along
        ends.append(oracle.gradient(model, batches, CROSS_ENTROPY))
    torch.testing.assert_close(found, (ends[0] - ends[1]) / 2e-5, rtol=1e-5, atol=1e-6)


def test_products_are_right_in_another_thread():
    """On a GPU torch goes backward in a thread of its own."""

    def columns() -> Tensor:
        model, batches = make("vit")
        with Hessian(model, batches) as hessian:
            return torch.stack([hessian.multiply(row) for row in torch.eye(hessian.size(), dtype=torch.float64)[::40]])

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(columns).result()
    torch.testing.assert_close(found, known_hessian("vit")[::40], rtol=1e-5, atol=1e-6)


def live_bytes() -> int:
    """Count the bytes that all live tensors hold, each storage once."""
    held = {}
    for x in gc.get_objects():
        if type(x) in (torch.Tensor, nn.Parameter):
            with suppress(RuntimeError):  # a fake tensor, left by the compiler of another test
                held[x.data_ptr()] = x.untyped_storage()
    return sum({storage.data_ptr(): storage.nbytes() for storage in held.values()}.values())


@pytest.mark.parametrize("keep", [False, True])
def test_products_leave_no_memory_behind(keep):
    """A leak is one gradient's graph for every product: on a GPU that is gigabytes."""
    model, batches = make("vit")
    gc.collect()
    gc.disable()  # a cycle that waits for Python's collector can fill a GPU before the collector runs
    try:
        before = live_bytes()
        with Hessian(model, batches, keep=keep) as hessian:
            row = torch.ones(hessian.size(), dtype=torch.float64)
            held = []
            for _ in range(3):
                hessian.multiply(row)
                held.append(live_bytes())
        assert held[1] == held[2]
        del row
        assert live_bytes() == before
    finally:
        gc.enable()


def test_batchnorm_with_each_batchs_own_statistics():
    model, batches = make("resnet")
    model.train()
    dense = dense_hessian(model, batches, CROSS_ENTROPY)
    with Hessian(model, batches, batch_norm="batch") as hessian:
        found = all_columns(hessian)
    torch.testing.assert_close(found, dense, rtol=1e-5, atol=1e-6)
    with Hessian(model, batches) as hessian:
        assert (all_columns(hessian) - dense).norm() > 0.1 * dense.norm()


def test_parts_are_diagonal_blocks():
    model, batches = make("vit")
    dense = known_hessian("vit")
    parts = ("embedding", "attention", "mlp", "block1", "block2", "head")
    with Hessian(model, batches, parts=parts) as hessian:
        for part in parts:
            here = positions(model, hessian.parts[part])
            torch.testing.assert_close(all_columns(hessian, part), dense[here][:, here], rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:FutureWarning")  # torch's own, on the way to a jvp
def test_forward_over_reverse_is_wrong_where_this_is_right():
    """Why `torch.func.hessian` is no oracle here: the jvp of a `jacrev` is wrong, that of a `grad` is not (torch 2.15).

    If this fails, torch has fixed it.
    """
    model, batches = make("vit")
    model.eval()
    names = list(dict(model.named_parameters()))
    x, y = batches[0]

    def mean_loss(flat: Tensor) -> Tensor:
        pieces = flat.split([p.numel() for p in model.parameters()])
        shaped = {n: piece.view(p.shape) for n, p, piece in zip(names, model.parameters(), pieces, strict=True)}
        return CROSS_ENTROPY(torch.func.functional_call(model, shaped, (x,)), y).mean()

    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    vector = torch.randn(len(flat), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with Hessian(model, batches) as hessian:
        right = hessian.multiply(vector)
        twice = torch.autograd.functional.vhp(mean_loss, flat, vector)[1]
        forward = torch.func.jvp(torch.func.jacrev(mean_loss), (flat,), (vector,))[1]
    torch.testing.assert_close(right, twice)
    assert (forward - right).norm() > 0.01 * right.norm()


@pytest.mark.parametrize("options", [{"chunk": 3}, {"keep": False}, {"chunk": 2, "keep": False}], ids=str)
@pytest.mark.parametrize("name", ["transformer", "resnet"])
def test_cutting_and_keeping_do_not_change_the_answer(name, options):
    model, batches = make(name)
    with Hessian(model, batches) as hessian:
        vector = hessian.random("whole", torch.Generator().manual_seed(0))
        first, again = hessian.multiply(vector), hessian.multiply(vector)
        gradient = hessian.gradient()
        assert len(hessian.graphs) == len(batches)
    with Hessian(model, batches, **options) as other:
        torch.testing.assert_close(other.multiply(vector), first, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(other.gradient(), gradient, rtol=1e-12, atol=1e-12)
    assert torch.equal(first, again)


def test_what_does_not_fit_is_cut_finer_and_rebuilt(monkeypatch):
    """With room for a share of the graphs, the data is cut until part of it can be kept."""
    from steppe.geometry import products

    model, batches = make("transformer")
    x, y = (torch.cat([batch[i] for batch in batches] * 40) for i in (0, 1))
    with Hessian(model, [(x, y)]) as hessian:
        vector = hessian.random("whole", torch.Generator().manual_seed(0))
        expected = hessian.multiply(vector)
        counted = SavedBytes(hessian.named.values())
        with counted:
            hessian._build(x, y)
    monkeypatch.setattr(products, "free_bytes", lambda device: -0.5 * counted.total)  # half a graph in all
    with Hessian(model, [(x, y)]) as hessian:
        torch.testing.assert_close(hessian.multiply(vector), expected, rtol=1e-12, atol=1e-12)
        chunks = len(hessian._chunks())
        assert chunks > 10
        assert 0 < len(hessian.graphs) < chunks
        torch.testing.assert_close(hessian.multiply(vector), expected, rtol=1e-12, atol=1e-12)


class Hungry(nn.Module):
    """Runs out of memory above a number of examples, as a GPU does."""

    def __init__(self, model: nn.Module, limit: int) -> None:
        super().__init__()
        self.model, self.limit, self.refused = model, limit, 0

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.limit:
            self.refused += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.model(x)


def test_memory_that_runs_out_makes_smaller_chunks_and_the_same_answer():
    model, batches = make("transformer")
    with Hessian(model, batches) as hessian:
        vector = hessian.random("whole", torch.Generator().manual_seed(0))
        expected = hessian.multiply(vector)
    hungry = Hungry(model, 2)
    with Hessian(hungry, batches) as hessian:
        torch.testing.assert_close(hessian.multiply(vector), expected, rtol=1e-12, atol=1e-12)
        assert hungry.refused
        assert hessian.chunk <= 2
        refused = hungry.refused
        hessian.multiply(vector)
        assert hungry.refused == refused
    with Hessian(Hungry(model, 0), batches) as hessian, pytest.raises(SteppeError, match="smallest chunk"):
        hessian.multiply(vector)
    with Hessian(Hungry(model, 2), batches, batch_norm="batch") as hessian, pytest.raises(SteppeError, match="memory"):
        hessian.multiply(vector)


def test_other_errors_are_not_taken_for_memory():
    class Broken(TinyTransformer):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("a bug")

    with Hessian(Broken(), [images(6)]) as hessian, pytest.raises(RuntimeError, match="a bug"):
        hessian.gradient()


def test_a_loss_that_is_linear_in_a_part_has_no_curvature_there():
    model = nn.Linear(3, 2).double()
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def linear_loss(logits: Tensor, targets: Tensor) -> Tensor:
        return logits.sum(1)

    with Hessian(model, [(x, torch.arange(5) % 2)], loss=linear_loss) as hessian:
        assert torch.equal(hessian.multiply(torch.ones(8, dtype=torch.float64)), torch.zeros(8, dtype=torch.float64))
        assert check_products(hessian)["symmetry"] == 0.0


class Crooked(torch.autograd.Function):
    """x², whose gradient is right and whose second derivative is half of what it should be."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x + x.detach())


def test_a_wrong_second_derivative_is_found_out():
    class CrookedNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(Crooked.apply(self.first(x)))

    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    with Hessian(CrookedNet(), [(x, torch.arange(6) % 3)]) as hessian, pytest.raises(SteppeError, match="no figure"):
        check_products(hessian)


def test_a_relu_network_passes_its_own_check():
    torch.manual_seed(0)
    for mode in ("running", "batch"):
        with Hessian(TinyConvNet(), [images(16)], batch_norm=mode) as hessian:
            found = check_products(hessian)
        assert found["symmetry"] < 1e-3
        assert found["finite_differences"] < 1e-3


def test_weights_at_a_kink_have_no_curvature():
    """As in a fresh ResNet whose branches end in zeros: relu(0 + 0) has a slope on one side only."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    nn.init.zeros_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    batches = [(x, torch.arange(6) % 3)]
    with Hessian(model, batches) as hessian, pytest.raises(MeasureError, match="gradient jumps at these very weights"):
        check_products(hessian)


def test_the_model_is_left_as_it_was_found():
    torch.manual_seed(0)
    model = TinyConvNet(dropout=0.5)
    model.head.bias.requires_grad_(False)
    model.norm.eval()
    x, y = images(12)
    model(x).sum().backward()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    gradients = [p.grad for p in model.parameters()]
    copies = [None if g is None else g.clone() for g in gradients]
    random = torch.get_rng_state()
    numerics = _numerics()
    with torch.no_grad(), Hessian(model, [(x, y)], batch_norm="batch", precision="tf32") as hessian:
        check_products(hessian)
        hessian.gradient()
        assert not model.dropout.training
        assert model.norm.training
        assert _numerics() == ("high", True, True, True, False)
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert model.training
    assert model.dropout.training
    assert not model.norm.training
    assert [p.requires_grad for p in model.parameters()] == [True, True, True, True, False]
    for parameter, gradient, copy in zip(model.parameters(), gradients, copies, strict=True):
        assert parameter.grad is gradient
        assert gradient is None or torch.equal(gradient, copy)
    assert torch.equal(torch.get_rng_state(), random)
    assert _numerics() == numerics


def _numerics() -> tuple[object, ...]:
    cudnn = torch.backends.cudnn
    return torch.get_float32_matmul_precision(), cudnn.enabled, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark


def test_frozen_parameters_take_no_part():
    model, batches = make("vit")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(("blocks.1.", "head.")))
    with Hessian(model, batches, parts=("block2",)) as hessian:
        assert hessian.size() == sum(p.numel() for p in model.parameters() if p.requires_grad)
    with pytest.raises(ConfigError, match="trainable"):
        Hessian(model, batches, parts=("block1",))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(SteppeError, match="no trainable parameter"):
        Hessian(model, batches)


def test_bad_input_gets_one_clear_message():
    model, batches = make("vit")
    with pytest.raises(ConfigError, match="unknown part") as caught:
        Hessian(model, batches, parts=("blocc1",))
    assert "block1" in caught.value.fix
    with pytest.raises(ConfigError, match="no names here"):
        Hessian(TinyTransformer(), [images(6)], parts=("attention",))
    x, y = batches[0]
    with pytest.raises(SteppeError, match="class 1"):
        Hessian(model, [(x, torch.ones_like(y))])
    with pytest.raises(SteppeError, match="no examples"):
        Hessian(model, [])
    with pytest.raises(SteppeError, match="image holds NaN"):
        Hessian(model, [(x * float("nan"), y)])
    with torch.no_grad():
        model.head.bias[0] = float("nan")
    with pytest.raises(SteppeError, match="NaN") as caught_nan:
        Hessian(model, batches)
    assert "head.bias" in caught_nan.value.what


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_compiled_products_are_the_same():
    model, batches = make("transformer")
    head = {"end": ["norm.weight", "head.weight"]}
    with Hessian(model, batches[:1], parts=head) as hessian:
        vectors = {part: hessian.random(part, torch.Generator().manual_seed(0)) for part in ("whole", "end")}
        expected = {part: hessian.multiply(vector, part) for part, vector in vectors.items()}
    with Hessian(model, batches[:1], parts=head, compiled=True) as hessian:
        for part, vector in vectors.items():
            torch.testing.assert_close(hessian.multiply(vector, part), expected[part], rtol=1e-9, atol=1e-9)
            assert torch.equal(hessian.multiply(vector, part), hessian.multiply(vector, part))
        assert hessian.graphs


def test_weights_that_are_all_zero_can_be_checked():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    nn.init.zeros_(model[1].weight)
    nn.init.zeros_(model[1].bias)
    batches = [(torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(8))]
    with Hessian(model, batches) as hessian:
        assert check_products(hessian)["finite_differences"] < 1e-3


_INTERRUPTED = """
import signal
import torch
from cases import TinyTransformer, images
from steppe.geometry.products import Hessian

def stop(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, stop)
x, y = images(64)
for attempt in range(30):
    with Hessian(TinyTransformer(), [(x, y)]) as hessian:
        vector = hessian.random("whole", torch.Generator().manual_seed(0))
        hessian.multiply(vector)
        signal.setitimer(signal.ITIMER_REAL, 0.002 + 0.0003 * attempt)
        try:
            while True:
                hessian.multiply(vector)
        except KeyboardInterrupt:
            pass
print("interrupted")
"""


def test_a_product_that_is_interrupted_does_not_crash_the_process_at_its_end():
    ended = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
    )
    assert ended.stdout == "interrupted\n", ended.stderr
    assert ended.returncode == 0
