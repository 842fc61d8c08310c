"""Train image classifiers into flat minima at the lowest cost, and show that they are flat.

From a configuration to a run folder, and from run folders to a page:

    import steppe

    config = steppe.RunConfig.model_validate({"model": {"name": "vit_tiny_p2"}, "minimizer": {"name": "sam"}})
    run = steppe.execute(config)
    print(run.summary["test"]["accuracy"])
    steppe.write_report([run], "report.html")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from steppe.config import RunConfig, StudyConfig, load_run_config, load_study_config, plan
    from steppe.errors import SteppeError
    from steppe.report import summarise, write_report
    from steppe.runs import Run, find_runs
    from steppe.studies import execute, run_study

_HOMES = {
    "RunConfig": "config",
    "StudyConfig": "config",
    "load_run_config": "config",
    "load_study_config": "config",
    "plan": "config",
    "SteppeError": "errors",
    "summarise": "report",
    "write_report": "report",
    "Run": "runs",
    "find_runs": "runs",
    "execute": "studies",
    "run_study": "studies",
}

__all__ = [
    "Run",
    "RunConfig",
    "SteppeError",
    "StudyConfig",
    "execute",
    "find_runs",
    "load_run_config",
    "load_study_config",
    "plan",
    "run_study",
    "summarise",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """Import on first use: reading a run or writing a report does not wait for torch."""
    if name == "__version__":
        return import_module("importlib.metadata").version("steppe")
    if name not in _HOMES:
        raise AttributeError(f"module 'steppe' has no attribute {name!r}")
    return getattr(import_module(f"steppe.{_HOMES[name]}"), name)
