"""How `--help` looks: a flag takes nothing, and an argument is written in capitals, whatever typer's own way is."""

from __future__ import annotations

from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup


def _tidy(params: list[Any]) -> list[Any]:
    """Give flags an empty kind of value, and arguments a name in capitals."""
    for param in params:
        if param.metavar is not None:
            continue
        if getattr(param, "is_flag", False):
            param.metavar = ""
        elif isinstance(param, TyperArgument):
            param.metavar = str(param.name).upper()
    return params


def _plain(pieces: list[str]) -> list[str]:
    """The usage line without braces around what is required."""
    return [piece.replace("{", "").replace("}", "") for piece in pieces]


class Command(TyperCommand):
    """A command."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its arguments and options, with `--help`."""
        return _tidy(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of its usage line."""
        return _plain(super().collect_usage_pieces(ctx))


class Group(TyperGroup):
    """Commands under one name."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its options, with `--help`."""
        return _tidy(super().get_params(ctx))
