"""Groups that differ in every number, a filter, gradients that come and go: each method against plain loops.

The reference goes tensor by tensor and knows nothing of blocks, groups or the engine; a missing gradient is a zero, and
a parameter whose last gradient is missing takes no step. Final gradients are compared as well as weights.
"""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from steppe.minimizers import METHODS, create

STEPS = 7
GROUPS = (
    (
        ("trunk.weight", "left.bias", "right.weight_ih_l0"),
        {"lr": 0.1, "weight_decay": 0.02, "rho": 0.3, "eta": 0.1, "alpha": 0.5, "lam": 0.7, "sigma": 1.0},
    ),
    (
        ("trunk.bias", "left.weight", "right.bias_ih_l0"),
        {"lr": 0.05, "weight_decay": 0.2, "rho": 0.5, "eta": 0.3, "alpha": 0.9, "lam": 0.4, "sigma": 0.6},
    ),
)
ORDER = [name for names, _ in GROUPS for name in names]
OPTIONS = {"looksam": {"k": 2}, "esam": {"gamma": 1.0, "beta": 0.5}, "aesam": {"decay": 0.6, "num_steps": STEPS}}
STILL = ("trunk.bias", "left.bias")
"""What the filter leaves where it is."""


class Recurrent(nn.Module):
    """A linear layer under names as torch's recurrent layers have them."""

    def __init__(self):
        super().__init__()
        self.weight_ih_l0, self.bias_ih_l0 = nn.Parameter(torch.randn(2, 5)), nn.Parameter(torch.randn(2))

    def forward(self, x):
        return x @ self.weight_ih_l0.T + self.bias_ih_l0


class Branches(nn.Module):
    """A trunk and two heads; `branch` says which of them are in use."""

    def __init__(self):
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(4, 5), nn.Linear(5, 2), Recurrent()

    def forward(self, x, branch):
        hidden = torch.tanh(self.trunk(x))
        heads = {"left": [self.left], "right": [self.right], "both": [self.left, self.right]}[branch]
        return sum(head(hidden) for head in heads)


class Loops:
    """The methods, one tensor after the other."""

    def __init__(self, method, model, x, branch_of, optimizer, scaling, decay, clip):
        self.method, self.model, self.x, self.branch_of = method, model, x, branch_of
        self.optimizer, self.scaling, self.decay, self.clip = optimizer, scaling, decay, clip
        named = dict(model.named_parameters())
        self.w = {name: named[name].detach().clone() for name in ORDER}
        self.o = {name: options for names, options in GROUPS for name in names}
        self.v, self.u, self.counts, self.bend, self.mean = {}, {}, {}, {}, {}
        self.s_mean = self.s_variance = None
        self.step_count = self.sharp = 0

    def gradient(self, w, number):
        leaves = {name: value.clone().requires_grad_() for name, value in w.items()}
        loss = functional_call(self.model, leaves, (self.x, self.branch_of(self.step_count, number))).square().mean()
        found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        return {name: g for name, g in zip(leaves, found, strict=True) if g is not None}

    def moved(self, direction, sign=1.0, chosen=None):
        chosen = [n for n in (chosen or ORDER) if n in direction and n not in STILL]
        t = {}
        for n in chosen:
            scaled = self.scaling == "all" or (self.scaling == "weights" and "weight" in n)
            t[n] = self.w[n].abs() + self.o[n]["eta"] if scaled else torch.ones_like(self.w[n])
        length = sum(float((t[n] * direction[n]).square().sum()) for n in chosen) ** 0.5
        if self.method == "lesam":
            options = self.o[ORDER[0]]
            sign *= min(1.0, options["sigma"] / (options["rho"] * length))
        w = dict(self.w)
        for n in chosen:
            w[n] = self.w[n] + sign * self.o[n]["rho"] * t[n] ** 2 * direction[n] / length
        return w

    def final(self):
        if self.method == "base":
            return self.gradient(self.w, 0)
        if self.method == "msam":
            return self.gradient(self.moved(self.v, -1.0) if self.v else self.w, 0)
        first = self.gradient(self.w, 0)
        if self.method == "looksam" and self.step_count % 2:
            size = dot(first, first) ** 0.5 / dot(self.bend, self.bend) ** 0.5
            zero = {n: self.bend.get(n, 0.0) for n in ORDER}
            return {n: g + self.o[n]["alpha"] * size * zero[n] for n, g in first.items()}
        if self.method == "aesam" and not self.unusual(dot(first, first)):
            return first
        self.sharp += 1
        source = {n: g + self.o[n]["weight_decay"] * self.w[n] if self.decay else g for n, g in first.items()}
        chosen, stretch = None, 1.0
        if self.method == "esam":
            draws = torch.rand(len(ORDER), generator=torch.Generator().manual_seed(11 + self.step_count)).tolist()
            draws = {n: d for n, d in zip(ORDER, draws, strict=True) if n in first and n not in STILL}
            chosen, stretch = [n for n, d in draws.items() if d <= max(0.5, min(draws.values()))], 2.0
        if self.method == "fsam":
            raw = source
            source = {n: g - self.o[n]["sigma"] * self.mean.get(n, torch.zeros_like(g)) for n, g in raw.items()}
            for n, g in raw.items():
                lam = self.o[n]["lam"] if n in self.mean else 0.0
                self.mean[n] = lam * self.mean.get(n, torch.zeros_like(g)) + (1 - lam) * g
        sharp = self.gradient(self.moved(source, stretch, chosen), 1)
        if self.method == "gsam":
            share = dot(first, sharp) / dot(sharp, sharp)
            return {n: g - self.o[n]["alpha"] * (first.get(n, 0.0) - share * g) for n, g in sharp.items()}
        if self.method == "looksam":
            share = dot(first, sharp) / dot(first, first)
            self.bend = {n: sharp.get(n, 0.0) - share * first.get(n, 0.0) for n in {*first, *sharp}}
        return sharp

    def unusual(self, s):
        self.s_mean = 0.6 * (s if self.s_mean is None else self.s_mean) + 0.4 * s
        self.s_variance = 0.6 * (self.s_variance or 0.0) + 0.4 * (s - self.s_mean) ** 2
        return s >= self.s_mean + (1 - 2 * self.step_count / STEPS) * self.s_variance**0.5

    def step(self):
        final = self.final()
        if self.clip is not None:
            size = dot(final, final) ** 0.5
            final = {n: g * min(1.0, self.clip / size) for n, g in final.items()}
        for n, g in final.items():
            g = g + self.o[n]["weight_decay"] * self.w[n]
            if self.optimizer == "SGD":
                self.v[n] = 0.9 * self.v[n] + g if n in self.v else g
                self.w[n] = self.w[n] - self.o[n]["lr"] * self.v[n]
                continue
            count = self.counts[n] = self.counts.get(n, 0) + 1
            self.v[n] = 0.9 * self.v.get(n, 0.0) + 0.1 * g
            self.u[n] = 0.999 * self.u.get(n, 0.0) + 0.001 * g * g
            root = (self.u[n] / (1 - 0.999**count)).sqrt() + 1e-8
            self.w[n] = self.w[n] - self.o[n]["lr"] * self.v[n] / (1 - 0.9**count) / root
        self.step_count += 1
        return final


def dot(a, b):
    return float(sum((a[n] * b[n]).sum() for n in a if n in b))


def comes_and_goes(step, number):
    return ("left", "both", "right", "both", "both")[(2 * step + number) % 5]


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize(
    ("scaling", "decay", "clip"), [("none", False, None), ("weights", True, 0.2), ("all", True, 9.0)]
)
@pytest.mark.parametrize("branch_of", [lambda step, number: "both", comes_and_goes], ids=["whole", "comes and goes"])
@pytest.mark.parametrize("method", METHODS)
def test_equals_plain_loops(method, branch_of, scaling, decay, clip, optimizer):
    torch.manual_seed(4)
    model, x = Branches().double(), torch.randn(6, 4, dtype=torch.float64)
    reference = Loops(method, model, x, branch_of, optimizer, scaling, decay, clip)
    named = dict(model.named_parameters())
    groups = [{"params": [named[name] for name in names], **options} for names, options in GROUPS]
    base = getattr(torch.optim, optimizer)(groups, **({"momentum": 0.9} if optimizer == "SGD" else {}))
    options = dict(OPTIONS.get(method, {}), scaling=scaling, clip_norm=clip, ascent_weight_decay=decay)
    if method == "msam":
        options["ascent_weight_decay"] = False
    minimizer = create(method, base, model, perturb=lambda name, parameter, module: name not in STILL, **options)
    minimizer.seed = 11
    passes = []

    def closure():
        loss = model(x, branch_of(minimizer.step_count, len(passes))).square().mean()
        passes.append(loss)
        loss.backward()
        return loss

    for _ in range(STEPS):
        passes.clear()
        minimizer.step(closure)
        final = reference.step()
        for name, parameter in named.items():
            assert (parameter.grad is None) == (name not in final), name
            if name in final:
                torch.testing.assert_close(parameter.grad, final[name], rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(parameter.detach(), reference.w[name], rtol=1e-9, atol=1e-12)
    if method == "aesam":
        assert minimizer.sharp_step_count == reference.sharp
