"""What the passes of a step must not disturb, and micro-batches in particular."""

import copy

import pytest
import torch
from cases import Perceptron, TinyConvNet, images
from problems import build
from torch import nn
from torch.nn.functional import cross_entropy

from steppe.minimizers import SAM, Batch, Every, create

NORMS = {
    "1d": (nn.BatchNorm1d, (8, 3)),
    "2d": (nn.BatchNorm2d, (8, 3, 2, 2)),
    "3d": (nn.BatchNorm3d, (8, 3, 2, 2, 2)),
    "instance": (lambda width: nn.InstanceNorm2d(width, track_running_stats=True, affine=True), (8, 3, 2, 2)),
}


@pytest.mark.parametrize("kind", NORMS)
def test_running_statistics_of_every_kind_move_once(kind):
    make, shape = NORMS[kind]
    model = nn.Sequential(make(3), nn.Flatten(), nn.LazyLinear(2))
    x = torch.randn(shape)
    model(x)
    twin = copy.deepcopy(model)
    minimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=2.0, model=model)

    def closure():
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        minimizer.step(closure)
        twin[0](x)
    for mine, other in zip(model[0].buffers(), twin[0].buffers(), strict=True):
        assert torch.equal(mine, other)


def test_each_micro_batch_draws_the_same_mask_in_both_passes():
    model = TinyConvNet(dropout=0.5)
    x, y = images()
    masks = []
    model.dropout.register_forward_hook(lambda module, inputs, output: masks.append(output == 0))
    minimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1), model=model, m=4, replay_rng=True)
    minimizer.step(Batch(8, lambda part: cross_entropy(model(x[part]), y[part], reduction="none")))
    assert len(masks) == 4
    assert torch.equal(masks[0], masks[1])
    assert torch.equal(masks[2], masks[3])
    assert not torch.equal(masks[0], masks[2])


def test_micro_batches_with_a_schedule_add_up_on_plain_steps():
    """Steps that are not sharp are the base optimizer's on the whole batch; the others have an ε for each part."""
    _, model, minimizer, batch = build("mlp", "sam", rho=0.3, m=5, schedule=Every(2))
    _, sharp_model, sharp, sharp_batch = build("mlp", "sam", rho=0.3, m=5)
    _, plain_model, plain, plain_batch = build("mlp", "base")
    for step in range(5):
        other_model, other, other_batch = (
            (plain_model, plain, plain_batch) if step % 2 else (sharp_model, sharp, sharp_batch)
        )
        other_model.load_state_dict(model.state_dict())
        other.base.load_state_dict(copy.deepcopy(minimizer.base.state_dict()))
        loss, expected = minimizer.step(batch), other.step(other_batch)
        assert float(loss) == pytest.approx(float(expected), rel=1e-12)
        for a, b in zip(model.parameters(), other_model.parameters(), strict=True):
            assert torch.allclose(a, b, rtol=1e-12)
    assert minimizer.sharp_step_count == 3
    assert minimizer.gradient_evaluations == pytest.approx(8.0)


@pytest.mark.parametrize("tensors", [False, True])
def test_gsam_radius_stops_at_zero_as_a_number_and_as_a_tensor(tensors):
    _, _, minimizer, batch = build("mlp", "gsam", rho=0.3, rho_min=-0.2, lr_max=1.0, lr=0.1)
    if tensors:
        minimizer.param_groups[0]["lr"] = torch.tensor(0.1)
    minimizer.step(batch)
    assert float(minimizer.param_groups[0]["rho"]) == 0.0


def test_a_loaded_state_forgets_a_step_that_was_begun():
    _, _, minimizer, batch = build("mlp", "sam")
    state = minimizer.state_dict()
    batch()
    minimizer.ascend()
    minimizer.load_state_dict(state)
    minimizer.zero_grad()
    batch()
    assert minimizer.ascend()  # not "twice"
    minimizer.descend()


def test_kept_gradients_survive_views_of_a_larger_buffer(monkeypatch):
    """DDP's bucket views are written again by the next pass, whether or not the minimizer was given DDP's model."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    model = Perceptron()
    minimizer = create("gsam", torch.optim.SGD(model.parameters(), lr=0.1), model)
    sizes = [p.numel() for p in model.parameters()]
    bucket = torch.randn(sum(sizes))
    views = [part.view_as(p) for part, p in zip(bucket.split(sizes), model.parameters(), strict=True)]
    kept = minimizer.keep(views)
    values = [view.clone() for view in views]
    bucket.zero_()
    assert all(torch.equal(a, b) for a, b in zip(kept, values, strict=True))
    own = [torch.randn_like(p) for p in model.parameters()]
    assert all(a is b for a, b in zip(minimizer.keep(own), own, strict=True))


@pytest.mark.parametrize("method", ["sam", "asam", "looksam", "esam", "gsam", "fsam", "samon", "aesam"])
def test_a_step_that_failed_in_its_second_pass_is_made_again_with_the_same_result(method):
    """Running out of memory there leads to a retry in smaller parts, which must be the same update."""
    models = []
    for fails in (False, True):
        _, model, minimizer, batch = build("mlp", method, perturb="all") if method == "samon" else build("mlp", method)
        minimizer.seed = 0
        passes = [0]

        def closure(*part, batch=batch, fails=fails, passes=passes):
            passes[0] += 1
            if fails and passes[0] % 5 == 2:
                raise torch.OutOfMemoryError("no room")
            return batch(*part)

        for _ in range(6):
            while True:
                try:
                    minimizer.step(_Forwarding(batch, closure))
                    break
                except torch.OutOfMemoryError:
                    pass
        models.append(model)
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)


class _Forwarding:
    """A batch whose passes go through another function."""

    def __init__(self, batch, call):
        self.batch, self.call, self.size = batch, call, batch.size

    def __call__(self, *part):
        return self.call(*part)

    @property
    def latest(self):
        return self.batch.latest

    def score(self):
        return self.batch.score()


def test_a_sparse_gradient_is_refused_in_plain_words():
    model = nn.Embedding(10, 4, sparse=True)
    minimizer = create("asam", torch.optim.SGD(model.parameters(), lr=0.1), model)

    def closure():
        loss = model(torch.tensor([1, 2])).square().sum()
        loss.backward()
        return loss

    with pytest.raises(ValueError, match="sparse=False"):
        minimizer.step(closure)
