"""Studies: many runs that answer one question, their plan, their execution and their cost."""

from steppe.studies.estimate import Estimate, estimate_runs
from steppe.studies.library import find_study, list_studies
from steppe.studies.pipeline import add_measures, execute, load_model
from steppe.studies.pool import default_workers, is_complete, run_study, threads_for

__all__ = [
    "Estimate",
    "add_measures",
    "default_workers",
    "estimate_runs",
    "execute",
    "find_study",
    "is_complete",
    "list_studies",
    "load_model",
    "run_study",
    "threads_for",
]
