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


@pytest.fixture(scope="session")
def tiny_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with weights of three tiny networks; see `small_pretrained`."""
    from small_pretrained import STATISTICS, put_weights

    return put_weights(tmp_path_factory.mktemp("weights"), *STATISTICS)


@pytest.fixture(scope="session")
def colour_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three classes of 15 colour images; see `small_pretrained`."""
    from small_pretrained import put_images

    return put_images(tmp_path_factory.mktemp("colours") / "images")


@pytest.fixture
def only_tiny_weights(tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No weights at hand but the tiny ones, and a cache of the test's own."""
    from huggingface_hub import constants

    monkeypatch.setenv("STEPPE_WEIGHTS", str(tiny_weights))
    monkeypatch.setenv("STEPPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STEPPE_DATA", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tiny_weights


@pytest.fixture(scope="module")
def cluster():
    """A local cluster of two CPUs."""
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield ray
    ray.shutdown()
