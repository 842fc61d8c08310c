"""Reading the documentation: its pages, their links, their code and the commands they name."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "dev/*.md", "docs/**/*.md", "studies/*/*.md", "results/*.md")
    for page in ROOT.glob(pattern)
)

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_code(text: str) -> str:
    """The prose: no fenced or indented blocks, no code spans."""
    text = _FENCE.sub("", text)
    text = re.sub(r"(?:^|\n\n)(?:    .*\n?)+", "\n\n", text)
    return re.sub(r"`[^`\n]+`", "``", text)


def anchors(page: Path) -> set[str]:
    """The places of a page that a link may name, as GitHub and mkdocs make them."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE):
        given = re.search(r"\{ #([\w-]+) \}$", heading)
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        found.add(given[1] if given else re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain)))
    return found


def python_steps(page: Path) -> Iterator[tuple[int, str]]:
    """Code of a page to run in order, with its line: its Python blocks, and what `<!-- first … -->` prepares unseen.

    A block after `<!-- not run: why -->` is left out.
    """
    text = page.read_text()
    pattern = r"<!-- first\n(?P<first>.*?)-->|(?P<not><!-- not run: [^\n]+ -->\n)?^```python[^\n]*\n(?P<code>.*?)^```$"
    for found in re.finditer(pattern, text, re.MULTILINE | re.DOTALL):
        if not found["not"]:
            group = "code" if found["code"] is not None else "first"
            yield text.count("\n", 0, found.start(group)) + 1, found[group]


def needed_packages(page: Path) -> list[str]:
    """The packages that a page's code needs beyond steppe's own: `<!-- needs: lightning -->`."""
    found = re.search(r"^<!-- needs: ([\w ]+) -->$", page.read_text(), re.MULTILINE)
    return found[1].split() if found else []


def shell_lines(page: Path) -> Iterator[str]:
    """Commands a page shows in its blocks: shell and indented ones, continued lines joined, remarks left away."""
    text = page.read_text()
    blocks = [code for language, code in _FENCE.findall(text) if language in ("bash", "sh", "console")]
    blocks += [textwrap.dedent(b) for b in re.findall(r"(?:^|\n)((?:    .+\n)+)", _FENCE.sub("", text))]
    for block in blocks:
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            yield re.sub(r"(^|\s)#\s.*", "", line).strip()


def code_spans(page: Path) -> list[str]:
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", _FENCE.sub("", page.read_text()))
