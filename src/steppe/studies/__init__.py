"""Studies: many runs that answer one question, their plan, their execution and their cost."""

from steppe.studies.costs import Images, add_cost, describe_price, measure_cost
from steppe.studies.estimate import Estimate, estimate_runs
from steppe.studies.library import find_study, list_studies
from steppe.studies.pipeline import add_measures, execute, load_model
from steppe.studies.pool import default_workers, is_complete, run_study, threads_for

__all__ = [
    "Estimate",
    "Images",
    "add_cost",
    "add_measures",
    "default_workers",
    "describe_price",
    "estimate_runs",
    "execute",
    "find_study",
    "is_complete",
    "list_studies",
    "load_model",
    "measure_cost",
    "run_study",
    "threads_for",
]
