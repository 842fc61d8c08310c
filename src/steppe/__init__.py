"""Train image classifiers into flat minima at the lowest cost, and show that they are flat.

The best classifier for some images within a time, and what it says of another image:

    import steppe

    found = steppe.fit("photos", budget="10m")
    print(found.answer)
    print(found.predict("x.jpg"))

One training, from settings to a run folder, to a page about it, to answers:

    run = steppe.train("photos", model="resnet18", minimizer="sam", epochs=5)
    steppe.write_report([run], "report.html")
    print(steppe.load(run).predict("x.jpg"))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from steppe.api import Classifier, Found, fit, load, train
    from steppe.config import RunConfig, StudyConfig, load_run_config, load_study_config, plan
    from steppe.errors import SteppeError
    from steppe.report import summarise, write_report
    from steppe.runs import Run, find_runs
    from steppe.studies import execute, run_study

_HOMES = {
    "Classifier": "api",
    "Found": "api",
    "fit": "api",
    "load": "api",
    "train": "api",
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
_ROOMS = ("cost", "data", "deploy", "evaluate", "geometry", "minimizers", "models", "report", "runs", "studies")

__all__ = [
    "Classifier",
    "Found",
    "Run",
    "RunConfig",
    "SteppeError",
    "StudyConfig",
    "execute",
    "find_runs",
    "fit",
    "load",
    "load_run_config",
    "load_study_config",
    "plan",
    "run_study",
    "summarise",
    "train",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """Import on first use: reading a run or writing a report does not wait for torch."""
    if name == "__version__":
        return import_module("importlib.metadata").version("steppe")
    if name in _ROOMS:
        return import_module(f"steppe.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'steppe' has no attribute {name!r}")
    return getattr(import_module(f"steppe.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """List what there is, imported or not."""
    return sorted({*__all__, *_ROOMS, "__version__", "__doc__"})
