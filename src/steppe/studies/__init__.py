"""Studies: many runs that answer one question, their plan, their execution and their cost."""

from steppe.config.shipped import list_studies
from steppe.studies.compare import Cell, JudgedClaim, StudyComparison, compare_study, write_comparison
from steppe.studies.costs import Images, add_cost, describe_price, measure_cost
from steppe.studies.estimate import Estimate, estimate_runs
from steppe.studies.execution import run_study
from steppe.studies.library import check_study, find_study
from steppe.studies.pipeline import add_measures, execute
from steppe.studies.published import Published, read_published
from steppe.studies.study_folder import describe, is_complete, known_threads
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
    "write_comparison",
]
