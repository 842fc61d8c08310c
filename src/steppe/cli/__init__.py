"""The command line: one thin file a command."""

from steppe.cli.main import main

__all__ = ["main"]
