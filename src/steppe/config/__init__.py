"""What a run and a study are: frozen configurations, TOML both ways, and the hash that names a run."""

from steppe.config.folders import cache_folder, data_root, search_folder, use_data_root
from steppe.config.measure import MeasureConfig
from steppe.config.minimizer import METHODS, MINIMIZER_DEFAULTS, Method, MinimizerConfig
from steppe.config.objective import OBJECTIVE_DEFAULTS, ObjectiveConfig
from steppe.config.pretrained import PRETRAINED, Package, Pretrained, available, describe_file, locate, weights_folders
from steppe.config.run import (
    OPTIMIZER_DEFAULTS,
    AugmentConfig,
    BudgetConfig,
    DataConfig,
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
    "METHODS",
    "MINIMIZER_DEFAULTS",
    "OBJECTIVE_DEFAULTS",
    "OF_THE_STUDY",
    "OPTIMIZER_DEFAULTS",
    "PRETRAINED",
    "AugmentConfig",
    "BudgetConfig",
    "ClaimConfig",
    "DataConfig",
    "MeasureConfig",
    "Method",
    "MinimizerConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimizerConfig",
    "Package",
    "PlannedRun",
    "Pretrained",
    "RunConfig",
    "ScaleConfig",
    "ScheduleConfig",
    "Section",
    "StudyConfig",
    "at_scale",
    "available",
    "cache_folder",
    "check_measure",
    "choose",
    "data_root",
    "derive_seed",
    "describe_file",
    "dump_toml",
    "leaves",
    "load_run_config",
    "load_study_config",
    "locate",
    "merge",
    "name_source",
    "parse",
    "plan",
    "read_toml",
    "search_folder",
    "study_cells",
    "use_data_root",
    "weights_folders",
]
