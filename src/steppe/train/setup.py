"""What a run is made of: its model and its minimizer, from the configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from timm.optim.lamb import Lamb
from torch import nn

from steppe import minimizers, models
from steppe.config import RunConfig, derive_seed
from steppe.data import Dataset
from steppe.errors import ConfigError
from steppe.train.contrastive import check_classifier
from steppe.train.distributed import shard_like

OPTIMIZERS: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "lamb": Lamb,
}


def build_model(config: RunConfig, dataset: Dataset) -> nn.Module:
    """Make the run's model for its data, with the weights its seed gives."""
    torch.manual_seed(derive_seed(config.seed, "weights"))
    model = models.build(
        config.model, image_size=dataset.image_size, channels=dataset.channels, classes=len(dataset.classes)
    )
    if config.objective.name == "contrastive":
        check_classifier(model, config)
    return model


def build_minimizer(
    config: RunConfig, model: nn.Module, share: Callable[[], float] = lambda: 0.0
) -> minimizers.Minimizer:
    """Make the run's optimizer, wrapped in its minimizer.

    Biases, norms and embeddings of rank one decay only where `decay_norms` says so.

    Args:
        config: the run.
        model: the network to train.
        share: tells the share of the budget spent so far, for `sharp_last` and AE-SAM's threshold.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trained if p.ndim > 1]},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if config.optimizer.decay_norms:
        groups = [{"params": trained}]
    options: dict[str, Any] = {"lr": config.optimizer.lr, "weight_decay": config.optimizer.weight_decay}
    if config.optimizer.momentum is not None:
        options["momentum"] = config.optimizer.momentum
    if config.optimizer.name in ("sgd", "adam", "adamw"):
        options["fused"] = True
    if config.optimizer.name == "lamb":
        options["max_grad_norm"] = None  # clipping is ours, on the final gradient: clip_norm
    base = OPTIMIZERS[config.optimizer.name]([group for group in groups if group["params"]], **options)
    engine_has = {"name", "sharp_every", "sharp_last", "rho_final", "per_rank"}
    own = config.minimizer.model_dump(exclude=engine_has, exclude_none=True)
    if config.minimizer.per_rank and hasattr(model, "no_sync"):  # in one process the batch is the rank's share
        own["m"] = "rank"
    if config.minimizer.sharp_every:
        own["schedule"] = minimizers.Every(config.minimizer.sharp_every)
    if config.minimizer.sharp_last:
        last = config.minimizer.sharp_last
        own["schedule"] = lambda step: share() >= 1 - last
    if config.minimizer.name == "gsam":
        own["lr_max"] = config.optimizer.lr
    try:
        minimizer = minimizers.create(config.minimizer.name, base, model, clip_norm=config.clip_norm, **own)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"this minimizer cannot be made: {error}", where="minimizer") from None
    if isinstance(minimizer.schedule, minimizers.GradientNorm):
        minimizer.schedule.share = share
    return minimizer


def match_layout(minimizer: minimizers.Minimizer) -> None:
    """Lay a loaded state out as its parameters are (channels-last, say): fused optimizers insist on it."""
    for parameter, state in minimizer.state.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                state[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(shard_like(value, parameter))
