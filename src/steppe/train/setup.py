"""What a run is made of: its model and its minimizer, from the configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from timm.optim.lamb import Lamb
from torch import nn

from steppe import minimizers, models
from steppe.config import OptimizerConfig, RunConfig, derive_seed
from steppe.data import Dataset, Normalise
from steppe.errors import ConfigError
from steppe.train.contrastive import check_classifier
from steppe.train.distributed import shard_like

OPTIMIZERS: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "lamb": Lamb,
    "muon": minimizers.Muon,
}
SEEN = 5000
"""Training images that a network which begins with their statistics sees."""


def build_model(config: RunConfig, dataset: Dataset) -> nn.Module:
    """Make the run's model for its data, with the weights its seed gives."""
    torch.manual_seed(derive_seed(config.seed, "weights"))
    model = models.build(
        config.model, image_size=dataset.image_size, channels=dataset.channels, classes=len(dataset.classes)
    )
    if config.objective.name == "contrastive":
        check_classifier(model, config)
    if isinstance(model, models.SpeedNet):
        images = dataset.train.pick(slice(0, SEEN))
        model.see(Normalise(dataset, torch.device("cpu"))(images))
    return model


def build_minimizer(
    config: RunConfig, model: nn.Module, share: Callable[[], float] = lambda: 0.0
) -> minimizers.Minimizer:
    """Make the run's optimizer, wrapped in its minimizer.

    Args:
        config: the run.
        model: the network to train.
        share: tells the share of the budget spent so far, for `sharp_last` and AE-SAM's threshold.
    """
    options: dict[str, Any] = {"lr": config.optimizer.lr, "weight_decay": config.optimizer.weight_decay}
    if config.optimizer.momentum is not None:
        options["momentum"] = config.optimizer.momentum
    if config.optimizer.nesterov:
        options["nesterov"] = True
    if config.optimizer.name in ("sgd", "adam", "adamw"):
        options["fused"] = True
    if config.optimizer.name == "lamb":
        options["max_grad_norm"] = None  # clipping is ours, on the final gradient: clip_norm
    if config.optimizer.name == "muon":
        own = config.optimizer
        options |= {"rest": own.rest, "iterations": own.iterations, "hold_norm": own.hold_norm}
    base = OPTIMIZERS[config.optimizer.name](parameter_groups(config.optimizer, model), **options)
    engine_has = {"name", "sharp_every", "sharp_last", "rho_final", "per_rank"}
    method = config.minimizer.model_dump(exclude=engine_has, exclude_none=True)
    if config.minimizer.per_rank and hasattr(model, "no_sync"):  # in one process the batch is the rank's share
        method["m"] = "rank"
    if config.minimizer.sharp_every:
        method["schedule"] = minimizers.Every(config.minimizer.sharp_every)
    if config.minimizer.sharp_last:
        last = config.minimizer.sharp_last
        method["schedule"] = lambda step: share() >= 1 - last
    try:
        minimizer = minimizers.create(config.minimizer.name, base, model, clip_norm=config.clip_norm, **method)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"this minimizer cannot be made: {error}", where="minimizer") from None
    if isinstance(minimizer.schedule, minimizers.GradientNorm):
        minimizer.schedule.share = share
    return minimizer


def parameter_groups(config: OptimizerConfig, model: nn.Module) -> list[dict[str, Any]]:
    """Divide what learns by its learning rate, by whether it decays, and for Muon by whether it is orthogonalised.

    Biases, norms and embeddings of rank one decay only where `decay_norms` says so. The highest rate comes first; of
    Muon the orthogonalised groups come first.

    Args:
        config: of the base optimizer.
        model: the network to train.

    Raises:
        ConfigError: rates are to differ between parts of the network that have no names.
    """
    assert config.lr is not None
    network = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    factors = _rate_factors(config, network)
    hidden = _hidden_matrices(network) if config.name == "muon" else set()
    divided: dict[tuple[bool, float, bool], list[nn.Parameter]] = {}
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            rate = config.lr if name in hidden else config.rest_lr or config.lr
            place = name in hidden, rate * factors.get(name, 1.0), config.decay_norms or parameter.ndim > 1
            divided.setdefault(place, []).append(parameter)
    return [
        {
            "params": divided[orthogonal, rate, decays],
            "lr": rate,
            **({} if decays else {"weight_decay": 0.0}),
            **({"orthogonal": orthogonal} if config.name == "muon" else {}),
        }
        for orthogonal, rate, decays in sorted(divided, reverse=True)
    ]


def _hidden_matrices(network: nn.Module) -> set[str]:
    """Name the weights of linear layers and of convolutions over all channels, but for the head's."""
    found = set()
    for place, module in network.named_modules():
        if isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1):
            found.add(f"{place}.weight" if place else "weight")
    return found - models.head_parameters(network)


def _rate_factors(config: OptimizerConfig, network: nn.Module) -> dict[str, float]:
    """Give the learning rate of each parameter as a multiple of `lr`; 1 for those that are not named."""
    key = "layer_decay"
    factors: dict[str, float] = {}
    try:
        if config.layer_decay is not None:
            factors = {name: config.layer_decay**depth for name, depth in models.count_depths(network).items()}
        if config.head_lr_factor is not None:
            key = "head_lr_factor"
            factors |= dict.fromkeys(models.head_parameters(network), config.head_lr_factor)
    except ConfigError as error:
        fix = "leave it out" if config.layer_decay is None else f"leave it out, or {error.fix}"
        raise ConfigError(error.what, where=f"optimizer.{key}", fix=fix) from None
    return factors


def match_layout(minimizer: minimizers.Minimizer) -> None:
    """Lay a loaded state out as its parameters are (channels-last, say): fused optimizers insist on it."""
    for parameter, state in minimizer.state.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                state[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(shard_like(value, parameter))
