"""Supervised contrastive learning in two stages: an embedding in which classes lie together, then a classifier on it.

Khosla, Teterwak, Wang, Sarna, Tian, Isola, Maschinot, Liu, Krishnan, "Supervised Contrastive Learning", NeurIPS 2020
(arXiv:2004.11362); with SAM as in appendix C of Chen, Hsieh, Gong, ICLR 2022 (arXiv:2106.01548).

In the first stage a projection, Linear–ReLU–Linear as in the paper, sits where the classifier will be: the hidden layer
is as wide as the features (2048 for the paper's ResNet-50), the output has 128 numbers. In the second the classifier is
put back, everything else is frozen in evaluation mode, and the projection is gone: what remains is an ordinary model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steppe.config import MinimizerConfig, ObjectiveConfig, OptimizerConfig, RunConfig, derive_seed
from steppe.data import Dataset, Split, in_order
from steppe.errors import ConfigError
from steppe.models import freeze_all_but


def contrastive_losses(features: Tensor, labels: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The loss of each anchor, and whether it has a positive at all (its loss is 0 where it has none).

    With z the features on the unit sphere, P(i) the other examples of i's label and A(i) all others (equation 2):

        L_i = −1/|P(i)| Σ_{p∈P(i)} [ z_i·z_p/τ − log Σ_{a∈A(i)} exp(z_i·z_a/τ) ]

    Args:
        features: (N, width), of any length.
        labels: (N,).
        temperature: τ.
    """
    with torch.autocast(features.device.type, enabled=False):
        points = F.normalize(features if features.dtype == torch.float64 else features.float(), dim=1)
        products = points @ points.T / temperature
        others = ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        positive = (labels[:, None] == labels[None, :]) & others
        count = positive.sum(1)
        log_share = products - products.masked_fill(~others, -torch.inf).logsumexp(1, keepdim=True)
        return -log_share.masked_fill(~positive, 0.0).sum(1) / count.clamp(min=1), count > 0


@dataclass(frozen=True)
class Stage:
    """A part of a run: what its metrics are marked with, its configuration, and where in the budget it ends."""

    name: str | None
    config: RunConfig
    end: float


def plan_stages(config: RunConfig) -> tuple[Stage, ...]:
    """Divide a run: a contrastive one into `pretrain` and `head`, any other not at all.

    The head is trained by an optimizer of its own without a perturbation, on the labels. A budget of epochs is divided
    between two epochs, so that no epoch belongs to both stages.
    """
    own = config.objective
    if own.name != "contrastive":
        return (Stage(None, config, 1.0),)
    assert own.pretrain is not None
    optimizer = {"name": own.head_optimizer, "lr": own.head_lr, "weight_decay": own.head_weight_decay}
    head = config.model_copy(
        update={
            "objective": ObjectiveConfig(),
            "minimizer": MinimizerConfig.model_validate({}),
            "optimizer": OptimizerConfig.model_validate(optimizer),
        }
    )
    end, epochs = own.pretrain, config.budget.epochs
    if epochs is not None:
        end = min(max(1, round(end * epochs)), epochs - 1) / epochs
    return Stage("pretrain", config, end), Stage("head", head, 1.0)


def check_classifier(model: nn.Module, config: RunConfig) -> nn.Linear:
    """Give the model's classifier.

    Raises:
        ConfigError: it is not one linear layer.
    """
    classifier = model.get_classifier()  # type: ignore[operator]
    if not isinstance(classifier, nn.Linear):
        what = f"the classifier of {config.model.name!r} is not one linear layer, whose place a projection could take"
        raise ConfigError(what, where="model.name", fix="choose another model, or another objective")
    return classifier


def put_projection(model: nn.Module, config: RunConfig) -> nn.Linear:
    """Put a fresh projection where the classifier is; returns the classifier."""
    classifier = check_classifier(model, config)
    assert config.objective.projection is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(config.seed, "projection"))
        width = classifier.in_features
        projection = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, config.objective.projection))
    _replace(model, classifier, projection.to(classifier.weight.device))
    return classifier


def put_classifier(model: nn.Module, classifier: nn.Linear) -> None:
    """Put the classifier back where the projection is, and freeze everything else."""
    place = _replace(model, model.get_classifier(), classifier)  # type: ignore[operator]
    freeze_all_but(model, {f"{place}.{name}" for name, _ in classifier.named_parameters()})


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> str:
    place = next(name for name, module in model.named_modules() if module is old)
    model.set_submodule(place, new)
    return place


@torch.no_grad()
def measure_contrast(
    model: nn.Module, split: Split, dataset: Dataset, *, device: torch.device, batch_size: int, temperature: float
) -> float:
    """The mean contrastive loss on a split, one view of each image, in evaluation mode.

    Args:
        model: with its projection, on `device`.
        split: the images to measure on.
        dataset: whose statistics normalise them.
        device: where to compute.
        batch_size: images that are compared with each other.
        temperature: τ.
    """
    training = model.training
    model.eval()
    total, count = torch.zeros((), dtype=torch.float64), 0
    try:
        for images, labels in in_order(split, dataset, batch_size=batch_size, device=device):
            losses, paired = contrastive_losses(model(images), labels, temperature)
            total += losses.double().sum().cpu()
            count += int(paired.sum())
    finally:
        model.train(training)
    return total.item() / max(1, count)
