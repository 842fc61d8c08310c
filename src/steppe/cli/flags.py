"""Flags made from the configuration: one for every key, with its description and default.

So `--help` cannot disagree with what a configuration file may hold, and a new key needs no new flag.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from steppe.config import RunConfig, leaves

KEYS = dict(leaves(RunConfig))


def flag_of(key: str) -> str:
    """The flag of a key: `data.name` is --data, `minimizer.rho` is --rho, with its section where two would clash."""
    section, _, last = key.rpartition(".")
    if last == "name":
        return f"--{section}"
    clash = Counter(k.rsplit(".", 1)[-1] for k in KEYS)[last] > 1
    return "--" + (f"{section}-{last}" if clash else last).replace("_", "-").replace(".", "-")


def with_config_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command a flag for every key of a run; it receives those given as the nested dict `overrides`."""
    names = {key.replace(".", "__"): key for key in KEYS}

    def wrapped(**arguments: Any) -> Any:
        overrides: dict[str, Any] = {}
        for name, key in names.items():
            value = arguments.pop(name)
            if value is not None:
                *sections, last = key.split(".")
                table = overrides
                for section in sections:
                    table = table.setdefault(section, {})
                table[last] = value
        return command(**arguments, overrides=overrides)

    own = inspect.signature(command, eval_str=True).parameters.values()
    made = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(key, KEYS[key]))
        for name, key in names.items()
    ]
    kept = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own if p.name != "overrides"]
    wrapped.__signature__ = inspect.Signature([*kept, *made])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in [*kept, *made]}
    wrapped.__doc__, wrapped.__name__ = command.__doc__, command.__name__
    return wrapped


def _option(key: str, field: FieldInfo) -> Any:
    flag = flag_of(key)
    kind = _plain_type(field.annotation)
    default = None if field.default is None or repr(field.default).startswith("Pydantic") else field.default
    described = field.description or ""
    if "default: " in described:  # it depends on another key, and the description says how
        default = None
    option = typer.Option(
        f"{flag}/--no-{flag[2:]}" if kind is bool else flag,
        help=f"{described}  \\[{key}]" if default is None else f"{described}  \\[{key}, default: {_shown(default)}]",
        show_default=False,
        rich_help_panel=f"{key.split('.')[0].capitalize()}" if "." in key else "Run",
    )
    return Annotated[kind | None, option]


def _plain_type(annotation: Any) -> type:
    if annotation in (int, float, str, bool):
        return annotation
    if get_origin(annotation) is Literal:
        return str
    inner = [a for a in get_args(annotation) if a is not type(None)]
    return _plain_type(inner[0])


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
