"""Training modes: what of a pretrained network learns, and what stays as it is."""

from __future__ import annotations

from types import MethodType

import torch
from torch import nn

from steppe.config import ModelConfig
from steppe.errors import ConfigError
from steppe.models.blocks import count_blocks, partitions


def apply_mode(model: nn.Module, config: ModelConfig) -> None:
    """Freeze what the mode does not train: nothing (scratch, finetune), all but the head, or all but the last blocks.

    With the last blocks train the norm after them and the head. A frozen part is a fixed function: it runs in
    evaluation mode during training too, so its BatchNorm neither uses nor updates batch statistics and its dropout
    rests.

    Raises:
        ConfigError: the model has fewer blocks than asked for, or its parts have no names.
    """
    if config.mode in (None, "scratch", "finetune", "soup"):
        return
    learning = head_parameters(model)
    if config.mode == "last_n_blocks":
        assert config.last_blocks is not None
        learning |= _last_blocks(model, config.last_blocks)
    freeze_all_but(model, learning)


def freeze_all_but(model: nn.Module, learning: set[str]) -> None:
    """Freeze every parameter but the named ones; modules of which nothing learns stay in evaluation mode for good."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in learning)
    _hold_still(model)


def head_parameters(model: nn.Module) -> set[str]:
    """Names of the parameters of the classifier: the layer, or layers, that give the logits."""
    own = {id(parameter) for head in _heads(model) for parameter in head.parameters()}
    names = {name for name, parameter in model.named_parameters() if id(parameter) in own}
    if not names:
        raise ConfigError(
            f"the head of {type(model).__name__} cannot be told from the rest", where="model.mode", fix="use finetune"
        )
    return names


@torch.no_grad()
def zero_head(model: nn.Module) -> None:
    """Let a fresh head on a trained network begin at zero, as ViT's authors do (arXiv:2010.11929, section 3.2).

    All classes are equally likely then. Random weights say otherwise, and loudly where features are large: timm's
    EfficientNet-Lite0 begins CIFAR-100 at a loss of 5 to 7 instead of log 100 = 4.6. Hundreds of steps go into
    unlearning that, and its gradients distort the features (arXiv:2202.10054). Of several layers the last suffices.
    """
    for head in _heads(model):
        layers = [module for module in head.modules() if any(True for _ in module.parameters(recurse=False))]
        for parameter in layers[-1].parameters(recurse=False):
            parameter.zero_()


def _heads(model: nn.Module) -> tuple[nn.Module, ...]:
    found = model.get_classifier() if hasattr(model, "get_classifier") else ()  # type: ignore[operator]
    return tuple(found) if isinstance(found, tuple | list) else (found,)


def _last_blocks(model: nn.Module, count: int) -> set[str]:
    total = count_blocks(model)
    if count > total:
        raise ConfigError(f"the model has {total} blocks, not {count}", where="model.last_blocks")
    parts = partitions(model)["blocks"]
    wanted = ["norm", "neck", *(f"block{index}" for index in range(total - count + 1, total + 1))]
    return {name for part in wanted for name in parts.get(part, ())}


def _hold_still(model: nn.Module) -> None:
    """Put every module that holds parameters, none of which learns, into evaluation mode for good."""
    for module in model.modules():
        own = list(module.parameters())
        if own and not any(parameter.requires_grad for parameter in own):
            for inner in module.modules():
                inner.train = MethodType(_stay, inner)  # type: ignore[method-assign]
                inner.training = False


def _stay(module: nn.Module, mode: bool = True) -> nn.Module:
    """Stand in for `train` on a frozen module: stay in evaluation mode, whoever asks."""
    return module
