"""Wrong uses are explained, and unusual ones work."""

import functools
from types import SimpleNamespace

import pytest
import torch
from cases import Perceptron, TinyConvNet, images
from problems import build, two_calls
from torch.nn.functional import cross_entropy

from steppe.minimizers import ASAM, FSAM, GSAM, MSAM, SAM, Batch, create, reestimate_batchnorm


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_wrong_uses_are_explained():
    _, model, minimizer, batch = build("mlp", "sam")
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"unknown minimizer 'samba'.*looksam"):
        create("samba", base)
    with pytest.raises(TypeError, match="optimizer instance"):
        SAM(torch.optim.SGD)
    with pytest.raises(ValueError, match="pass model="):
        ASAM(base)
    with pytest.raises(ValueError, match="pass model="):
        create("samon", base)
    with pytest.raises(ValueError, match="nothing to perturb"):
        create("samon", base, model)
    with pytest.raises(ValueError, match="momentum=0"):
        MSAM(base)
    with pytest.raises(ValueError, match="DistributedDataParallel"):
        SAM(base, model=model, m="rank")
    with pytest.raises(ValueError, match="micro-batches"):
        GSAM(base, m=4)
    with pytest.raises(ValueError, match="ascent_fraction"):
        GSAM(base, ascent_fraction=0.25)
    with pytest.raises(ValueError, match="at least 0"):
        SAM(base, rho=-0.1)
    for method in ("looksam", "gsam", "fsam", "aesam", "esam"):
        with pytest.raises(ValueError, match="would part"):
            create(method, base, model, m="rank")
    with pytest.raises(TypeError, match=r"no option 'adaptive'.*ASAM"):
        SAM(base, adaptive=True)
    with pytest.raises(TypeError, match="no option 'roh'"):
        create("gsam", base, model, roh=0.1)
    with pytest.raises(TypeError, match=r"rho is a number.*passed as model="):
        SAM(base, model)
    with pytest.raises(ValueError, match="LBFGS"):
        SAM(torch.optim.LBFGS(model.parameters()))
    with pytest.raises(ValueError, match="minimizer already"):
        SAM(minimizer)
    with pytest.raises(ValueError, match="minimize the negative"):
        SAM(torch.optim.SGD(model.parameters(), lr=0.1, maximize=True))
    with pytest.raises(ValueError, match="minimize the negative"):
        minimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "maximize": True})
    _, model, minimizer, batch = build("mlp", "sam")
    for wrong in (lambda: float(batch()), lambda: batch() and None):
        with pytest.raises(TypeError, match="loss as a tensor"):
            minimizer.step(wrong)
    with pytest.raises(RuntimeError, match="inside its own closure"):
        minimizer.step(lambda: minimizer.step(batch))
    with pytest.raises(ValueError, match="unknown scaling"):
        SAM(base, scaling="filter")
    with pytest.raises(TypeError, match="pass a steppe"):
        SAM(base, ascent_fraction=0.25).step(lambda: batch())
    for nothing in ((), (None,)):  # trainers call either; Python's own message would not say what to do
        with pytest.raises(TypeError, match=r"needs a closure .* ascend\(\)"):
            minimizer.step(*nothing)
    with pytest.raises(RuntimeError, match=r"descend\(\) without"):
        minimizer.descend()
    batch()
    minimizer.ascend()
    with pytest.raises(RuntimeError, match="twice"):
        minimizer.ascend()


def test_names_may_come_from_the_optimizer():
    model = Perceptron()
    minimizer = ASAM(torch.optim.SGD(model.named_parameters(), lr=0.1))
    scaled = {i for block in minimizer.blocks if block.scaled for i in block.members}
    assert scaled == {0, 2}


def test_wrapping_an_optimizer_again_starts_afresh():
    model = Perceptron()
    base = torch.optim.SGD(
        [{"params": model.hidden.parameters(), "rho": 0.7}, {"params": model.out.parameters()}], lr=0.1
    )
    SAM(base, rho=0.05)
    GSAM(base, rho=0.1)
    minimizer = ASAM(base, rho=0.5, model=model)
    assert [group["rho"] for group in minimizer.param_groups] == [0.7, 0.5]
    assert "rho_max" not in minimizer.param_groups[0]


def test_groups_added_later_take_part():
    model = Perceptron().double()
    minimizer = SAM(torch.optim.SGD(model.hidden.parameters(), lr=0.1), rho=0.2)
    minimizer.add_param_group({"params": list(model.out.parameters()), "rho": 0.0})
    before = weights(model)
    x = torch.randn(5, 4, dtype=torch.float64)

    def closure():
        loss = model(x).square().mean()
        loss.backward()
        return loss

    minimizer.step(closure)
    assert all(not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


def test_batchnorm_is_reestimated_at_the_present_weights():
    model = TinyConvNet()
    x, _ = images(32)
    model.norm.running_mean.fill_(9.0)
    reestimate_batchnorm(model, x.split(8))
    with torch.no_grad():
        y = model.conv(x)
    means = torch.stack([part.mean(dim=(0, 2, 3)) for part in y.split(8)]).mean(dim=0)
    variances = torch.stack([part.var(dim=(0, 2, 3)) for part in y.split(8)]).mean(dim=0)
    assert torch.allclose(model.norm.running_mean, means, atol=1e-6)
    assert torch.allclose(model.norm.running_var, variances, atol=1e-6)
    assert model.norm.momentum == 0.1
    assert model.training


def test_fsam_average_begins_with_the_first_gradient():
    _, model, minimizer, batch = build("mlp", "fsam", rho=0.3, lam=0.6)
    expected = None
    for _ in range(3):
        minimizer.zero_grad()
        batch()
        gradients = [p.grad.clone() for p in model.parameters()]
        expected = expected or gradients
        expected = [0.6 * m + 0.4 * g for m, g in zip(expected, gradients, strict=True)]
        minimizer.step(batch)
    assert isinstance(minimizer, FSAM)
    for average, value in zip(minimizer.averages["gradient"], expected, strict=True):
        assert torch.allclose(average, value, rtol=1e-10)


def test_a_base_step_that_raises_leaves_a_usable_minimizer():
    for form in ("step", "two calls"):
        _, model, minimizer, batch = build("mlp", "sam")
        before = weights(model)
        minimizer.base.step = lambda: 1 / 0
        with pytest.raises(ZeroDivisionError):
            minimizer.step(batch) if form == "step" else two_calls(minimizer, batch)
        del minimizer.base.step
        assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
        assert minimizer.step_count == 0
        two_calls(minimizer, batch)
        assert minimizer.step_count == 1


@pytest.mark.parametrize("method", ["fsam", "looksam"])
def test_averages_follow_groups_that_are_added_and_layers_that_are_unfrozen(method):
    """What was kept stays with its parameter, new ones start from zero: the steps of a network trained as a whole."""
    x = torch.randn(5, 4, dtype=torch.float64)
    results = []
    for late in ("never", "added", "unfrozen"):
        torch.manual_seed(1)
        model = Perceptron().double()
        first = list((model if late != "added" else model.out).parameters())
        model.hidden.requires_grad_(late == "never")
        minimizer = create(method, torch.optim.SGD(first, lr=0.1), model, rho=0.2)

        def closure(model=model):
            loss = model(x).square().mean()
            loss.backward()
            if not model.hidden.weight.requires_grad or minimizer.step_count == 0:  # noqa: B023
                model.hidden.zero_grad()
            return loss

        minimizer.step(closure)
        model.hidden.requires_grad_(True)
        if late == "added":
            minimizer.add_param_group({"params": list(model.hidden.parameters())})
        for _ in range(3):
            minimizer.step(closure)
        results.append(weights(model))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.allclose(a, b, rtol=1e-12)


def test_frozen_parameters_take_no_memory():
    model = Perceptron()
    model.hidden.requires_grad_(False)
    minimizer = create("looksam", torch.optim.SGD(model.parameters(), lr=0.1), model)
    x = torch.randn(5, 4)

    def closure():
        loss = model(x).square().mean()
        loss.backward()
        return loss

    minimizer.step(closure)
    for kept in (minimizer._snapshot, minimizer.averages["bend"]):
        assert [tensor is None for tensor in kept] == [True, True, False, False]


def test_asam_takes_other_parameters_in_every_step():
    class Alternating(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = torch.nn.ModuleList([torch.nn.Linear(4, 1, bias=False), torch.nn.Linear(4, 3, bias=False)])
            self.active = 0

        def forward(self, x):
            return self.heads[self.active](x)

    model = Alternating().double()
    minimizer = ASAM(torch.optim.SGD(model.parameters(), lr=0.0), rho=0.5, eta=0.1, model=model)
    x = torch.randn(5, 4, dtype=torch.float64)
    for step in range(4):
        model.active = step % 2
        minimizer.zero_grad()
        model(x).square().mean().backward()
        weight, gradient = model.heads[step % 2].weight.detach().clone(), model.heads[step % 2].weight.grad.clone()
        minimizer.ascend()
        scale = weight.abs() + 0.1
        expected = weight + 0.5 * scale**2 * gradient / (scale * gradient).norm()
        assert torch.allclose(model.heads[step % 2].weight, expected, rtol=1e-12)
        minimizer.descend()


def test_gsam_follows_the_learning_rate_between_its_ends():
    model = Perceptron()
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.optim.lr_scheduler.LinearLR(base, 0.01, total_iters=3)  # warm-up: the present rate is not the highest
    minimizer = GSAM(base, rho=0.05, model=model)
    assert minimizer.param_groups[0]["lr_max"] == 0.1
    for rate, radius in ((0.05, 0.025), (0.1, 0.05), (0.7, 0.05), (torch.tensor(0.7), 0.05)):
        minimizer.param_groups[0]["lr"] = rate
        minimizer.move_radius()
        assert float(minimizer.param_groups[0]["rho"]) == pytest.approx(radius)
    minimizer.param_groups[0].update(rho_max=0.4, lr=0.1)  # the dial
    minimizer.move_radius()
    assert float(minimizer.param_groups[0]["rho"]) == pytest.approx(0.4)


def test_gsam_groups_do_not_share_the_radius():
    model, rho = Perceptron(), torch.tensor(0.4)
    groups = [{"params": model.hidden.parameters(), "lr": 0.1}, {"params": model.out.parameters(), "lr": 1.0}]
    minimizer = GSAM(torch.optim.SGD(groups), rho=rho, model=model, lr_max=1.0)
    minimizer.move_radius()
    assert [float(group["rho"]) for group in minimizer.param_groups] == pytest.approx([0.04, 0.4])
    assert float(rho) == pytest.approx(0.4)


def test_esam_draws_for_itself_and_never_nothing():
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))
    for parameter in list(model.parameters())[:-1]:
        parameter.requires_grad_(False)
    minimizer = create("esam", torch.optim.SGD(model.parameters(), lr=0.1), model, beta=0.3, gamma=1.0)
    x = torch.randn(5, 4)
    rng = torch.get_rng_state()
    for _ in range(12):
        before = model[3].bias.detach().clone()
        model(x).square().mean().backward()
        minimizer.ascend()
        assert not torch.equal(model[3].bias, before)
        minimizer.descend()
        minimizer.zero_grad()
    assert torch.equal(torch.get_rng_state(), rng)


def test_esam_scores_with_the_masks_of_the_first_pass():
    model = TinyConvNet(dropout=0.5)
    x, y = images()
    masks = []
    model.dropout.register_forward_hook(lambda module, inputs, output: masks.append(output == 0))
    minimizer = create("esam", torch.optim.SGD(model.parameters(), lr=0.1), model, rho=0.0, replay_rng=True)
    for _ in range(2):
        minimizer.step(Batch(8, lambda part: cross_entropy(model(x[part]), y[part], reduction="none")))
    assert torch.equal(masks[0], masks[1])
    assert torch.equal(masks[3], masks[4])
    assert not torch.equal(masks[0], masks[3])


def test_shared_parameters_have_the_models_first_name():
    model = torch.nn.Module()
    model.embed = torch.nn.Linear(4, 4, bias=False)
    model.decode = torch.nn.Module()
    model.decode.kernel = model.embed.weight
    minimizer = ASAM(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    assert [block.scaled for block in minimizer.blocks] == [True]


@pytest.mark.parametrize("training", [True, False])
def test_reestimation_puts_every_mode_back_and_leaves_frozen_layers(training):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4), torch.nn.BatchNorm2d(4))
    model.train(training)
    model[1].eval()
    model[1].running_mean.fill_(5.0)
    model[2].running_mean.fill_(5.0)
    reestimate_batchnorm(model, [images()[0]])
    assert [module.training for module in model] == [training, False, training]
    assert model.training == training
    assert bool((model[1].running_mean == 5.0).all()) == training  # in evaluation as a whole, none of them is frozen
    assert not bool((model[2].running_mean == 5.0).any())


def test_lightning_must_not_accumulate_or_clip_around_the_passes():
    _, _, minimizer, batch = build("mlp", "sam")
    for setting, advice in (("accumulate_grad_batches", "all micro-batches"), ("gradient_clip_val", "clip_norm=")):
        trainer = SimpleNamespace(**{setting: 4})
        module = SimpleNamespace(_trainer=trainer)
        with pytest.raises(ValueError, match=advice):
            minimizer.step(functools.partial(lambda module: batch(), module))
