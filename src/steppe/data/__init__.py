"""Data: sources, splits, the loader and what it does to a batch, corruptions, and the sets that are only tested on."""

from steppe.config import cache_folder, data_root
from steppe.data.augment import Augment, Draws, Normalise
from steppe.data.corruptions import CORRUPTIONS, corrupt
from steppe.data.dataset import Dataset, Source, Split, divide, take_about, take_fraction
from steppe.data.evaluation import (
    VARIANTS,
    Variant,
    corrupted_in_order,
    find_corrupted,
    load_variant,
    read_corrupted,
)
from steppe.data.folder import Keeping
from steppe.data.learned import as_learned, check_unchanged, has_same_images, is_learned, list_changes
from steppe.data.loader import Loader, in_order, stream
from steppe.data.sources import DATASETS, find_named, load, read_npz
from steppe.data.storage import Files, Mapped, Progress, Store, map_files
from steppe.data.toys import TOYS, make_toy

__all__ = [
    "CORRUPTIONS",
    "DATASETS",
    "TOYS",
    "VARIANTS",
    "Augment",
    "Dataset",
    "Draws",
    "Files",
    "Keeping",
    "Loader",
    "Mapped",
    "Normalise",
    "Progress",
    "Source",
    "Split",
    "Store",
    "Variant",
    "as_learned",
    "cache_folder",
    "check_unchanged",
    "corrupt",
    "corrupted_in_order",
    "data_root",
    "divide",
    "find_corrupted",
    "find_named",
    "has_same_images",
    "in_order",
    "is_learned",
    "list_changes",
    "load",
    "load_variant",
    "make_toy",
    "map_files",
    "read_corrupted",
    "read_npz",
    "stream",
    "take_about",
    "take_fraction",
]
