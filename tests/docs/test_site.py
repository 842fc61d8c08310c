"""The site builds without a warning, and the notebooks run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from doc_pages import ROOT

NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))


@pytest.mark.slow
def test_the_site_builds(tmp_path):
    pytest.importorskip("mkdocs", reason="the documentation is built with the extra `docs`")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    commands = (tmp_path / "site/reference/cli.html").read_text()
    assert 'id="steppe-study-run"' in commands
    assert "--ascent-fraction" in commands
    reference = (tmp_path / "site/reference/minimizers.html").read_text()
    assert 'id="steppe.minimizers.LookSAM"' in reference
    assert 'id="steppe.minimizers.Minimizer.step"' in reference
    for page in (tmp_path / "site").rglob("*.html"):
        text = page.read_text()
        assert not re.search(r"<!-- (commands|method|settings|step) ?", text), page.name
        assert "fonts.googleapis" not in text, page.name


@pytest.mark.slow
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
