"""Parts of a model by name: the parameters that a figure is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from steppe.errors import ConfigError, SteppeError, unknown_name
from steppe.models import blocks

WHOLE = "whole"
"""The name of the part that is the whole model."""

Parts = Sequence[str] | Mapping[str, Sequence[str]]
"""Names that `steppe.models.blocks` gives, or `whole`; or any names with the parameters they stand for."""


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters a measure is about, by name: those that are not frozen."""
    found = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not found:
        raise SteppeError("the model has no trainable parameter", fix="unfreeze the part that is to be measured")
    return found


def resolve_parts(model: nn.Module, parts: Parts, *, frozen: bool = False) -> dict[str, list[str]]:
    """Find the parameters of every part asked for.

    Args:
        model: what is measured.
        parts: names that `steppe.models.blocks` gives, or `whole`; or any names with the parameters they stand for.
        frozen: whether frozen parameters count.

    Raises:
        ConfigError: the model has no part of that name, or all of that part is frozen.
    """
    trained = dict(model.named_parameters()) if frozen else trained_parameters(model)
    named: Mapping[str, Sequence[str]]
    if isinstance(parts, Mapping):
        named = parts
    else:
        named = {WHOLE: list(trained)}
        if any(part != WHOLE for part in parts):
            named = {**named, **blocks(model)}
    found = {}
    for part in parts:
        if part not in named:
            raise unknown_name(f"part of {type(model).__name__}", part, named)
        found[part] = [name for name in named[part] if name in trained]
        if not found[part]:
            raise ConfigError(
                f"no parameter of {part!r} is trainable", fix="leave this part out, or unfreeze it in the model"
            )
    return found
