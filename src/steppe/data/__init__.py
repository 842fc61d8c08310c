"""Data: sources, splits, and the device-resident loader."""

from steppe.data.dataset import Dataset, Source, Split, divide
from steppe.data.loader import Loader, Normalise, augment, in_order
from steppe.data.sources import DATASETS, data_root, find_named, load, read_npz

__all__ = [
    "DATASETS",
    "Dataset",
    "Loader",
    "Normalise",
    "Source",
    "Split",
    "augment",
    "data_root",
    "divide",
    "find_named",
    "in_order",
    "load",
    "read_npz",
]
