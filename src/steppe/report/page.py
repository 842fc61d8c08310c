"""One self-contained HTML page about runs, with all numbers, the script and the styles inside it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from steppe.report import findings
from steppe.report.chart_data import CURVES, FLATNESS, PROGRESS, figure_data, known_costs
from steppe.report.comparison import published_studies
from steppe.report.facts import (
    count_troubles,
    describe_noise,
    describe_progress,
    list_troubles,
    overview_facts,
    run_card,
)
from steppe.report.fitted import draw_search, explain_search, list_mistakes, read_search
from steppe.report.glance import sum_up
from steppe.report.image_sets import split_by_test_set
from steppe.report.layout import lay_out
from steppe.report.measured_charts import BLOCKS, measured_data, settings_notes
from steppe.report.record import Record, read_records
from steppe.report.results import find_subjects
from steppe.report.rows import Row, name_row
from steppe.report.scalars import attack_table, every_scalar, figure_table
from steppe.report.studies import StudyRuns, summarise_studies
from steppe.report.tables import summary_table, verdict_matrix
from steppe.runs import Output, Run

_SCRIPTS = "base tables charts plots legend cost search curves flatness surface geometry robustness confusion attention"
_SCRIPTS += " scalars copy live start"
_STYLES = "page glance measured"

_MOST_SENTENCES = 6
"""about comparisons with the plain optimizer; the matrix below them shows every one"""

PAGE = Output("a page", re.compile(rb'\A[^\0]*<meta name="generator" content="steppe">'))
"""How a page of ours is known among the files of others."""


def write_report(
    runs: Sequence[Run],
    out: str | Path,
    *,
    title: str | None = None,
    study: Mapping[str, Any] | None = None,
    comparison: Mapping[str, Any] | None = None,
) -> Path:
    """Write the report of some runs as one HTML file that needs no network.

    Args:
        runs: the runs, in the order of the list.
        out: the file to write; an older page of ours is replaced in one step, anything else is left alone.
        title: the page's title; default: the study's, or one made from the runs.
        study: the content of a study's `study.json`.
        comparison: the content of a study's `compare.json`.

    Returns:
        The file that was written.
    """
    return write_page([StudyRuns(read_records(runs), study or {}, comparison or {})], out, title=title)


def write_page(parts: Sequence[StudyRuns], out: str | Path, *, title: str | None = None, force: bool = False) -> Path:
    """Write the report of one study or of several; see `write_report`. `force` replaces any plain file."""
    out = Path(out)
    PAGE.write(out, render(parts, title=title).encode("utf-8", "replace"), force=force)
    return out


def render(parts: Sequence[StudyRuns], *, title: str | None = None, version: str = "", bare: bool = False) -> str:
    """Fill the template.

    Args:
        parts: the runs, grouped by study.
        title: the page's title; default: the study's, or one made from the runs.
        version: of a page that is served and renews itself: what it was made from.
        bare: leave the script and the styles out, for a page that has them already.
    """
    records = [record for part in parts for record in part.records]
    rows = summarise_studies(parts)
    layout = lay_out(rows)
    images = {
        name: max((found for index in own if (found := rows[index].test_images)), default=None)
        for name, own in split_by_test_set(rows).items()
    }
    measured = [row for row in rows if row.test_accuracy.mean is not None or row.val_accuracy.mean is not None]
    comparisons = findings.compare(rows, layout)
    compared = findings.describe_comparisons(comparisons, layout.panel_word)
    subjects = find_subjects(rows, records)
    shown = measured_data(rows, records, layout, subjects)
    published = published_studies(parts)
    names = {run_id: name_row(row, rows) for row in rows for run_id in row.run_ids} if len(rows) > 1 else {}
    anchors = {record.id: f"run-{index}" for index, record in enumerate(records)}
    script = "" if bare else page_script()
    search = read_search(parts[0]) if len(parts) == 1 else None
    glance = sum_up(parts, rows, published, search)
    mistakes = list_mistakes(records, names)
    troubles = list_troubles(parts, names)
    has_curves = any(record.metrics for record in records)
    one = parts[0] if len(parts) == 1 else StudyRuns([])
    loader = PackageLoader("steppe.report", "templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["unbroken"] = _keep_together
    return environment.get_template("page.html.j2").render(
        title=title or one.text("title") or one.text("name") or _default_title(rows, parts),
        study_name=one.text("name"),
        question=one.text("question"),
        headline=glance.headline,
        glance=glance.table,
        search=None if search is None else {"answer": search.answer, "how": explain_search(search)},
        chart="search" if search else "cost" if len(measured) > 1 else "curves" if has_curves else "",
        mistakes=mistakes,
        statements=[
            *glance.more,
            *([] if measured else describe_progress(records, names)),
        ],
        empty=not records,
        facts=overview_facts(records, rows, images),
        published=published,
        verdicts=verdict_matrix(comparisons, layout),
        compared=compared if len(compared) <= _MOST_SENTENCES else [],
        table=summary_table(rows),
        has_curves=has_curves,
        has_flatness=sum(row.noise_loss.mean is not None for row in rows) > 1,
        has_accuracy=len(measured) > 1,
        noise=describe_noise(records),
        choices={"cost": known_costs(rows), "metric": CURVES, "progress": PROGRESS, "flatness": FLATNESS},
        sets=list(images),
        numbered_panels=list(enumerate(layout.panels)),
        panel_word=layout.panel_word,
        measured=shown,
        measured_panels=_measured_panels(shown, range(len(subjects)), layout.panels),
        attention_panels=_measured_panels(shown, [one["subject"] for one in shown["attention"]], layout.panels),
        has_geometry=any(shown[key] for key in ("landscapes", "lines", "betweens", "spectra", "blocks", "attention")),
        has_robustness=any(shown[key] for key in ("corruptions", "reliability")),
        block_choices={kind: text for kind, text in BLOCKS.items() if kind in shown["blocks"]},
        several_seeds=any(not subject.first for subject in subjects),
        notes=defaultdict(dict, settings_notes(subjects)),
        figures=figure_table(rows, records, subjects),
        attacks=attack_table(rows, records),
        troubles=troubles,
        notice=count_troubles(troubles),
        behind=[
            {
                "name": name_row(row, rows),
                "runs": [(anchors[i], s) for i, s in zip(row.run_ids, row.seeds, strict=True)],
            }
            for row in rows
        ],
        runs=[run_card(record, anchors[record.id], names.get(record.id, "")) for record in records],
        last_finished=_last_finished(records),
        css="" if bare else Markup("\n".join(_asset(f"styles/{name}.css") for name in _STYLES.split())),
        script=Markup(script),
        script_hash=f"'sha256-{_sha256(script)}'",
        version=version,
        blob=Markup(
            embed_json(
                figure_data(rows, records, layout)
                | shown
                | {"scalars": every_scalar(subjects), "search": None if search is None else draw_search(search, rows)}
            )
        ),
    )


def _keep_together(title: str) -> str:
    """Keep names such as CIFAR-10 on one line."""
    return re.sub(r"(?<=\w)-(?=\d)", "\N{NON-BREAKING HYPHEN}", title)


def page_script() -> str:
    """Join the parts of the page's script, in their order, in one scope."""
    parts = [_asset(f"scripts/{name}.js") for name in _SCRIPTS.split()]
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"


def embed_json(value: Any) -> str:
    """Write JSON that may stand inside a script element: nothing in it can end the element or the line."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _measured_panels(shown: Mapping[str, Any], subjects: Iterable[int], panels: Sequence[str]) -> list[tuple[int, str]]:
    """List the panels of some of the measured runs."""
    return [(index, panels[index]) for index in sorted({shown["subjects"][i]["panel"] for i in subjects})]


def _default_title(rows: Sequence[Row], parts: Sequence[StudyRuns]) -> str:
    if not rows:
        return "Nothing here yet"
    if len(parts) > 1:
        studies = sum(bool(part.about or part.comparison) for part in parts)
        return "One study, and other runs" if studies == 1 else f"{studies} studies"
    if len(rows) == 1:
        return f"{rows[0].config.model.name} on {rows[0].config.data.name.rstrip('/').rsplit('/', 1)[-1]}"
    return f"{len(rows)} configurations compared"


def _last_finished(records: Sequence[Record]) -> str:
    times = [str(record.summary["finished_at"]) for record in records if record.summary.get("finished_at")]
    return max(times, default="")[:16].replace("T", " ")


def _asset(name: str) -> str:
    return files("steppe.report").joinpath(name).read_text(encoding="utf-8")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
