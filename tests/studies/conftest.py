"""What tests of studies on Ray share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def cluster():
    """A local cluster of two CPUs."""
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield ray
    ray.shutdown()
