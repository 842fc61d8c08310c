"""What every part of a configuration shares: strictness, and options that belong to one method of several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, model_validator

from steppe.config.spelling import spell


class Section(BaseModel):
    """What every part of a configuration shares: no unknown keys, no values of another type, no change once made.

    A whole number may stand for a real one. True is no number, and "1" is a text. One of a few names may be spelled
    in any way; its canonical spelling is kept.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    @model_validator(mode="wrap")
    @classmethod
    def _spell_names(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Spell names before anything else looks at them; a wrapping validator comes before those of mode "before"."""
        return handler(spell_names(cls, values))


def spell_names(section: type[BaseModel], values: Any) -> Any:
    """Give names among the values their canonical spelling, in sections below, too.

    Args:
        section: whose values they are.
        values: as given; anything odd is left for pydantic to refuse.
    """
    if not isinstance(values, Mapping):
        return values
    out = dict(values)
    for key, field in section.model_fields.items():
        value, kind = out.get(key), field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            if key in out:
                out[key] = spell_names(kind, value)
        elif isinstance(value, str) and (names := literals(kind)):
            out[key] = spell(value, names)
    return out


def literals(annotation: Any) -> list[str]:
    """Return the names that a field of `Literal`, optional or not, may have; empty for any other."""
    if get_origin(annotation) is Literal:
        return [value for value in get_args(annotation) if isinstance(value, str)]
    return [name for inner in get_args(annotation) for name in literals(inner)]


def with_defaults(values: Any, table: Mapping[str, Mapping[str, Any]], default_name: str) -> Any:
    """Fill what is not given from the row of the chosen name; leave anything odd for pydantic to refuse."""
    if not isinstance(values, Mapping):
        return values
    given = {k: v for k, v in values.items() if v is not None}
    name = given.get("name", default_name)
    row = table.get(name, {}) if isinstance(name, str) else {}
    return {**row, **given}


def refuse_foreign(section: Any, name: str, table: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse an option of another method: it would do nothing, silently."""
    for key in {k for row in table.values() for k in row}:
        if getattr(section, key) is not None and key not in table[name]:
            owners = [name for name, row in table.items() if key in row]
            raise ValueError(f"{key} means nothing to {name!r}: it belongs to {', '.join(owners)}")
