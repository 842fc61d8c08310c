"""Run folders made without training, and a browser for the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from report_runs import PLOTTED, make_run, make_study

from steppe.runs import Run


@pytest.fixture
def new_run(tmp_path: Path) -> Callable[..., Run]:
    """Make a run folder in a temporary folder."""
    return lambda **options: make_run(tmp_path / "runs", **options)


@pytest.fixture(scope="session")
def study_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Run], dict[str, Any]]:
    """The quickstart study, made once."""
    return make_study(tmp_path_factory.mktemp("study"))


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


@pytest.fixture
def show(browser):
    """Open a page with the network off; afterwards it must have said nothing to the console."""
    contexts, complaints = [], []

    def go(path, *, width=1280, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda r: complaints.append(r.url) if not r.url.startswith(("file:", "data:")) else None)
        page.goto(path.as_uri())
        page.wait_for_function(PLOTTED)
        return page

    yield go
    for context in contexts:
        context.close()
    assert complaints == []
