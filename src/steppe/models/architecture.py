"""Which model a file of weights belongs to, and what a configuration leaves open about the two."""

from __future__ import annotations

from pathlib import Path

import timm
import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from steppe.config import (
    OF_SEVERAL,
    OF_THE_STUDY,
    PRETRAINED,
    ModelConfig,
    Pretrained,
    RunConfig,
    available,
    describe_file,
)
from steppe.config.names import MODELS
from steppe.errors import ConfigError
from steppe.models.foreign import State, rename
from steppe.models.freezing import head_parameters
from steppe.models.names import short_name
from steppe.models.resnet import SMALL_IMAGE
from steppe.models.weights import HUB_PREFIXES, not_found, read_weights, say_once, weights_file, weights_in

AUTO = "auto"
_RESIZED = ("pos_embed", "relative_position_bias_table", "attention_biases")
"""Entries whose size follows the image's; `load_pretrained` resizes them."""


def settle(config: RunConfig, root: str | Path | None = None) -> RunConfig:
    """Put names in place of what the configuration leaves open about its weights; before it is hashed.

    `weights = "auto"` becomes the best weights at hand for the model, or none; without a model, the best at hand. Where
    weights are given and no model, the model is the one they belong to.

    Args:
        config: the run.
        root: the folder of data sets, beside which weights may lie.

    Raises:
        ConfigError: the weights' model cannot be told, or there are none for a mode that needs some.
    """
    asked = config.model
    named = "name" in asked.model_fields_set
    if (
        asked.weights is None
        or asked.weights.startswith((OF_THE_STUDY, OF_SEVERAL))
        or (named and asked.weights != AUTO)
    ):
        return config  # a study's plan has the model of its own runs
    if asked.weights == AUTO:
        chosen = _best(asked.name if named else None, root)
        if chosen is None:
            return _with_model(config, _without_weights(asked))
        change = {"weights": chosen.source, "name": asked.name if named else chosen.model}
    else:
        change = {"name": _model_of(asked.weights)}
    return _with_model(config, {**asked.model_dump(), **change})


def match_architecture(path: str | Path) -> str | None:
    """The one model that has the entries of a file of weights; None where none or several have."""
    found = _matching(Path(path))
    return found[0] if len(found) == 1 else None


def _with_model(config: RunConfig, values: dict[str, object]) -> RunConfig:
    return config.model_copy(update={"model": ModelConfig.model_validate(values)})


def _best(name: str | None, root: str | Path | None) -> Pretrained | None:
    here = available(root)
    return next((its for its in here if name is None or _plain(its.model) == _plain(name)), None)


def _plain(name: str) -> str:
    """The name that timm has for a model, if it has one."""
    known = short_name(name)
    return known.twin or name if known else name.removeprefix("timm:").partition(".")[0]


def _without_weights(asked: ModelConfig) -> dict[str, object]:
    if asked.mode != "finetune":
        fix = "fetch some: steppe weights get NAME; `steppe weights list` has the names"
        what = f"mode {asked.mode!r} begins from trained weights, and none are at hand for this model"
        raise ConfigError(what, where="model.weights", fix=fix)
    say_once(
        "no pretrained weights are at hand: training begins from scratch (`steppe weights list` shows what can be had)"
    )
    return {**asked.model_dump(exclude={"weights", "mode"}), "name": asked.name}


def _model_of(source: str) -> str:
    """The model that weights belong to, told by their name, by what lies beside them, or by their entries."""
    if known := PRETRAINED.get(source):
        return known.model
    fix = "name it: --model NAME (model.name); `steppe models` lists the names"
    path = weights_file(source)
    if path is None:
        if source == "timm" or source.startswith(HUB_PREFIXES):
            raise ConfigError(
                f"the model is missing that is to get the weights {source!r}", where="model.name", fix=fix
            )
        architecture = source.partition(":")[2].partition(".")[0]
        return f"timm:{architecture}" if short_name(architecture) else architecture
    if not path.is_file():
        raise not_found(source, path)
    if about := describe_file(path):
        return about.model
    found = _matching(path)
    if len(found) == 1:
        return found[0]
    why = f"they fit {' and '.join(found)}" if found else "they fit none that steppe tries"
    raise ConfigError(
        f"which model the weights {source} belong to cannot be told: {why}", where="model.weights", fix=fix
    )


def _matching(path: Path) -> list[str]:
    """Models whose entries are those of a file: first those its name begins with, then those steppe lists."""
    state = _shapes(path)
    hinted = [name for name in timm.list_models() if path.stem.lower().startswith(name)]
    for names in (sorted(hinted, key=len)[-1:], list(dict.fromkeys([*_TABLE, *MODELS]))):
        if found := [name for name in names if name not in _ALIKE and _has_entries(name, state)]:
            return found
    return []


_TABLE = [known.model for known in PRETRAINED.values() if not known.model.startswith("timm:")]
_ALIKE = [name for name in MODELS if name.endswith(("_v1", "_free"))]
"""Models that have the entries of others and compute something else: known by name, sidecar or digest alone."""


def _shapes(path: Path) -> State:
    """The entries of a file, without their numbers."""
    if path.suffix != ".safetensors":
        state = weights_in(read_weights(str(path), ""), str(path))
        return {key: value.to("meta") for key, value in state.items()}
    try:
        with safe_open(path, framework="pt") as file:
            shapes = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118 - it is no dict
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"the weights {path} cannot be read: {error}", where="model.weights") from None
    return weights_in({key: torch.empty(shape, device="meta") for key, shape in shapes.items()}, str(path))


def _has_entries(name: str, state: State) -> bool:
    """Whether a model has just these entries, of these shapes: at the size of large images, or of small ones."""
    for size in (224, SMALL_IMAGE // 2):
        try:
            model = _empty(name, size)
        except Exception:  # its patches do not tile such images; timm's builders fail in ways of their own
            continue
        own, renamed, head = model.state_dict(), rename(state, model), head_parameters(model)
        needed = {key for key in own if key not in head and not key.endswith("num_batches_tracked")}
        if not needed <= set(renamed) <= set(own):
            return False  # another size has the same entries
        if all(renamed[key].shape == own[key].shape or key.endswith(_RESIZED) for key in needed):
            return True
    return False


def _empty(name: str, size: int) -> nn.Module:
    """The model without memory for its numbers."""
    known = short_name(name)
    with torch.device("meta"):
        if known is None:
            return timm.create_model(name, num_classes=1000)
        return known.build(img_size=size, in_chans=3, num_classes=1000)
