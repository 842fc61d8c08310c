"""What every part of a configuration shares: strictness, and options that belong to one method of several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """What every part of a configuration shares: no unknown keys, no values of another type, no change once made.

    A whole number may stand for a real one. True is no number, and "1" is a text.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


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
