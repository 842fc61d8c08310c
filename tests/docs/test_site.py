"""The site builds without a warning, and the notebooks run."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys

import pytest
from doc_pages import ROOT

NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built once."""
    pytest.importorskip("mkdocs", reason="the documentation is built with the extra `docs`")
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.slow
def test_what_is_read_from_the_code_is_on_the_pages(site):
    commands = (site / "reference/cli.html").read_text()
    assert 'id="steppe-study-run"' in commands
    assert "--ascent-fraction" in commands
    reference = (site / "reference/minimizers.html").read_text()
    assert 'id="steppe.minimizers.LookSAM"' in reference
    assert 'id="steppe.minimizers.Minimizer.step"' in reference
    assert "lambda_max.iterations" in (site / "measures/lambda_max.html").read_text()
    with (ROOT / "results" / "minimizer_step_h200.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == "resnet18@32"]
    pages = {"sam-quarter": "schedules", "looksam-k5": "looksam"}
    for row in rows:
        if row["implementation"] == "steppe-captured" and not row["method"].startswith("base"):
            page = site / f"methods/{pages.get(row['method'], row['method'])}.html"
            assert f"<td>{float(row['ms_median']):.2f}</td>" in page.read_text(), row["method"]
    assert "Wrap a base optimizer" not in reference
    for path in NOTEBOOKS:
        page = (site / f"notebooks/{path.stem}.html").read_text()
        assert f"jupyter lab {path.name}" in page
        assert "minimizer" in page
        assert json.loads((site / f"notebooks/{path.name}").read_text())["cells"]
    for page in site.rglob("*.html"):
        assert not re.search(r"<!-- (commands|method|settings|step|times|memory) ?", page.read_text()), page.name


@pytest.mark.long
def test_pages_open_from_a_file_without_a_network(site, browser):
    """No request, no complaint, nothing wider than a phone; the search finds."""
    pages = sorted(path for path in site.rglob("*.html") if path.name != "404.html")  # which a server alone shows
    assert len(pages) > 60
    complaints = []
    context = browser.new_context(viewport={"width": 390, "height": 844}, offline=True)
    page = context.new_page()
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda r: complaints.append(r.url) if not r.url.startswith(("file:", "data:")) else None)
    for path in pages:
        page.goto(path.as_uri())
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            complaints.append(f"{path.name} is wider than a phone")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto((site / "methods/sam.html").as_uri())
    page.locator(".md-search__input").click()
    page.locator(".md-search__input").press_sequentially("barrier", delay=30)
    page.locator(".md-search-result__link", has_text="Landscapes").first.wait_for(timeout=20_000)
    context.close()
    assert complaints == []


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path, tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat", reason="notebooks are run with nbclient")
    nbclient = pytest.importorskip("nbclient", reason="notebooks are run with nbclient")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MPLBACKEND", "agg")
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    printed = [
        o for cell in notebook.cells for o in cell.get("outputs", []) if o.output_type in ("stream", "display_data")
    ]
    assert printed
    assert not any(o.output_type == "error" for cell in notebook.cells for o in cell.get("outputs", []))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs(path):
    for cell in json.loads(path.read_text())["cells"]:
        assert not cell.get("outputs"), path.name
        assert cell.get("execution_count") is None


def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 3
