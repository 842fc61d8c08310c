"""In a process of its own: a study on a local Ray cluster whose worker is killed, beside one that is left alone."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from steppe.config import StudyConfig, plan
from steppe.runs import Run
from steppe.studies import run_study


def lock_holders(lock: Path) -> list[int]:
    """The processes that have this file open: those that make the run."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(process.name) != os.getpid() and any(
                os.readlink(h) == str(lock) for h in (process / "fd").iterdir()
            ):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def main(folder: Path) -> int:
    """Make the study twice; 0 where the results are the same.

    Args:
        folder: an empty one.
    """
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    base = {"batch_size": 64, "model": {"name": "resnet_tiny"}, "budget": {"epochs": 8}}
    study = StudyConfig.model_validate({"name": "s", "base": base, "measure": {"noise_draws": 2}})
    (planned,) = plan(study)
    name = planned.config.run_id
    killed: list[int] = []

    def kill_once(event: str, run: Any, details: Any) -> None:
        if event == "epoch" and not killed:
            killed.extend(lock_holders(folder / "killed" / name / ".lock"))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    failed = run_study(study, [planned], folder / "killed", workers=2, notify=kill_once, on_ray=True)
    ray.shutdown()
    failed |= run_study(study, [planned], folder / "whole", workers=2)
    if failed or len(killed) != 1:
        print(f"failed: {failed}, killed: {killed}")
        return 1
    same = Run(folder / "killed" / name).weights.read_bytes() == Run(folder / "whole" / name).weights.read_bytes()
    print("the weights are the same" if same else "the weights differ")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
