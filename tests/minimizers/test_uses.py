"""Wrong uses are explained, and unusual ones work."""

import pytest
import torch
from cases import Perceptron, TinyConvNet, images
from problems import build

from steppe.minimizers import ASAM, FSAM, GSAM, MSAM, SAM, create, reestimate_batchnorm


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
    with pytest.raises(ValueError, match="unknown scaling"):
        SAM(base, scaling="filter")
    with pytest.raises(TypeError, match="pass a steppe"):
        SAM(base, ascent_fraction=0.25).step(lambda: batch())
    with pytest.raises(TypeError, match="closure"):
        minimizer.step(None)
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


def test_fsam_averages_raw_gradients():
    _, model, minimizer, batch = build("mlp", "fsam", rho=0.3, lam=0.6, lr=0.0)
    for _ in range(3):
        minimizer.step(batch)
    minimizer.zero_grad()
    batch()
    expected = [p.grad * (1 - 0.6**3) for p in model.parameters()]
    assert isinstance(minimizer, FSAM)
    for average, value in zip(minimizer.averages["gradient"], expected, strict=True):
        assert torch.allclose(average, value, rtol=1e-10)
