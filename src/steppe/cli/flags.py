"""Flags made from the configuration: one for every key, with its description and default.

So `--help` cannot disagree with what a configuration file may hold, and a new key needs no new flag.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from steppe.config import PRETRAINED
from steppe.config.keys import KEYS, ambiguous_flags, flag_of, nest
from steppe.config.names import DATASETS, MODELS
from steppe.config.section import literals
from steppe.errors import ConfigError

WEIGHTS = ("auto", "none", *PRETRAINED)


def with_config_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command a flag for every key of a run; it receives those given as the nested dict `overrides`."""
    names = {key.replace(".", "__"): key for key in KEYS}
    unclear = {f"unclear_{number}": flag for number, flag in enumerate(ambiguous_flags())}

    def wrapped(**arguments: Any) -> Any:
        for name, flag in unclear.items():
            if arguments.pop(name) is not None:
                raise _which(flag)
        overrides = nest({key: arguments.pop(name) for name, key in names.items()})
        return command(**arguments, overrides=overrides)

    own = inspect.signature(command, eval_str=True).parameters.values()
    options = {name: _option(key, KEYS[key]) for name, key in names.items()}
    options |= {name: Annotated[str | None, typer.Option(flag, hidden=True)] for name, flag in unclear.items()}
    made = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in options.items()
    ]
    kept = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own if p.name != "overrides"]
    wrapped.__signature__ = inspect.Signature([*kept, *made])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in [*kept, *made]}
    wrapped.__doc__, wrapped.__name__ = command.__doc__, command.__name__
    return wrapped


def _which(flag: str) -> ConfigError:
    """Say which flags somebody may have meant, and what each does: spelling alone would suggest unrelated ones."""
    meant = [f"{flag_of(key)} ({KEYS[key].description})" for key in ambiguous_flags()[flag]]
    return ConfigError(f"{flag} could mean several flags", where="the command line", fix=f"say {' or '.join(meant)}")


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
        autocompletion=_completer(key, literals(field.annotation)),
    )
    return Annotated[kind | None, option]


def _completer(key: str, choices: list[str]) -> Callable[[str], list[str]]:
    """What a shell offers for a key's value when Tab is pressed."""

    def complete(incomplete: str) -> list[str]:
        words: Sequence[str] = {"model.name": MODELS, "data.name": DATASETS, "model.weights": WEIGHTS}.get(key, choices)
        return [word for word in words if word.startswith(incomplete)]

    return complete


def _plain_type(annotation: Any) -> type:
    if annotation in (int, float, str, bool):
        return annotation
    if get_origin(annotation) is Literal:
        return str
    inner = [a for a in get_args(annotation) if a is not type(None)]
    return _plain_type(inner[0])


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
