"""What each parameter is: names, roles, and the presets that choose among them.

ASAM's authors scale a parameter when its *name contains* "weight" (LayerNorm's and BatchNorm's γ included) and leave
the rest (biases, class tokens, position embeddings, Swin's bias tables) alone. Names come from the model, or from a
base optimizer that was built from `named_parameters()`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .vectors import Block, shard_groups

Filter = Callable[[str, Tensor, nn.Module | None], bool]
"""(name, parameter, the module that owns it) -> whether it belongs."""

_SMALL = 2**14
"""Elements up to which a CPU tensor costs more to call an operation on than to copy."""

SCALINGS = ("none", "weights", "all", "layer")
_NORM_MODULES: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


def is_normalisation(module: nn.Module | None) -> bool:
    """Whether a module is a normalisation layer, ours or a library's (recognised by the end of its class name)."""
    if module is None:
        return False
    name = type(module).__name__.lower()
    return isinstance(module, _NORM_MODULES) or ("norm" in name and not any(True for _ in module.children()))


FILTERS: dict[str, Filter] = {
    "all": lambda name, parameter, module: True,
    "norm": lambda name, parameter, module: is_normalisation(module),
    "no-norm": lambda name, parameter, module: not is_normalisation(module),
    "weights": lambda name, parameter, module: "weight" in name,
}


def name_parameters(base: torch.optim.Optimizer, model: nn.Module | None) -> dict[Tensor, tuple[str, nn.Module | None]]:
    """Name and owning module of every parameter that can be told; empty without a model and without names."""
    known: dict[Tensor, tuple[str, nn.Module | None]] = {}
    for group in base.param_groups:
        for name, parameter in zip(group.get("param_names", ()), group["params"], strict=False):
            known[parameter] = (name, None)
    if model is not None:
        for path, module in model.named_modules():
            for name, parameter in module.named_parameters(recurse=False):  # a shared one has its first name
                if known.get(parameter, ("", None))[1] is None:
                    known[parameter] = (f"{path}.{name}" if path else name, module)
    return known


def build_blocks(
    base: torch.optim.Optimizer, model: nn.Module | None, perturb: str | Filter, scaling: str
) -> tuple[list[Tensor], list[Block]]:
    """All parameters of the base optimizer in order, and the blocks they fall into."""
    if scaling not in SCALINGS:
        raise ValueError(f"unknown scaling {scaling!r}; choose one of {', '.join(SCALINGS)}")
    if isinstance(perturb, str) and perturb not in FILTERS:
        raise ValueError(f"unknown parameter filter {perturb!r}; choose one of {', '.join(FILTERS)} or pass a function")
    chosen: Filter = FILTERS[perturb] if isinstance(perturb, str) else perturb
    known = name_parameters(base, model)
    need_names = scaling == "weights" or perturb == "weights"
    need_modules = perturb in ("norm", "no-norm")
    parameters: list[Tensor] = []
    any_wanted = False
    sorted_members: dict[tuple[Any, ...], list[int]] = {}
    for index, group in enumerate(base.param_groups):
        for parameter in group["params"]:
            name, module = known.get(parameter, ("", None))
            if (need_names and not name) or (need_modules and module is None):
                raise ValueError(_missing(scaling, perturb, model))
            scaled = scaling in ("all", "layer") or (scaling == "weights" and "weight" in name)
            wanted = bool(chosen(name, parameter, module))
            any_wanted, perturbed = any_wanted or wanted, wanted and parameter.requires_grad
            key: tuple[Any, ...] = (index, scaled, perturbed, parameter.device, parameter.dtype)
            key += (hasattr(parameter, "to_local"), shard_groups(parameter))
            sorted_members.setdefault(key, []).append(len(parameters))
            parameters.append(parameter)
    blocks = [
        Block(group, piece, scaled, perturbed, device, dtype, distributed, small, shards)
        for (group, scaled, perturbed, device, dtype, distributed, shards), members in sorted_members.items()
        for piece, small in _cut(members, parameters, whole=distributed or device.type != "cpu")
    ]
    if not any_wanted:
        raise ValueError(f"the parameter filter {perturb!r} leaves nothing to perturb")
    return parameters, blocks


def _cut(members: list[int], parameters: list[Tensor], whole: bool) -> list[tuple[tuple[int, ...], bool]]:
    """Cut a CPU block into pieces that stay in the cache between operations; small tensors stay together."""
    if whole:
        return [(tuple(members), False)]
    pieces: list[tuple[tuple[int, ...], bool]] = []
    for small, limit in ((True, 64 * _SMALL), (False, 32 * _SMALL)):
        piece: list[int] = []
        count = 0
        for i in (i for i in members if (parameters[i].numel() <= _SMALL) == small):
            if piece and count + parameters[i].numel() > limit:
                pieces.append((tuple(piece), small))
                piece, count = [], 0
            piece.append(i)
            count += parameters[i].numel()
        if piece:
            pieces.append((tuple(piece), small and len(piece) > 1))
    return pieces


def _missing(scaling: str, perturb: str | Filter, model: nn.Module | None) -> str:
    what = f"perturb={perturb!r}" if isinstance(perturb, str) and perturb != "all" else f"scaling={scaling!r}"
    if model is None:
        return (
            f"{what} goes by the parameters' names and modules, which are not known here: "
            "pass model=, or (for scaling) choose scaling='all', which needs none"
        )
    return f"{what} goes by names, and the base optimizer holds a parameter that the given model does not"
