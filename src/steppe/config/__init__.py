"""What a run and a study are: frozen configurations, TOML both ways, and the hash that names a run."""

from steppe.config.measure import MeasureConfig
from steppe.config.objective import OBJECTIVE_DEFAULTS, ObjectiveConfig
from steppe.config.run import (
    MINIMIZER_DEFAULTS,
    OPTIMIZER_DEFAULTS,
    AugmentConfig,
    BudgetConfig,
    DataConfig,
    MinimizerConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
    derive_seed,
)
from steppe.config.section import Section
from steppe.config.study import (
    OF_THE_STUDY,
    ClaimConfig,
    PlannedRun,
    ScaleConfig,
    StudyConfig,
    at_scale,
    check_measure,
    choose,
    load_study_config,
    name_source,
    plan,
    study_cells,
)
from steppe.config.toml import dump_toml, leaves, load_run_config, merge, parse, read_toml

__all__ = [
    "MINIMIZER_DEFAULTS",
    "OBJECTIVE_DEFAULTS",
    "OF_THE_STUDY",
    "OPTIMIZER_DEFAULTS",
    "AugmentConfig",
    "BudgetConfig",
    "ClaimConfig",
    "DataConfig",
    "MeasureConfig",
    "MinimizerConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimizerConfig",
    "PlannedRun",
    "RunConfig",
    "ScaleConfig",
    "ScheduleConfig",
    "Section",
    "StudyConfig",
    "at_scale",
    "check_measure",
    "choose",
    "derive_seed",
    "dump_toml",
    "leaves",
    "load_run_config",
    "load_study_config",
    "merge",
    "name_source",
    "parse",
    "plan",
    "read_toml",
    "study_cells",
]
