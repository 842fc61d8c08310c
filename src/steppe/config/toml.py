"""TOML in and out, overrides, and validation errors in the user's words."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from pydantic import BaseModel, ValidationError

from steppe.config.run import BudgetConfig, RunConfig
from steppe.config.section import Section, literals
from steppe.config.spelling import fold
from steppe.errors import ConfigError, nearest
from steppe.plain_files import read_plain_text

Model = TypeVar("Model", bound=BaseModel)

LARGEST = 4 * 2**20
"""So many bytes of a configuration are read at the most."""


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file, with the file and line in any complaint."""
    try:
        return tomllib.loads(read_plain_text(path, LARGEST))
    except FileNotFoundError:
        raise ConfigError("there is no such file", where=str(path), fix="check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file cannot be read as text: {error}", where=str(path)[:200]) from None
    except (ValueError, RecursionError) as error:  # TOML's own, and a number of thousands of digits
        raise ConfigError(f"this is not valid TOML: {error}", where=str(path)) from None


def load_run_config(path: str | Path, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """Read a run's configuration from TOML; `overrides` is nested like the file and wins over it."""
    return parse(RunConfig, merge(read_toml(path), overrides or {}), where=str(path))


def dump_toml(config: BaseModel) -> str:
    """Write a configuration as TOML, leaving out what is None."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def merge(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Lay `overrides` over `values`, table by table.

    Keys of a budget exclude each other, and an option of one method means nothing to the next: a new `budget` key
    puts the old budget aside, and a new `name` puts aside the old name's own options.
    """
    out = dict(values)
    for key, new in overrides.items():
        old = out.get(key)
        if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
            out[key] = new
        elif (key == "budget" and set(new) & set(BudgetConfig.model_fields)) or (
            key in ("minimizer", "optimizer", "objective") and _has_other_name(old, new)
        ):
            out[key] = dict(new)
        else:
            out[key] = merge(old, new)
    return out


def _has_other_name(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Say whether `new` names something else than `old`; "SAM" is "sam"."""
    return "name" in new and fold(str(new["name"])) != fold(str(old.get("name")))


def parse(model: type[Model], values: Mapping[str, Any], *, where: str) -> Model:
    """Validate `values`, turning pydantic's findings into one message.

    Args:
        model: the configuration class.
        values: nested mapping, as TOML gives it.
        where: the file, or "flags".
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        findings = [_explain(model, finding) for finding in error.errors()]
    what = findings[0] if len(findings) == 1 else "\n".join(["the configuration is not right:", *findings])
    helps = "`steppe train --help` explains every key"
    raise ConfigError(what, where=where, fix=helps if issubclass(model, RunConfig) else None)


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ("section.key", field) for every key of a configuration class."""
    for key, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from leaves(field.annotation, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", field


def _explain(model: type[BaseModel], finding: Any) -> str:
    path = [str(part) for part in finding["loc"]]
    dotted = ".".join(path) or "configuration"
    if finding["type"] == "extra_forbidden":
        known = _keys_at(model, path[:-1])
        close = nearest(path[-1], known)
        elsewhere = [leaf for leaf, _ in leaves(model) if leaf.rsplit(".", 1)[-1] == path[-1]]
        if close:
            hint = f"did you mean {' or '.join(repr('.'.join([*path[:-1], c])) for c in close)}?"
        elif elsewhere:
            hint = f"did you mean {' or '.join(repr(e) for e in elsewhere)}?"
        else:
            hint = f"known here: {', '.join(known)}"
        return f"unknown key {dotted!r}; {hint}"
    if finding["type"] == "literal_error":
        allowed = _literals(model, path)
        close = nearest(str(finding["input"]), allowed)
        hint = f"; did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
        return f"{dotted} = {finding['input']!r} is not one of {', '.join(allowed)}{hint}"
    message = finding["msg"].removeprefix("Value error, ")
    given = finding["input"]
    shown = "" if isinstance(given, Mapping | BaseModel) else f" = {given!r}"
    return f"{dotted}{shown}: {message[0].lower()}{message[1:]}"


def _section_at(model: type[BaseModel], path: list[str]) -> type[BaseModel] | None:
    current: Any = model
    for part in path:
        field = current.model_fields.get(part)
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return None
        current = field.annotation
    return current


def _keys_at(model: type[BaseModel], path: list[str]) -> list[str]:
    section = _section_at(model, path)
    return list(section.model_fields) if section else []


def _literals(model: type[BaseModel], path: list[str]) -> list[str]:
    section = _section_at(model, path[:-1])
    field = section.model_fields.get(path[-1]) if section else None
    return literals(field.annotation) if field else []
