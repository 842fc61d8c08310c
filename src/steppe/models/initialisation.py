"""Initial weights other than those of the family: by scheme, and by the deviation of position embeddings."""

from __future__ import annotations

from timm.models._manipulate import named_apply
from timm.models.mlp_mixer import MlpMixer
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer, init_weights_vit_jax, init_weights_vit_timm
from torch import nn

from steppe.config import ModelConfig
from steppe.errors import ConfigError

_FAMILIES = (VisionTransformer, SwinTransformer, MlpMixer)


def initialise(model: nn.Module, config: ModelConfig) -> None:
    """Draw the weights anew as the configuration says; without `init` and `pos_embed_std` the model stays as it is.

    Raises:
        ConfigError: the key does not apply to this model.
    """
    if config.init is not None:
        if not isinstance(model, _FAMILIES):
            raise _does_not_apply("init", config.name)
        _apply_scheme(model, config.init)
    if config.pos_embed_std is not None:
        positions = getattr(model, "pos_embed", None)
        if not isinstance(positions, nn.Parameter):
            raise _does_not_apply("pos_embed_std", config.name)
        nn.init.normal_(positions, std=config.pos_embed_std)


def _apply_scheme(model: nn.Module, scheme: str) -> None:
    if scheme == "jax":
        named_apply(init_weights_vit_jax, model)
    elif scheme == "timm":
        named_apply(init_weights_vit_timm, model)
    else:
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                module.reset_parameters()


def _does_not_apply(key: str, name: str) -> ConfigError:
    return ConfigError(f"{key} means nothing to {name!r}", where=f"model.{key}", fix="leave it out")
