"""Studies: many runs that answer one question, their plan, their execution and their cost."""

from steppe.config.shipped import list_studies
from steppe.studies.compare import Cell, JudgedClaim, StudyComparison, compare_study, write_comparison
from steppe.studies.costs import Images, add_cost, describe_price, measure_cost
from steppe.studies.estimate import Estimate, estimate_runs
from steppe.studies.library import check_study, find_study
from steppe.studies.pipeline import add_measures, execute
from steppe.studies.pool import default_workers, describe, is_complete, known_threads, run_study, threads_for
from steppe.studies.published import Published, read_published
from steppe.studies.ray import run_study_on_ray
from steppe.studies.subjects import load_model

__all__ = [
    "Cell",
    "Estimate",
    "Images",
    "JudgedClaim",
    "Published",
    "StudyComparison",
    "add_cost",
    "add_measures",
    "check_study",
    "compare_study",
    "default_workers",
    "describe",
    "describe_price",
    "estimate_runs",
    "execute",
    "find_study",
    "is_complete",
    "known_threads",
    "list_studies",
    "load_model",
    "measure_cost",
    "read_published",
    "run_study",
    "run_study_on_ray",
    "threads_for",
    "write_comparison",
]
