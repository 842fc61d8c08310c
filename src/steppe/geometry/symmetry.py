"""Rescalings of the weights that leave a network's function alone, and what sharpness makes of them.

- A ReLU network: relu(τ z) = τ relu(z) for τ > 0, so what goes into a hidden neuron (weights *and* bias) may be
  multiplied by τ and what leaves it divided by it. Weights alone may be scaled only where there are no biases.
- Attention: logits are q·k, so a channel of the queries may be multiplied by c and that of the keys divided by it.
- BatchNorm: what feeds it may be multiplied by c > 0, up to its ε; in evaluation mode its statistics go along.

SAM's ball, ‖ε‖ ≤ ρ, does not follow such a rescaling, so SAM's sharpness changes although the function does not. ASAM's
ball, ‖ε/|w|‖ ≤ ρ (Kwon et al. 2021), follows where the scaling acts on all that is rescaled and η is 0: preset
`weights` for networks without biases, `all` for those with. Gomez Donoso, Ghenassia & Vannier ("ASAM for
Scale-Invariant Learning of Deep Neural Networks", section I) show this in their figures 2 to 4, which
`measure_symmetry` gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from steppe.config import derive_seed
from steppe.errors import MeasureError
from steppe.measuring import as_found
from steppe.minimizers.parameters import build_blocks
from steppe.minimizers.perturbation import Perturbation

LOW, HIGH = 0.5, 1.5

CASES = {
    "weights": (False, False),
    "weights_and_biases": (True, True),
    "weights_only_despite_biases": (True, False),
}
"""Name -> whether the network has biases, and whether they are scaled too."""


def hidden_widths(network: nn.Sequential) -> list[int]:
    """The number of neurons in each hidden layer of a chain of linear layers and ReLUs.

    Raises:
        MeasureError: something else is in the chain, so that rescaling would change its function.
    """
    return [layer.out_features for layer in _chain(network)[:-1]]


@torch.no_grad()
def rescale_neurons(network: nn.Sequential, factors: Sequence[Tensor], *, biases: bool) -> None:
    """Multiply what goes into each hidden neuron by its factor and divide what leaves it, in place.

    Args:
        network: linear layers and ReLUs in a chain.
        factors: for each hidden layer, one positive number a neuron.
        biases: scale the biases of hidden neurons with their weights. Without, a network that has biases computes
            another function afterwards.
    """
    layers = _chain(network)
    if [tuple(f.shape) for f in factors] != [(layer.out_features,) for layer in layers[:-1]]:
        raise MeasureError("there has to be one factor for each hidden neuron")
    if any(not bool((f > 0).all()) for f in factors):
        raise MeasureError("factors have to be positive: ReLU does not commute with others")
    for layer, following, factor in zip(layers[:-1], layers[1:], factors, strict=True):
        layer.weight.mul_(factor[:, None])
        if biases and layer.bias is not None:
            layer.bias.mul_(factor)
        following.weight.div_(factor)


@torch.no_grad()
def rescale_query_key(attention: Any, factors: Tensor) -> None:
    """Multiply each channel of the queries by its factor and divide that of the keys by it, in place.

    Args:
        attention: timm's attention, with queries, keys and values in one layer and no norm on them.
        factors: (heads · channels,), none of them 0.
    """
    if not isinstance(getattr(attention, "qkv", None), nn.Linear):
        raise MeasureError(f"a {type(attention).__name__} has no joint layer of queries and keys")
    if not all(isinstance(getattr(attention, norm, nn.Identity()), nn.Identity) for norm in ("q_norm", "k_norm")):
        raise MeasureError("queries and keys are normalised here: rescaling them does nothing")
    width = attention.qkv.out_features // 3
    for tensor in (attention.qkv.weight, attention.qkv.bias):
        if tensor is not None:
            column = factors.view(-1, *[1] * (tensor.ndim - 1))
            tensor[:width].mul_(column)
            tensor[width : 2 * width].div_(column)


@torch.no_grad()
def rescale_before_batchnorm(model: nn.Module, images: Tensor, draw: Callable[[int], Tensor]) -> int:
    """Multiply each channel that feeds a BatchNorm by a factor, in place; its running statistics go along.

    Args:
        model: a network with convolutions or linear layers that feed BatchNorms.
        images: a batch, to see which layer feeds which norm.
        draw: gives so many positive factors.

    Returns:
        How many layers were rescaled.
    """
    pairs = _feeding_pairs(model, images)
    if not pairs:
        raise MeasureError(f"no layer of this {type(model).__name__} feeds a BatchNorm")
    for layer, norm in pairs:
        factor = draw(layer.weight.shape[0]).to(layer.weight)
        layer.weight.mul_(factor.view(-1, *[1] * (layer.weight.ndim - 1)))
        if layer.bias is not None:
            layer.bias.mul_(factor)
        if norm.running_mean is not None:
            norm.running_mean.mul_(factor)
            norm.running_var.mul_(factor.square())
    return len(pairs)


def sharp_loss(
    model: nn.Module, loss: Callable[[Tensor], Tensor], inputs: Tensor, *, rho: float, scaling: str, eta: float = 0.0
) -> tuple[float, float]:
    """The loss at the weights and at SAM's or ASAM's first-order worst point around them.

    Args:
        model: computes; its weights and gradients are left alone.
        loss: of the model's answer.
        inputs: what it answers to.
        rho: radius.
        scaling: "none" (SAM), "weights", "all" or "layer" (ASAM), see `steppe.minimizers.perturbation`.
        eta: added to ASAM's scaling.
    """
    base = torch.optim.SGD(model.parameters(), lr=0.0)
    parameters, blocks = build_blocks(base, model, "all", scaling)
    plain = loss(model(inputs))
    gradients = torch.autograd.grad(plain, parameters, allow_unused=True)
    moved: list[Tensor | None] = [p.detach().clone() for p in parameters]
    groups = [{"rho": rho, "eta": eta}]
    with torch.no_grad():
        Perturbation()(blocks, groups, [p.detach() for p in parameters], gradients, moved, scaling=scaling)
        names = {id(p): name for name, p in model.named_parameters()}
        weights = {names[id(p)]: m for p, m in zip(parameters, moved, strict=True) if m is not None}
        sharp = loss(functional_call(model, weights, (inputs,)))
    return plain.item(), sharp.item()


def measure_symmetry(
    *, seed: int = 0, steps: int = 50, points: int = 5, rho: float = 0.05, asam_rho: float = 0.5, eta: float = 0.01
) -> dict[str, Any]:
    """The data of figures 2 to 4 of source 004: outputs, SAM loss and ASAM losses through a row of random rescalings.

    The network is the source's (table II), freshly drawn, on its kind of data (two classes in the plane), in double
    precision. Each rescaling is applied to the result of the one before, with factors uniform in [0.5, 1.5]. Three
    cases: `weights` (no biases, weights scaled), `weights_and_biases`, and `weights_only_despite_biases`, which does
    not leave the outputs alone.

    Args:
        seed: of the network, the data and the factors.
        steps: how many rescalings.
        points: how many inputs the outputs are given for.
        rho: SAM's radius.
        asam_rho: ASAM's radius.
        eta: ASAM's η as its authors use it; η = 0 is given besides.
    """
    radii = 0 < rho < math.inf and 0 < asam_rho < math.inf and 0 <= eta < math.inf  # false for NaN too
    if steps < 1 or points < 1 or not radii:
        raise MeasureError("steps and points have to be at least 1, rho and asam_rho above 0, eta not below 0")
    settings: dict[str, Any] = {"steps": steps, "points": points, "rho": rho, "asam_rho": asam_rho, "eta": eta}

    def follow(bias: bool, scaled: bool) -> dict[str, Any]:
        network = seed_network(bias=bias, seed=seed)
        generator = torch.Generator().manual_seed(derive_seed(seed, "symmetry", "data"))
        inputs = torch.randn(200, 2, generator=generator, dtype=torch.float64)
        labels = (inputs.prod(1) > 0).long()
        return follow_rescalings(network, inputs, labels, generator, biases=scaled, **settings)

    found = {name: follow(has, scaled) for name, (has, scaled) in CASES.items()}
    return {**found, "settings": {"seed": seed, **settings, "low": LOW, "high": HIGH}}


def seed_network(*, bias: bool, seed: int = 0) -> nn.Sequential:
    """The network of table II: 2-10-10-10-10-2, the first two layers without a ReLU between, in double precision."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "symmetry", "weights"))
        first: list[nn.Module] = [nn.Linear(2, 10, bias=bias), nn.Linear(10, 10, bias=bias), nn.ReLU()]
        for _ in range(2):
            first += [nn.Linear(10, 10, bias=bias), nn.ReLU()]
        return nn.Sequential(*first, nn.Linear(10, 2, bias=bias)).double()


def follow_rescalings(
    network: nn.Sequential,
    inputs: Tensor,
    labels: Tensor,
    generator: torch.Generator,
    *,
    biases: bool,
    steps: int,
    points: int,
    rho: float,
    asam_rho: float,
    eta: float,
) -> dict[str, Any]:
    """Rescale a network again and again, and give its outputs, its loss and its sharp losses along the way.

    Args:
        network: linear layers and ReLUs in a chain, in double precision; it is changed.
        inputs: what it answers to.
        labels: the right answers.
        generator: of the factors, uniform in [0.5, 1.5]; on the CPU.
        biases: scale them too, where there are some.
        steps: how many rescalings.
        points: how many inputs the outputs are given for.
        rho: SAM's radius.
        asam_rho: ASAM's radius.
        eta: ASAM's η; η = 0 is given besides.
    """

    def loss(answer: Tensor) -> Tensor:
        return F.cross_entropy(answer, labels)

    kinds = {
        "sam": (rho, "none", 0.0),
        "asam_weights": (asam_rho, "weights", 0.0),
        "asam_weights_eta": (asam_rho, "weights", eta),
        "asam_all": (asam_rho, "all", 0.0),
        "asam_all_eta": (asam_rho, "all", eta),
        "asam_layer": (asam_rho, "layer", 0.0),
    }
    outputs: list[list[list[float]]] = []
    plain: list[float] = []
    losses: dict[str, list[float]] = {kind: [] for kind in kinds}
    for step in range(steps + 1):
        if step:
            draws = [torch.rand(n, generator=generator, dtype=torch.float64) for n in hidden_widths(network)]
            factors = [(LOW + (HIGH - LOW) * draw).to(inputs.device) for draw in draws]
            rescale_neurons(network, factors, biases=biases)
        with torch.no_grad():
            outputs.append(network(inputs[:points]).tolist())
        for kind, (radius, scaling, offset) in kinds.items():
            clean, sharp = sharp_loss(network, loss, inputs, rho=radius, scaling=scaling, eta=offset)
            losses[kind].append(sharp)
        plain.append(clean)
    moved = torch.tensor(outputs, dtype=torch.float64)
    changes = {
        "outputs": (moved - moved[0]).abs().max().item(),
        "loss": max(abs(value - plain[0]) for value in plain),
        **{kind: max(abs(value - values[0]) for value in values) for kind, values in losses.items()},
    }
    return {
        "biases": any(layer.bias is not None for layer in _chain(network)),
        "outputs": outputs,
        "loss": plain,
        "sharp_loss": losses,
        "largest_change": changes,
        "log10_change": {name: math.log10(change) if change else None for name, change in changes.items()},
    }


def _chain(network: nn.Sequential) -> list[nn.Linear]:
    layers = [module for module in network if not isinstance(module, nn.ReLU | nn.Identity | nn.Flatten)]
    if len(layers) < 2 or not all(isinstance(layer, nn.Linear) for layer in layers):
        raise MeasureError("neurons are rescaled in chains of at least two linear layers and ReLUs alone")
    return [layer for layer in layers if isinstance(layer, nn.Linear)]


@torch.no_grad()
def _feeding_pairs(model: nn.Module, images: Tensor) -> list[tuple[Any, Any]]:
    """Run a batch and note which layer's very output each BatchNorm takes."""
    made: dict[int, tuple[nn.Module, Tensor]] = {}
    pairs: list[tuple[Any, Any]] = []

    def note(module: nn.Module, _: Any, output: Tensor) -> None:
        made[id(output)] = module, output  # holding the tensor keeps its identity its own

    def look(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if id(inputs[0]) in made:
            pairs.append((made[id(inputs[0])][0], norm))

    hooks = []
    for module in model.modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear):
            hooks.append(module.register_forward_hook(note))
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            hooks.append(module.register_forward_pre_hook(look))
    try:
        with as_found(model):
            model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return pairs
