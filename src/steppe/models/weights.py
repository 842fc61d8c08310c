"""Weights from elsewhere: where they are read from, and how they are fitted to a model of another size.

Nothing in a weights file is executed: safetensors hold numbers only, and a `.pth` is read with `weights_only=True`.
"""

from __future__ import annotations

import hashlib
import logging
import math
import pickle
import socket
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import timm
import torch
from huggingface_hub import constants
from safetensors.torch import load_file
from timm.layers.patch_embed import resample_patch_embed
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.layers.pos_embed_rel import resize_rel_pos_bias_table_levit, resize_rel_pos_bias_table_simple
from timm.models import adapt_input_conv
from torch import nn

from steppe.config import OF_SEVERAL, OF_THE_STUDY, PRETRAINED, Pretrained, describe_file, locate
from steppe.config.lookup import no_weights
from steppe.config.pretrained import weights_cache
from steppe.errors import ConfigError, nearest
from steppe.models.foreign import State, how_to_fetch, rename
from steppe.models.freezing import head_parameters
from steppe.models.names import short_name
from steppe.models.side_by_side import split_name
from steppe.plain_files import check_plain, open_plain

_LOG = logging.getLogger(__name__)
_SAID: set[str] = set()
_WHERE = "model.weights"
_NOT_WEIGHTS = ("relative_position_index", "attn_mask", "attention_bias_idxs")
HUB_PREFIXES = ("hf-hub:", "hf_hub:")
_RUNS: ContextVar[Path] = ContextVar("runs", default=Path("runs"))


@contextmanager
def runs_beside(folder: str | Path) -> Iterator[None]:
    """Inside, `run:ID` is looked for in this folder: that of the study whose run is being made; else it is `runs`."""
    token = _RUNS.set(Path(folder))
    try:
        yield
    finally:
        _RUNS.reset(token)


def load_pretrained(model: nn.Module, source: str, model_name: str, *, quiet: bool = False) -> bool:
    """Read weights and put them into the model, fitted to its image size, patches, windows and channels.

    A head of another size keeps its fresh weights, and what the file has beyond the model is not used; each is said
    once. Whether the head was filled, too, is returned.

    Args:
        model: as `build` made it, with fresh weights.
        source: a name of `steppe weights list`, a safetensors or .pth file, a run folder, "run:ID", "timm", "timm:NAME"
            or "hf-hub:NAME".
        model_name: the model's name, for "timm" alone.
        quiet: do not say that the head is new, where that is meant.

    Raises:
        ConfigError: the weights cannot be had, are damaged, hold more than numbers, or belong to another model.
    """
    state = rename(weights_in(read_weights(source, model_name), source), model)
    if (path := weights_file(source)) and (about := PRETRAINED.get(source) or describe_file(path)):
        _check_patches(model, source, model_name, about)
    own = model.state_dict()
    head = head_parameters(model)
    for key, value in own.items():
        if key in state and value.is_floating_point() and not state[key].is_floating_point():
            kind = str(state[key].dtype).removeprefix("torch.")
            raise _other_model(
                source, model_name, f"{key!r} holds {kind} there, and weights are floating-point numbers"
            )
    fitted = {key: _fit(key, state[key], own[key], model, source) for key in own if key in state and key not in head}
    missing = [key for key in own if key not in fitted and key not in head and not key.endswith("num_batches_tracked")]
    if missing:
        why = f"{len(missing)} of {len(own)} entries are not in it, such as {missing[0]!r}"
        raise _other_model(source, model_name, why)
    filled = all(key in state and state[key].shape == own[key].shape for key in head)
    if filled:
        fitted |= {key: state[key].to(own[key].dtype) for key in head}
    elif not quiet:
        there = next((len(state[key]) for key in sorted(head) if key in state and state[key].ndim), None)
        had = f"has {there} classes" if there else "has none"
        say_once(f"the head begins afresh: {source} {had}, this run {len(own[min(head)])}")
    unused = [key for key in state if key not in own]
    if unused:
        say_once(f"{len(unused)} entries of {source} are not used, such as {unused[0]!r}")
    model.load_state_dict(fitted, strict=False)
    return filled


def ingredients(source: str) -> list[str]:
    """Return the weights whose average "soup:RUN,RUN" means; empty for other weights."""
    return source.removeprefix(OF_SEVERAL).split(",") if source.startswith(OF_SEVERAL) else []


def average_states(states: Sequence[State], source: str) -> State:
    """Average the entries of several state dicts; whole numbers are those of the first.

    Args:
        states: of one network.
        source: their name, for the error.

    Raises:
        ConfigError: they do not have the same entries.
    """
    first = states[0]
    shapes = [{key: value.shape for key, value in state.items()} for state in states]
    if any(shape != shapes[0] for shape in shapes):
        raise ConfigError(f"{source} are weights of different networks", where=_WHERE, fix="name runs of one model")
    return {
        key: torch.stack([state[key].float() for state in states]).mean(0).to(value.dtype)
        if value.is_floating_point()
        else value
        for key, value in first.items()
    }


def weights_file(source: str) -> Path | None:
    """The file that `model.weights` names, there or not; None for a name of timm's or a hub's, and for a soup."""
    if ingredients(source):
        return None
    if source == "auto":
        fix = "give steppe.models.settle(config) the configuration before the run"
        raise ConfigError("weights = 'auto' names no weights", where=_WHERE, fix=fix)
    if source == "timm" or source.startswith(("timm:", *HUB_PREFIXES)):
        return None
    if known := PRETRAINED.get(source):
        return None if known.hub else locate(source) or weights_cache() / f"{source}.safetensors"
    if source.startswith(OF_THE_STUDY):
        return _RUNS.get() / source.removeprefix(OF_THE_STUDY) / "weights.safetensors"
    path = Path(source).expanduser()
    return path / "weights.safetensors" if path.is_dir() else path


def weights_sha256(source: str, model_name: str = "") -> str:
    """A digest of what `model.weights` names: of the file, or of the numbers that a hub has under this name now.

    Args:
        source: as for `load_pretrained`.
        model_name: the model's name, for "timm" alone.

    Raises:
        ConfigError: there is no such file, it may not be read, or the weights cannot be fetched.
    """
    if ingredients(source) or len(split_name(source)) > 1:
        sources = ingredients(source) or split_name(source)
        names = split_name(model_name) if model_name and not ingredients(source) else [model_name] * len(sources)
        digests = [weights_sha256(one, name) for one, name in zip(sources, names, strict=True)]
        return hashlib.sha256("".join(digests).encode()).hexdigest()
    path = weights_file(source)
    if path is None:
        return state_sha256(weights_in(_fetch(source, model_name), source))
    if not path.is_file():
        raise not_found(source, path)
    try:
        with open_plain(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"the weights {path} cannot be read: {error.strerror}", where=_WHERE) from None


def state_sha256(state: State) -> str:
    """A digest of a state dict: names, types, shapes and numbers, in whatever order and on whatever device they are."""
    digest = hashlib.sha256()
    for key, value in sorted(state.items()):
        digest.update(f"{key} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_weights(source: str, model_name: str) -> Mapping[str, Any]:
    """Read what `model.weights` names, as a file holds it."""
    if several := ingredients(source):
        return average_states([weights_in(read_weights(one, model_name), one) for one in several], source)
    path = weights_file(source)
    if path is None:
        return _fetch(source, model_name)
    if not path.is_file():
        raise not_found(source, path)
    try:
        check_plain(path)
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the age of the pickle
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ConfigError(
            f"{path} may hold more than numbers and is not opened: a pickle can run any program",
            where=_WHERE,
            fix="use a safetensors file, or save the state dict alone where you trust the file",
        ) from None
    except Exception as error:  # a damaged pickle raises whatever its bytes happen to mean
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ConfigError(f"the weights {path} cannot be read: {reason}", where=_WHERE) from None


def timm_name(source: str, model_name: str) -> str:
    """The name under which timm has the weights that "timm" or "timm:NAME" means.

    Raises:
        ConfigError: timm has no such model.
    """
    if source in PRETRAINED:
        return source
    known = short_name(model_name)
    name = source.partition(":")[2] or (known.twin or "" if known else model_name.removeprefix("timm:"))
    if not name:
        fix = "name a model of the same sizes: timm:NAME"
        raise ConfigError(f"timm has no weights for {model_name!r}", where=_WHERE, fix=fix)
    if not timm.is_model(name):
        close = " or ".join(f"timm:{near}" for near in nearest(name, timm.list_models()))
        fix = f"did you mean {close}?" if close else "`steppe models PATTERN` searches timm's names"
        raise ConfigError(f"timm has no model {name!r}", where=_WHERE, fix=fix)
    return name


def _fetch(source: str, model_name: str) -> State:
    """Let timm make the network the weights were trained in, from its cache or the network, and take its weights."""
    hub = source.startswith(HUB_PREFIXES)
    name = source.replace("hf_hub:", "hf-hub:") if hub else timm_name(source, model_name)
    online = hub_answers()
    try:
        with torch.device("cpu"), torch.random.fork_rng(devices=[]), cache_only(not online):
            torch.manual_seed(0)  # what timm's file lacks is the same each time
            return timm.create_model(name, pretrained=True).state_dict()
    except Exception as error:  # whatever the hub's client raises: no network, no such name, no permission
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        if isinstance(error, RuntimeError) and "No pretrained weights" in reason:
            raise ConfigError(f"timm has no weights for {name!r}", where=_WHERE) from None
        if not online:
            reason = f"{constants.ENDPOINT} cannot be reached, and they are not in the cache"
        raise ConfigError(
            f"the weights {source!r} could not be fetched: {reason}",
            where=_WHERE,
            fix=f"run once with a network (they stay in the Hugging Face cache, see HF_HOME), or download "
            f"model.safetensors of {name!r} elsewhere and set model.weights to its path",
        ) from None


def hub_answers() -> bool:
    """Look whether the hub's name can be resolved: without a network its client would retry for most of a minute."""
    if constants.HF_HUB_OFFLINE:
        return False
    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
    except OSError:
        return bool(getproxies())
    return True


@contextmanager
def cache_only(wanted: bool) -> Iterator[None]:
    """Inside, if wanted, the hub's client looks into its cache alone."""
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or wanted
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def weights_in(found: Any, source: str) -> State:
    """The state dict that a file holds, without what timm computes anew for each image size."""
    return {key: value for key, value in _unwrap(found, source).items() if not key.endswith(_NOT_WEIGHTS)}


def _unwrap(found: Any, source: str) -> State:
    """Take the state dict out of what training programs wrap around it."""
    for _ in range(3):
        inner = found.get("state_dict", found.get("model")) if isinstance(found, Mapping) else None
        if not isinstance(inner, Mapping):
            break
        found = inner
    if not isinstance(found, Mapping) or not any(isinstance(value, torch.Tensor) for value in found.values()):
        raise ConfigError(f"{source} holds no weights", where=_WHERE)
    state = {str(key): value for key, value in found.items() if isinstance(value, torch.Tensor)}
    for prefix in ("module.", "_orig_mod."):
        if all(key.startswith(prefix) for key in state):
            state = {key.removeprefix(prefix): value for key, value in state.items()}
    return state


def _check_patches(model: nn.Module, source: str, model_name: str, about: Pretrained) -> None:
    """Refuse a network that takes the weights and computes something else with them."""
    modules, patches, why = dict(model.named_modules()), about.patches, None
    for name, stride in patches.strides:
        found = getattr(modules.get(name), "stride", None)
        if found != stride:
            why = f"they need the stride {stride} in {name}, which has {found}"
            break
    norms = {name: module.eps for name, module in modules.items() if isinstance(module, nn.BatchNorm2d)}
    other = next((name for name, eps in norms.items() if eps != patches.batch_norm_eps), None)
    if why is None and patches.batch_norm_eps is not None and other is not None:
        why = f"they need eps {patches.batch_norm_eps:g} in their norms, and {other} has {norms[other]:g}"
    if why:
        fix = f"set model.name to {about.model!r}" if about.model != model_name else "no model of steppe or timm has it"
        raise _other_model(source, model_name, why, fix)


def _fit(key: str, value: torch.Tensor, own: torch.Tensor, model: nn.Module, source: str) -> torch.Tensor:
    """Bring one entry to the shape the model has, if there is a sound way."""
    if value.shape == own.shape:
        return value.to(own.dtype)
    value = value.float()
    if key == "pos_embed" and value.ndim == own.ndim == 3 and value.shape[-1] == own.shape[-1]:
        value = _resize_positions(value, model)
    elif key.endswith("relative_position_bias_table") and value.shape[-1] == own.shape[-1]:
        window: Any = model.get_submodule(key.rpartition(".")[0]).window_size
        value = resize_rel_pos_bias_table_simple(value, new_window_size=window, new_bias_shape=tuple(own.shape))
    elif key.endswith("attention_biases") and len(value) == len(own):
        value = resize_rel_pos_bias_table_levit(value.T, own.shape[::-1]).T
    elif value.ndim == own.ndim == 4 and len(value) == len(own) and value.shape[1] in (3, own.shape[1]):
        if key in ("patch_embed.proj.weight", "stem.proj.weight") and value.shape[2:] != own.shape[2:]:
            value = resample_patch_embed(value, list(own.shape[2:]))
        if value.shape[1] == 3 and value.shape[2:] == own.shape[2:]:
            value = adapt_input_conv(own.shape[1], value)
    if value.shape != own.shape:
        sizes = f"{key!r} has shape {tuple(value.shape)} there and {tuple(own.shape)} here"
        fix = None
        if ".mlp_tokens." in key:
            fix = "a Mixer's token mixing is tied to its grid: use the image and patch size of the weights"
        elif key in ("conv1.weight", "patch_embed.backbone.stem.conv.weight"):
            fix = "the stems differ: set data.image_size above 64, or name the model timm:NAME to keep timm's own stem"
        raise _other_model(source, type(model).__name__, sizes, fix)
    return value.to(own.dtype).contiguous()


def _resize_positions(value: torch.Tensor, model: nn.Module) -> torch.Tensor:
    prefix = 0 if getattr(model, "no_embed_class", False) else int(getattr(model, "num_prefix_tokens", 1))
    side = math.isqrt(max(value.shape[1] - prefix, 0))
    if side * side + prefix != value.shape[1]:
        return value
    grid = list(model.patch_embed.grid_size)  # type: ignore[union-attr, arg-type]
    return resample_abs_pos_embed(value, grid, [side, side], num_prefix_tokens=prefix)


def not_found(source: str, path: Path) -> ConfigError:
    """The error for weights that are not there."""
    error = no_weights(source, path)
    if source not in PRETRAINED and (command := how_to_fetch(path)):
        return ConfigError(error.what, where=error.where, fix=f"fetch them: {command}")
    return error


def _other_model(source: str, model: str, why: str, fix: str | None = None) -> ConfigError:
    return ConfigError(f"the weights {source} do not fit {model}: {why}", where=_WHERE, fix=fix)


def say_once(text: str) -> None:
    """Tell the user once, on the log that Python prints to stderr unless told otherwise."""
    if text not in _SAID:
        _SAID.add(text)
        _LOG.warning(text)
