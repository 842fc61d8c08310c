"""What every test shares: one thread, so that tiny networks do not wait for each other's cores; and one browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

torch.set_num_threads(1)

FIRST = (
    *("test_many_processes.py", "test_pool.py", "test_sharing.py", "test_cli.py", "test_study_commands.py"),
    *("test_measuring_commands.py", "test_measuring_resumed.py"),
    *("test_loop.py", "test_resumption.py", "test_objectives.py", "test_contrastive.py"),
)
"""Files of few and slow tests: two workers take files in this order, and begun last they would leave one idle."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the slowest files first (`--no-loadscope-reorder` keeps them there)."""
    items.sort(key=lambda item: item.path.name not in FIRST)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium; without one the tests that need it are skipped, loudly."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="no browser: playwright is not installed")
    flags = "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync"
    with sync_api.sync_playwright() as driver:
        paths = [path for path in ("/usr/bin/chromium", "/usr/bin/chromium-browser") if Path(path).exists()]
        try:
            opened = driver.chromium.launch(
                executable_path=paths[0] if paths else None, args=[*flags.split(), "--no-first-run"]
            )
        except sync_api.Error as error:
            pytest.skip(f"no browser: the page is NOT tested, Chromium does not start: {str(error)[:200]}")
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def cluster():
    """A local cluster of two CPUs."""
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield ray
    ray.shutdown()
