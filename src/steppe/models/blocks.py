"""What the parts of a network are called, so that geometry and freezing can speak of "attention" or "block 3".

`partitions` divides the parameters in up to three ways, each of which covers every parameter exactly once:

- `roles`: embedding, attention (token mixing in a Mixer), mlp (channel mixing), norm, head…
- `stages`: stem or embedding, stage1, stage2…, norm, head; for networks that have stages
- `blocks`: stem or embedding, block1, block2…, norm, head; in the order in which an image passes them

The norm before attention or an MLP belongs to what follows it, as in table 4 of Chen et al. 2022, so `norm` is the
norm after the last block only. Merging or striding between two stages belongs to the first block after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from timm.models.efficientnet import EfficientNet
from timm.models.mlp_mixer import MlpMixer
from timm.models.mobilenetv3 import MobileNetV3
from timm.models.resnet import ResNet
from timm.models.resnetv2 import ResNetV2
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from timm.models.tiny_vit import TinyVit
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from steppe.errors import ConfigError
from steppe.models.mlp import Perceptron
from steppe.models.resnet import SmallResNet
from steppe.models.speed import SpeedNet
from steppe.models.wide import WideResNet


@dataclass(frozen=True)
class Family:
    """How one family names its parameters; patterns are matched at the beginning of a name."""

    kinds: tuple[type[nn.Module], ...]
    block: str
    """Matches what lies in a block, with the groups `block` and, where there are stages, `stage`."""
    outside: dict[str, str]
    """Part -> pattern of what lies in no block."""
    inside: dict[str, str]
    """Role -> pattern of what lies in a block; empty where a block has no roles."""


FAMILIES: dict[str, Family] = {
    "ViT": Family(
        (VisionTransformer,),
        r"blocks\.(?P<block>\d+)\.",
        {
            "stem": r"patch_embed\.backbone\.",
            "embedding": r"(patch_embed\.|cls_token|reg_token|dist_token|pos_embed|norm_pre\.)",
            "norm": r"(norm|fc_norm)\.",
            "neck": r"attn_pool\.",
            "head": r"head(_dist)?\.",
        },
        {
            "attention": r"blocks\.\d+\.(norm1|attn|ls1)\.",
            "mlp": r"blocks\.\d+\.(norm2|mlp|ls2)\.",
        },
    ),
    "Swin": Family(
        (SwinTransformer, SwinTransformerV2),
        r"layers\.(?P<stage>\d+)\.(blocks\.(?P<block>\d+)|downsample)\.",
        {"embedding": r"(patch_embed\.|absolute_pos_embed)", "norm": r"norm\.", "head": r"head\."},
        {
            "attention": r"layers\.\d+\.blocks\.\d+\.(norm1|attn)\.",
            "mlp": r"layers\.\d+\.blocks\.\d+\.(norm2|mlp)\.",
            "downsample": r"layers\.\d+\.downsample\.",
        },
    ),
    "MLP-Mixer": Family(
        (MlpMixer,),
        r"blocks\.(?P<block>\d+)\.",
        {"embedding": r"stem\.", "norm": r"norm\.", "head": r"head\."},
        {
            "attention": r"blocks\.\d+\.(norm1|mlp_tokens)\.",
            "mlp": r"blocks\.\d+\.(norm2|mlp_channels)\.",
        },
    ),
    "TinyViT": Family(
        (TinyVit,),
        r"stages\.(?P<stage>\d+)\.(blocks\.(?P<block>\d+)|downsample)\.",
        {"embedding": r"patch_embed\.", "norm": r"head\.norm\.", "head": r"head\.fc\."},
        {
            "attention": r"stages\.\d+\.blocks\.\d+\.(attn|local_conv)\.",
            "mlp": r"stages\.\d+\.blocks\.\d+\.mlp\.",
            "convolution": r"stages\.\d+\.blocks\.\d+\.(conv\d|act\d)\.",
            "downsample": r"stages\.\d+\.downsample\.",
        },
    ),
    "ResNet": Family(
        (ResNet,),
        r"layer(?P<stage>\d+)\.(?P<block>\d+)\.",
        {"stem": r"(conv1|bn1|act1|maxpool)\.", "head": r"fc\."},
        {},
    ),
    "ResNetV2": Family(
        (ResNetV2,),
        r"stages\.(?P<stage>\d+)\.blocks\.(?P<block>\d+)\.",
        {"stem": r"stem\.", "norm": r"norm\.", "head": r"head\."},
        {},
    ),
    "small and wide ResNet": Family(
        (SmallResNet, WideResNet),
        r"stages\.(?P<stage>\d+)\.(?P<block>\d+)\.",
        {"stem": r"(conv1|bn1|act1)\.", "norm": r"(norm|act)\.", "head": r"head\."},
        {},
    ),
    "SpeedNet": Family(
        (SpeedNet,),
        r"groups\.(?P<block>\d+)\.",
        {"stem": r"whiten\.", "head": r"head\."},
        {},
    ),
    "perceptron": Family(
        (Perceptron,),
        r"layers\.(?P<block>\d+)\.",
        {"stem": r"stem\.", "head": r"head\."},
        {},
    ),
    "EfficientNet and MobileNet": Family(
        (EfficientNet, MobileNetV3),
        r"blocks\.(?P<stage>\d+)\.(?P<block>\d+)\.",
        {"stem": r"(conv_stem|bn1)\.", "neck": r"(conv_head|bn2|norm_head|act2)\.", "head": r"classifier\."},
        {},
    ),
}
"""The families whose parts have names."""

_ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Hardswish, nn.ELU, nn.Mish, nn.Softplus)


def partitions(model: nn.Module) -> dict[str, dict[str, list[str]]]:
    """Divide the parameters in every way the family knows: way -> part -> names of parameters.

    Raises:
        ConfigError: the family is not one whose parts have names.
    """
    family = _family(model)
    names = [name for name, _ in model.named_parameters()]
    found: dict[str, dict[str, list[str]]] = {}
    if family.inside:
        found["roles"] = _group((name, _role(family, name)) for name in names)
    places = list(_places(family, names))
    if any(stage is not None for _, _, stage, _ in places):
        found["stages"] = _group((name, outside or f"stage{stage}") for name, outside, stage, _ in places)
    found["blocks"] = _group((name, outside or f"block{block}") for name, outside, _, block in places)
    return found


def blocks(model: nn.Module) -> dict[str, list[str]]:
    """Give every part a name: part -> names of its parameters, all of the ways of `partitions` together.

    A part that two ways share, such as `head`, holds the same parameters in both.
    """
    merged: dict[str, list[str]] = {}
    for way in partitions(model).values():
        merged.update(way)
    return merged


def count_blocks(model: nn.Module) -> int:
    """The number of blocks an image passes."""
    return sum(re.fullmatch(r"block\d+", part) is not None for part in partitions(model)["blocks"])


def count_depths(model: nn.Module) -> dict[str, int]:
    """Count the layers from the head down to each parameter: 0 in the head, 1 in the last block, most in the stem.

    A norm or neck after the last block belongs to that block, as in timm.
    """
    first = count_blocks(model)
    depths = {"head": 0, "norm": 1, "neck": 1, "stem": first + 1, "embedding": first + 1}
    depths |= {f"block{number}": first + 1 - number for number in range(1, first + 1)}
    return {name: depths[part] for part, names in partitions(model)["blocks"].items() for name in names}


def activations(model: nn.Module) -> dict[str, list[str]]:
    """Name the modules whose output is a post-activation (after GELU, ReLU…): part -> names of modules.

    The gates of squeeze-and-excitation are left out: they scale channels and are no neurons of the block. Of a model
    whose parts have no names here, all stand under `whole`.
    """
    names = [
        name
        for name, module in model.named_modules()
        if (isinstance(module, _ACTIVATIONS) or type(module).__module__ == "timm.layers.activations")
        and ".se." not in name
    ]
    if not any(isinstance(model, family.kinds) for family in FAMILIES.values()):
        return {"whole": names} if names else {}
    places = _places(_family(model), [f"{name}." for name in names])
    return _group((name.removesuffix("."), outside or f"block{block}") for name, outside, _, block in places)


def _family(model: nn.Module) -> Family:
    for family in FAMILIES.values():
        if isinstance(model, family.kinds):
            return family
    raise ConfigError(
        f"the parts of a {type(model).__name__} have no names here",
        where="model.name",
        fix=f"choose a model of one of these families: {', '.join(FAMILIES)}",
    )


def _places(family: Family, names: Iterable[str]) -> Iterator[tuple[str, str | None, int | None, int | None]]:
    """Yield (name, part outside the blocks or None, stage, block), stages and blocks counted from 1."""
    names = list(names)
    inside: dict[str, tuple[int, int]] = {}
    for name in names:
        if match := re.match(family.block, name):
            groups = match.groupdict()
            inside[name] = int(groups.get("stage") or 0), int(groups["block"] or 0)
    keys = sorted(set(inside.values()))
    staged = "<stage>" in family.block
    stages = sorted({stage for stage, _ in keys})
    for name in names:
        if name in inside:
            stage, _ = key = inside[name]
            yield name, None, stages.index(stage) + 1 if staged else None, keys.index(key) + 1
        else:
            yield name, _outside(family, name), None, None


def _outside(family: Family, name: str) -> str:
    for part, pattern in family.outside.items():
        if re.match(pattern, name):
            return part
    raise ConfigError(f"{name.rstrip('.')!r} belongs to no part that has a name", where="model.name")


def _role(family: Family, name: str) -> str:
    if not re.match(family.block, name):
        return _outside(family, name)
    for role, pattern in family.inside.items():
        if re.match(pattern, name):
            return role
    raise ConfigError(f"{name!r} belongs to no part that has a name", where="model.name")


def _group(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, part in pairs:
        found.setdefault(part, []).append(name)
    return found
