"""The documentation's links lead somewhere, its Python runs, and the commands and flags it names exist."""

from __future__ import annotations

import csv
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from doc_pages import (
    PAGES,
    ROOT,
    anchors,
    code_spans,
    name_of,
    needed_packages,
    python_steps,
    shell_lines,
    without_code,
)

from steppe.cli.main import app
from steppe.config.keys import KEYS
from steppe.config.source import is_toml, read_source

LONG = {"docs/search.md"}
"""Pages whose code takes a minute."""

COMMAND = typer.main.get_command(app)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            wrong.append(target)
    assert not wrong


def _cases():
    for page in PAGES:
        if list(python_steps(page)):
            needed = needed_packages(page)
            marks = [pytest.mark.long] if name_of(page) in LONG or needed else []
            marks += [pytest.mark.filterwarnings("ignore")] if needed else []  # theirs are not ours to fix
            yield pytest.param(page, id=name_of(page), marks=marks)


@pytest.mark.parametrize("page", list(_cases()))
def test_python_blocks_run(page, tmp_path, monkeypatch):
    """All of a page's blocks, one after the other in one namespace, in an empty folder."""
    for package in needed_packages(page):
        pytest.importorskip(package, reason=f"{name_of(page)} needs {package}: pip install -e '.[integrations]'")
    lines: list[str] = []
    for line, code in python_steps(page):
        lines += [""] * (line - 1 - len(lines)) + code.splitlines()  # errors name the page's own lines
    monkeypatch.chdir(tmp_path)
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)  # timm looks up where a model was registered
    exec(compile("\n".join(lines), str(page), "exec"), module.__dict__)


def test_python_blocks_are_not_silently_left_out():
    """Every fenced Python block is either run or says why it is not."""
    for page in PAGES:
        text = page.read_text()
        shown = len(re.findall(r"^```python", text, re.MULTILINE))
        left_out = len(re.findall(r"^<!-- not run: \S.+ -->\n```python", text, re.MULTILINE))
        prepared = text.count("<!-- first\n")
        assert len(list(python_steps(page))) == shown - left_out + prepared, name_of(page)


# -- commands -------------------------------------------------------------------------------------------------------


def _commands(line: str) -> list[list[str]]:
    """The calls of `steppe` that a line shows, as lists of words: several in a row, pipes as alternatives."""
    if re.match(r"(torchrun|python) .* ?-m steppe ", line):
        line = "steppe " + line.split("-m steppe ", 1)[1]
    calls = []
    for part in re.split(r"(?:\s{2,}|; |&& )(?=steppe )", line):
        if part.startswith("steppe "):
            calls.append(part)
    found = []
    for call in calls:
        alternatives = call.split(" | ")
        words = shlex.split(alternatives[0].replace("[", "").replace("]", ""))
        found.append(words[1:])
        stem = words[1] if len(words) > 1 and words[1] == "study" else None
        for other in alternatives[1:]:
            more = shlex.split(other.replace("[", "").replace("]", ""))
            found.append([stem, *more] if stem else more)
    return found


def _resolve(words: list[str]):
    """The command that words begin with, and what is left of them."""
    command, rest = COMMAND, list(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        assert rest[0] in command.commands, f"there is no command {' '.join(words)!r}"
        command = command.commands[rest.pop(0)]
    return command, rest


def _spellings(command) -> set[str]:
    return {spelling for p in command.params for spelling in (*p.opts, *p.secondary_opts)} | {"--help"}


def _shown_commands():
    for page in PAGES:
        if page.name == "CHANGELOG.md":
            continue
        calls = [words for line in shell_lines(page) for words in _commands(line)]
        calls += [words for span in code_spans(page) for words in _commands(span)]
        for words in calls:
            if words and re.fullmatch(r"[a-z-]+", words[0]):
                yield pytest.param(words, id=f"{name_of(page)}: {' '.join(words)}")


@pytest.mark.parametrize("words", list(_shown_commands()))
def test_commands_exist(words):
    command, rest = _resolve([re.sub(r"\$\w+", "1", word) for word in words])
    known = _spellings(command)
    for word in rest:
        if word.startswith("-") and not re.fullmatch(r"-?[\d.]+", word):
            assert word.partition("=")[0] in known, f"{' '.join(words)!r}: there is no {word}"
    shown_only = re.search(r"…|[A-Z]{3,}|\bN\b|--help", " ".join(rest))
    if rest and not shown_only and not hasattr(command, "commands"):
        with command.make_context("steppe", rest) as context:  # values of the right type, nothing missing or left over
            if command.name == "train" and not is_toml(context.params["source"] or ""):
                read_source(context.params["source"], _overrides(context.params), where="the documentation")


def _overrides(params: dict[str, Any]) -> dict[str, Any]:
    """The configuration that `steppe train` would make of its flags."""
    found: dict[str, Any] = {}
    for key in KEYS:
        value = params[key.replace(".", "__")]
        if value is not None:
            section, _, last = key.rpartition(".")
            table = found
            for part in filter(None, section.split(".")):
                table = table.setdefault(part, {})
            table[last] = value
    return found


def test_flags_named_in_prose_exist():
    """Every `--flag` in a code span of the docs belongs to some command, ours or one that is shown."""

    def every(command):
        yield from _spellings(command)
        for child in getattr(command, "commands", {}).values():
            yield from every(child)

    others = {
        "--nproc-per-node",
        "--head",
        "--tiny",
        "--cpu",
        "--logdir",
        "--no-deps",
        "--backend-store-uri",
        "--version",
        *("--amp", "--amp-dtype", "--grad-accum-steps"),  # of timm\'s train.py
    }
    known = set(every(COMMAND)) | others
    unknown = {
        f"{name_of(page)}: {flag}"
        for page in PAGES
        for span in code_spans(page)
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", span)
        if flag not in known
    }
    assert not unknown


def test_make_targets_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        spans = [*code_spans(page), *shell_lines(page)]
        named = {found[1] for span in spans if (found := re.fullmatch(r"make ([a-z-]+)", span))}
        assert named <= targets, name_of(page)


@pytest.mark.slow
def test_a_script_that_registers_a_model_is_a_steppe_that_knows_it(tmp_path):
    """As docs/howto/own-model.md says."""
    (steps,) = (code for line, code in python_steps(ROOT / "docs/howto/own-model.md"))
    (tmp_path / "my_model.py").write_text(steps.split("config =")[0])
    (tmp_path / "mine.py").write_text("import my_model\nfrom steppe.cli import main\n\nmain()\n")
    command = [sys.executable, "mine.py", "train", "--model", "two_convolutions", "--epochs", "1", "-o", "run"]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120, env=environment)
    assert (tmp_path / "run" / "weights.safetensors").exists()


def test_figures_in_sentences_are_those_of_the_results():
    """Where a page repeats a figure of results/ it is marked, and the page in the repository has the figure too."""
    pytest.importorskip("mkdocs", reason="the hooks are those of the documentation's builder")
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs/hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    marked = {
        (name_of(page), *found.group("what", "text"))
        for page in PAGES
        for found in hooks.FIGURE.finditer(page.read_text())
    }
    assert {page for page, _, _ in marked} >= {"docs/faq.md", "docs/minimizers.md", "docs/methods/looksam.md"}
    assert [(page, what, text) for page, what, text in marked if hooks.figure(what) != text] == []
    for page in PAGES:
        begins = re.search(r"^ *<!-- (times|memory|relatives(?:-laptop)?)", page.read_text(), re.MULTILINE)
        assert not begins, "a line that begins so is HTML"
        assert page.read_text().count("<!-- end -->") == len(hooks.FIGURE.findall(page.read_text())), name_of(page)


def test_tables_of_captured_steps_are_those_of_the_results():
    """The tables of docs/minimizers.md and of the README, cell by cell."""
    with (ROOT / "results/minimizer_step_h200.csv").open() as file:
        times = {(r["model"], r["implementation"], r["method"]): float(r["ms_median"]) for r in csv.DictReader(file)}
    models = {"ResNet-18": "resnet18@32", "ViT 6": "vit-6-8-384@32", "WRN": "wrn-28-10@32", "Swin-T": "swin-t@224"}
    models["ViT-B"] = "vit-b-16@224"
    ours, peer, loop = "steppe-captured", "pytorch_optimizer", "loop"
    columns = {
        "| network | base |": [(ours, name) for name in ("base", "sam", "asam", "msam", "looksam-k5", "sam-quarter")]
        + [((peer, "sam"), (peer, "asam")), ((loop, "sam"), (loop, "asam"))],
        "| | base | SAM |": [(ours, name) for name in ("base", "sam", "asam", "looksam-k5")] + [(peer, "sam")],
    }
    text = (ROOT / "docs/minimizers.md").read_text() + (ROOT / "README.md").read_text()
    seen = 0
    for header, keys in columns.items():
        table = text[text.index(header) :].split("\n\n")[0].splitlines()[2:]
        for line in table:
            name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            (model,) = (model for start, model in models.items() if name.startswith(start))
            for cell, key in zip(cells, keys, strict=False):
                parts = zip(cell.split(" / "), key if isinstance(key[0], tuple) else [key], strict=True)
                for shown, wanted in parts:
                    value = times.get((model, *wanted))
                    places = len(shown.partition(".")[2])
                    assert shown == ("–" if value is None else f"{value:.{places}f}"), (model, wanted)
                    seen += 1
    assert seen == 5 * 10 + 4 * 5


def test_readme_has_at_most_150_lines():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_every_method_and_measure_has_a_page():
    from steppe.evaluate.measures import MEASURES as EVALUATE
    from steppe.geometry.measures import MEASURES as GEOMETRY
    from steppe.minimizers import METHODS

    texts = {path.stem: path.read_text() for path in (ROOT / "docs/methods").glob("*.md")}
    assert set(METHODS) - {"base"} <= set(texts)
    for name in set(METHODS) - {"base"}:
        assert f"<!-- method {name} -->" in texts[name]
    shown = " ".join(path.read_text() for path in Path(ROOT / "docs/measures").glob("*.md"))
    listed = set(" ".join(re.findall(r"<!-- settings ([\w ]+) -->", shown)).split())
    assert set(GEOMETRY) | set(EVALUATE) == listed | {"variants"}
