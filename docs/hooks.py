"""What the documentation site takes from elsewhere, so that nothing is written twice.

- Pages that live outside docs/: the studies' READMEs, the changelog, CONTRIBUTING.
- Notebooks, each as a page to read and as a file to open.
- `<!-- commands -->` becomes the command-line reference, from the commands themselves.
- `<!-- method NAME -->` becomes a method's name, cost and defaults, from the registry.
- `<!-- step NAME -->` becomes a method's measured steps, from results/minimizer_step_h200.csv.
- What stands between `<!-- times NAME -->` and `<!-- end -->` becomes the range of a method's captured steps in base
  steps, `memory NAME MODEL` its peak memory, from the same file, and `relatives TRAINING` its accuracies at equal
  seconds, from results/relatives (`relatives-laptop TRAINING`: from there). The pages hold the figures too, for
  readers of the repository: `python docs/hooks.py` (as `make results` does) renews them, and a test compares them.
- `<!-- settings NAME … -->` becomes the settings of measures, from their tables.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

OUTSIDE = {
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    **{f"studies/{path.parent.name}.md": str(path.relative_to(ROOT)) for path in ROOT.glob("studies/*/README.md")},
    **{f"notebooks/{path.stem}.md": str(path.relative_to(ROOT)) for path in ROOT.glob("notebooks/*.ipynb")},
}
"""Place in the site -> place in the repository."""

FIGURE = re.compile(r"<!-- (?P<what>(?:times|memory|relatives|relatives-laptop) [^>]+?) -->(?P<text>[^<]*)<!-- end -->")
"""A figure in a sentence or a table."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/."""
    for place, source in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        if source.endswith(".ipynb"):
            files.append(File.generated(config, source, content=text))
            text = notebook(text, Path(source).name)
        files.append(File.generated(config, place, content=text))
    return files


def notebook(text: str, name: str) -> str:
    """A notebook, which is kept without outputs, as a page: its words and its code, and how to open it."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    title, _, rest = parts[0].partition("\n")
    opened = (
        f"*A notebook: [download it]({name}){{ download }}, then `pip install jupyterlab` and `jupyter lab {name}`.*"
    )
    return "\n\n".join([title, opened, rest, *parts[1:]])


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill the marked places and turn links between docs/ and the rest of the repository into links of the site."""
    uri = page.file.src_uri
    markdown = re.sub(r"^<!-- commands -->$", lambda _: "\n".join(commands()), markdown, flags=re.M)
    markdown = re.sub(r"^<!-- method (\w+) -->$", lambda found: method(found[1]), markdown, flags=re.M)
    markdown = re.sub(r"^<!-- step ([\w-]+) -->$", lambda found: steps(found[1]), markdown, flags=re.M)
    markdown = FIGURE.sub(lambda found: figure(found["what"]), markdown)
    markdown = re.sub(r"^<!-- settings ([\w ]+) -->$", lambda found: settings(found[1].split()), markdown, flags=re.M)
    source = ROOT / OUTSIDE.get(uri, f"docs/{uri}")
    return re.sub(r"\]\((?!\w+:|#)([^)#\s]+)", lambda found: "](" + _link(found[1], source, uri), markdown)


def _link(target: str, source: Path, uri: str) -> str:
    """A relative link of the repository as one of the site; others stay as they are."""
    path = (source.parent / target).resolve()
    if not path.is_relative_to(ROOT):
        return target
    place = str(path.relative_to(ROOT))
    brought_in = {origin: page for page, origin in OUTSIDE.items()}
    if uri.startswith("notebooks/") and place.endswith(".ipynb"):
        inside = place  # the file itself
    elif place in brought_in:
        inside = brought_in[place]
    elif place.startswith("docs/"):
        inside = place.removeprefix("docs/")
    else:
        return target  # mkdocs will complain
    return "../" * uri.count("/") + inside


# -- the command line -----------------------------------------------------------------------------------------------


def commands() -> Iterator[str]:
    """The command-line reference, in lines of Markdown."""
    from steppe.cli.main import app

    yield from _command(typer.main.get_command(app), "steppe")


def _command(command: Any, name: str) -> Iterator[str]:
    children = getattr(command, "commands", {})
    if name != "steppe":
        yield f"## {name}" if name.count(" ") == 1 else f"### {name}"
    yield "\n" + _plain(command.help or "")
    if not children:
        arguments = [_spelled(p) for p in command.params if _is_argument(p)]
        usage = " ".join([name, "[OPTIONS]", *(word.strip("`") for word in arguments)])
        yield f"\n```text\n{usage}\n```\n"
        yield from _parameters(command)
    for child, inner in children.items():
        yield from _command(inner, f"{name} {child}")


def _parameters(command: Any) -> Iterator[str]:
    panels: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.params:
        if parameter.hidden or "--help" in parameter.opts:
            continue
        panel = parameter.rich_help_panel or ("Arguments" if _is_argument(parameter) else "Options")
        panels.setdefault(panel, []).append((_spelled(parameter), _told(parameter)))
    for panel, rows in panels.items():
        yield f"\n**{panel}**\n\n| {'argument' if panel == 'Arguments' else 'flag'} | meaning |\n|---|---|"
        yield from (f"| {left} | {right} |" for left, right in rows)
    yield ""


def _is_argument(parameter: Any) -> bool:
    return not parameter.opts[0].startswith("-")


def _spelled(parameter: Any) -> str:
    """An argument's name, or an option's spellings and what it takes."""
    if _is_argument(parameter):
        name = parameter.metavar or parameter.name.upper()
        return f"`{name if parameter.required or name.startswith('[') else f'[{name}]'}`"
    spellings = " ".join(f"`{spelling}`" for spelling in [*parameter.opts, *parameter.secondary_opts])
    if parameter.is_flag:
        return spellings
    return f"{spellings} `{parameter.metavar or _kind(parameter)}`"


def _kind(parameter: Any) -> str:
    described = getattr(parameter, "type_descriptor", None)  # typer's own since it carries its own click
    kind = getattr(described, "annotation", None) or parameter.type.name
    inner = get_args(kind) or (kind,)
    name = getattr(inner[0], "__name__", str(inner[0])).upper()
    return {"STR": "TEXT", "INTEGER": "INT"}.get(name, name if name in ("INT", "FLOAT", "PATH") else "TEXT")


def _told(parameter: Any) -> str:
    told, default = _plain(parameter.help or ""), parameter.default
    shown = getattr(default, "value", default)
    if parameter.show_default and shown not in (None, False, "") and not callable(shown):
        told += f"; default: {shown}"
    return told.replace("|", "\\|")


def _plain(text: str) -> str:
    """Help text without rich's escapes."""
    return re.sub(r"\s+", " ", text.replace("\\[", "[")).replace("<", "&lt;").strip()


# -- tables of the package ------------------------------------------------------------------------------------------


def method(name: str) -> str:
    """What is known of a minimizer: its flag, class, cost and defaults."""
    from steppe import config
    from steppe.minimizers import METHODS, defaults_of

    made = METHODS[name]
    defaults = ", ".join(f"`{key}` {value}" for key, value in defaults_of(made).items() if value is not None)
    defaults += " (`steppe train`: 0.3 unless over SGD)" if name == "msam" else ""
    cost = config.METHODS[name].cost
    return f"`--minimizer {name}` · `steppe.minimizers.{made.__name__}` · {cost} · {defaults}\n{{ .facts }}"


def steps(name: str) -> str:
    """A table of a method's captured steps beside the base optimizer's."""
    rows = captured()
    base = {row["model"]: row for row in rows if row["method"] == "base"}
    lines = ["| network, batch | base, ms | this, ms | × base | peak memory, MiB |", "|---|---|---|---|---|"]
    for row in rows:
        if row["method"] == name:
            plain = base[row["model"]]
            milliseconds = f"{float(plain['ms_median']):.2f} | {float(row['ms_median']):.2f}"
            ratio = f"{float(row['ms_median']) / float(plain['ms_median']):.2f}"
            memory = f"{float(row['peak_memory_mib']):.0f}"
            lines.append(f"| {row['model']}, {row['batch']} | {milliseconds} | {ratio} | {memory} |")
    if len(lines) == 2:
        raise ValueError(f"results/minimizer_step_h200.csv has no captured steps of {name!r}")
    return "\n".join([*lines, "", "One H200, torch 2.11, bf16; `benchmarks/minimizer_step.py`."])


def renew_figures() -> None:
    """Write the marked figures of all pages anew."""
    outside = [ROOT / source for source in OUTSIDE.values() if source.endswith(".md")]
    for page in [*(ROOT / "docs").rglob("*.md"), *outside]:
        text = page.read_text(encoding="utf-8")
        renewed = FIGURE.sub(lambda found: f"<!-- {found['what']} -->{figure(found['what'])}<!-- end -->", text)
        if renewed != text:
            page.write_text(renewed, encoding="utf-8")
            print(f"renewed: {page.relative_to(ROOT)}")


def figure(what: str) -> str:
    """The figure that a mark asks for: `times NAME`, `memory NAME MODEL`, `relatives[-laptop] TRAINING`."""
    kind, _, rest = what.partition(" ")
    if kind in RELATIVES:
        return relatives(rest, kind)
    name, *model = rest.split()
    rows = [row for row in captured() if row["method"] == name and model in ([], [row["model"]])]
    if not rows:
        raise ValueError(f"results/minimizer_step_h200.csv has nothing for {what!r}")
    if kind == "memory":
        return f"{float(rows[0]['peak_memory_mib']):.0f}"
    ratios = [float(row["ratio_to_captured_base"]) for row in rows]
    return f"{min(ratios):.2f} – {max(ratios):.2f}"


RELATIVES = {"relatives": "small", "relatives-laptop": "laptop"}
"""Folder of results -> the scale of the study that lies there."""


def relatives(training: str, folder: str = "relatives") -> str:
    """A method's test accuracy at equal seconds beside the plain optimizer's, of the seeds that both have."""
    from steppe.config import at_scale, plan
    from steppe.studies import find_study

    study, where = find_study("relatives")
    accuracies: dict[tuple[str, str], dict[int, float]] = {}
    planned = plan(at_scale(study, RELATIVES[folder]), where=str(where))
    for run in planned:
        file = ROOT / "results" / folder / run.config.run_id / "summary.json"
        if file.is_file():
            found = accuracies.setdefault((run.labels["model"], run.labels["training"]), {})
            summary = json.loads(file.read_text(encoding="utf-8"))
            if summary.get("status") == "finished":
                found[run.config.seed] = summary["test"]["accuracy"]
    if not any(run.labels["training"] == training for run in planned):
        raise ValueError(f"relatives has no training {training!r}")
    texts = []
    for model in ("ResNet-18", "ViT"):
        its, plain = (accuracies.get((model, name), {}) for name in (training, "plain"))
        both = [(100 * its[seed], 100 * plain[seed]) for seed in sorted(its.keys() & plain.keys())]
        if both:
            ours, theirs = (sum(values) / len(both) for values in zip(*both, strict=True))
            seeds = "one seed" if len(both) == 1 else f"{len(both)} seeds"
            name = model if folder == "relatives" else model.partition("-")[0]  # there it is no ResNet-18
            texts.append(f"{name} {ours:.2f} % (plain {theirs:.2f} %, {seeds})")
    return ", ".join(texts) or "not measured yet"


def captured() -> list[dict[str, str]]:
    """The captured steps that were timed, one row for each network and method."""
    with (ROOT / "results/minimizer_step_h200.csv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["implementation"] == "steppe-captured"]


def settings(names: list[str]) -> str:
    """A table of measures' settings."""
    from steppe.evaluate.measures import MEASURES as EVALUATE
    from steppe.geometry.measures import MEASURES as GEOMETRY
    from steppe.measuring.values import show_allowed

    lines = ["| setting | default | with `--quick` | may be |", "|---|---|---|---|"]
    for name in names:
        measure = ({**EVALUATE, **GEOMETRY})[name]
        for key, value in measure.defaults.items():
            quick = _shown(measure.quick[key]) if key in measure.quick else ""
            allowed = show_allowed(measure.values_of(key))
            lines.append(f"| `{name}.{key}` | {_shown(value)} | {quick} | {allowed} |")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    renew_figures()
