"""The run folder: its layout, reading and writing. Free of torch, so that a report needs none."""

from steppe.runs.files import locked, read_json, write_atomically, write_json
from steppe.runs.folder import Run, create_run, find_runs
from steppe.runs.observer import Observer

__all__ = ["Observer", "Run", "create_run", "find_runs", "locked", "read_json", "write_atomically", "write_json"]
