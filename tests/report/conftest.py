"""Run folders made without training, and a browser for the page."""

from __future__ import annotations

from collections.abc import Callable
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
