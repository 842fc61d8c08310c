"""A worker process of a study: takes runs as JSON lines on its input, tells about them as JSON lines.

    in   {"config": {...}, "out": "...", "data_root": null, "device": null, "measure": {...}, "command": [...],
          "keeping": {...}, "track": [...], "recorded": null | {"run": "...", "data": {...}}}
    out  {"event": "epoch", "record": {...}} … and {"event": "note", "text": "..."} …, then one of
         {"event": "done"} | {"event": "failed", "reason": "..."} | {"event": "interrupted"} |
         {"event": "busy", "reason": "..."}, when another process is writing this run

A process of its own, so that a crash costs one run; started as a module rather than by multiprocessing, so that
nobody's `__main__` is imported again.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

import torch

from steppe import data
from steppe.config import DataConfig, MeasureConfig, RunConfig
from steppe.data import Keeping
from steppe.errors import Busy, Interrupted, SteppeError
from steppe.measuring import ignore
from steppe.runs import Observer, Run, Several, make_trackers
from steppe.studies.pipeline import execute_on
from steppe.studies.recorded_data import check_recorded


def main() -> None:
    """Work until the input ends. When whoever started us dies, the input ends too: stop at once."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a stray print goes to the log, not between the answers
    torch.set_num_threads(int(sys.argv[1]))
    jobs = _read_in_background(sys.stdin)
    while (line := jobs()) is not None:
        answer = work(json.loads(line), lambda message: _tell(answers, **message))
        _tell(answers, **answer)


def work(
    job: dict[str, Any],
    tell: Callable[[dict[str, Any]], None] = ignore,
    saved: Callable[[], None] = ignore,
) -> dict[str, Any]:
    """Make the run of a job; give the event it ended with.

    Args:
        job: as in this module's description.
        tell: takes the events before the last.
        saved: called when a checkpoint or a measure is written, and nothing is being written.
    """

    class Teller(Observer):
        def epoch(self, record: dict[str, Any]) -> None:
            tell({"event": "epoch", "record": record})

        def say(self, text: str) -> None:
            tell({"event": "note", "text": text})

        def saved(self, run: Run) -> None:
            saved()

    sys.argv = job["command"]  # what a person would type to have this run again, for env.json
    try:
        config = RunConfig.model_validate(job["config"])
        cache = job["keeping"]["cache"]
        keeping = Keeping(**{**job["keeping"], "cache": Path(cache) if cache else None})
        teller = Teller()
        dataset = _load_once(config.data, job["data_root"], keeping)
        check_recorded(job["recorded"], dataset, Path(job["out"]).parent)
        execute_on(
            dataset,
            config,
            job["out"],
            data_root=job["data_root"],
            device=job["device"],
            measure=MeasureConfig.model_validate(job["measure"]),
            observer=Several([teller, *make_trackers(job["track"], teller.say)]),
            keeping=keeping,
        )
    except (Interrupted, KeyboardInterrupt):
        return {"event": "interrupted"}
    except Busy as error:
        return {"event": "busy", "reason": str(error)}
    except SteppeError as error:
        return {"event": "failed", "reason": str(error)}
    except Exception as error:
        traceback.print_exc()
        return {"event": "failed", "reason": f"{type(error).__name__}: {error} (a bug; the traceback is in the log)"}
    return {"event": "done"}


@lru_cache(maxsize=2)
def _load_once(config: DataConfig, root: str | None, keeping: Keeping) -> data.Dataset:
    return data.load(config, root, keeping=keeping)


def _read_in_background(source: TextIO) -> Any:
    lines: list[str] = []
    there = threading.Semaphore(0)

    def read() -> None:
        for line in source:
            lines.append(line)
            there.release()
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()

    def take() -> str:
        there.acquire()
        return lines.pop(0)

    return take


def _tell(answers: TextIO, **message: Any) -> None:
    answers.write(json.dumps(message) + "\n")


if __name__ == "__main__":
    main()
