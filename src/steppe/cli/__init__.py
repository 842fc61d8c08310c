"""The command line: one thin file a command."""

import os

# Before torch starts its threads: on a busy machine waiting threads that spin take the cores from those that work
# (measured: up to nine times slower beside other work, no slower alone).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from steppe.cli.main import main

__all__ = ["main"]
