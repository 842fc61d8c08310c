"""The digits, read once."""

from __future__ import annotations

import pytest

from steppe import data
from steppe.config import DataConfig
from steppe.data import Dataset


@pytest.fixture(scope="session")
def digits() -> Dataset:
    """All of them; a test that wants fewer has a fixture of its own."""
    return data.load(DataConfig())
