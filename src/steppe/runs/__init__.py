"""The run folder: its layout, reading and writing. Free of torch, so that a report needs none."""

from steppe.runs.answers import OUT_OF_FOLD, Answers, read_answers, write_answers
from steppe.runs.files import holds_others, is_locked, locked, read_json, try_lock, write_atomically, write_json
from steppe.runs.folder import Run, create_run, find_runs, split_group
from steppe.runs.observer import Observer, Several, Status
from steppe.runs.outputs import Output, json_of
from steppe.runs.results import drop_result, find_result, put_result
from steppe.runs.trackers import TRACKERS, Tracker, check_trackers, make_trackers
from steppe.runs.trained import find_trained, read_export, without_weights

__all__ = [
    "OUT_OF_FOLD",
    "TRACKERS",
    "Answers",
    "Observer",
    "Output",
    "Run",
    "Several",
    "Status",
    "Tracker",
    "check_trackers",
    "create_run",
    "drop_result",
    "find_result",
    "find_runs",
    "find_trained",
    "holds_others",
    "is_locked",
    "json_of",
    "locked",
    "make_trackers",
    "put_result",
    "read_answers",
    "read_export",
    "read_json",
    "split_group",
    "try_lock",
    "without_weights",
    "write_answers",
    "write_atomically",
    "write_json",
]
