"""Models: timm's, and the small-image ones timm lacks, behind one `build`."""

from steppe.models.architecture import match_architecture, settle
from steppe.models.blocks import activations, blocks, count_depths, partitions
from steppe.models.build import build, load_weights, model_names, place
from steppe.models.fetch import fetch, fetch_original
from steppe.models.folding import fold_batchnorm
from steppe.models.freezing import freeze_all_but, head_parameters
from steppe.models.names import SMALL_MODELS
from steppe.models.normalisation import expected_statistics
from steppe.models.speed import SpeedNet
from steppe.models.weights import runs_beside, weights_sha256

__all__ = [
    "SMALL_MODELS",
    "SpeedNet",
    "activations",
    "blocks",
    "build",
    "count_depths",
    "expected_statistics",
    "fetch",
    "fetch_original",
    "fold_batchnorm",
    "freeze_all_but",
    "head_parameters",
    "load_weights",
    "match_architecture",
    "model_names",
    "partitions",
    "place",
    "runs_beside",
    "settle",
    "weights_sha256",
]
