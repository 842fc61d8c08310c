"""Make `cases` (shared by all tests) and `reference` importable, and keep torch to one thread."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
