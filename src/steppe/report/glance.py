"""The top of the page: one sentence, the table beside the chart, and the sentences below them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steppe.report import findings
from steppe.report.comparison import describe_all_claims
from steppe.report.findings import Sentence
from steppe.report.fitted import Search, candidate_table, tell_search
from steppe.report.image_sets import deciding_accuracy, split_by_test_set
from steppe.report.numbers import MISSING, compact, duration, percent, whole
from steppe.report.rows import Row, name_row
from steppe.report.significance import difference
from steppe.report.studies import StudyRuns
from steppe.report.tables import Cell

_MOST_ANSWERS = 3
"""sentences about accuracies for each of several studies"""
_MOST_ROWS = 6
"""rows of the table beside the chart"""


@dataclass(frozen=True)
class Glance:
    """What a reader sees without scrolling, beside the chart."""

    headline: Sentence
    more: list[Sentence]
    table: dict[str, Any]
    """`heads` as (text, kind); `rows` with `cells` and whether each is the `best`; their number in `total`; and whether
    the rows are `ranked` by their difference to the best"""


def sum_up(
    parts: Sequence[StudyRuns], rows: Sequence[Row], published: Sequence[Mapping[str, Any]], search: Search | None
) -> Glance:
    """Sum the runs up.

    Args:
        parts: the studies.
        rows: the summary of all.
        published: what `published_studies` made of their claims.
        search: the search that the runs belong to, if they do.
    """
    if search is not None:
        (head, *_), more = tell_search(search, rows)
        return Glance(head, more, candidate_table(search, rows))
    (head, *others), more = _tell_studies(parts, rows, published)
    return Glance(head, [*others, *more], _short_table(rows))


def _tell_studies(
    parts: Sequence[StudyRuns], rows: Sequence[Row], published: Sequence[Mapping[str, Any]]
) -> tuple[list[Sentence], list[Sentence]]:
    """Say what became of the claims first, where there are any: they answer a study's question."""
    claims = [one for one in published if one["claims"]]
    if len(parts) != 1:
        return _tell_several(parts, rows, claims)
    answer, overall = parts[0].text("answer"), findings.overall(rows)
    said = [overall] if overall else findings.answers(rows)
    more = findings.answers(rows) if overall else findings.supports(rows)
    if answer:
        return [[(answer, False)]], [*more, *(one["sentence"] for one in claims)]
    return [*(one["sentence"] for one in claims), *said], more


def _tell_several(
    parts: Sequence[StudyRuns], rows: Sequence[Row], claims: Sequence[Mapping[str, Any]]
) -> tuple[list[Sentence], list[Sentence]]:
    """Say what became of all claims, then of each study's own, and what is most accurate in it."""
    if not rows:
        return [findings.headline(rows)], []
    finished = sum(row.finished for row in rows)
    total = [describe_all_claims(claims)] if claims else [[(f"{finished} runs", True), (" are finished.", False)]]
    out: list[Sentence] = []
    for part in parts:
        own = [row for row in rows if row.study == part.name]
        overall = findings.overall(own)
        said = [one["sentence"] for one in claims if one["name"] == part.name]
        said += [overall] if overall else findings.answers(own)[:_MOST_ANSWERS]
        out += [[(f"{part.name}: ", True), *sentence] for sentence in said]
    return total, out


def _short_table(rows: Sequence[Row]) -> dict[str, Any]:
    """List the most accurate rows; of several test sets the best row of each; of a single row its figures."""
    sets = {name: [rows[index] for index in own] for name, own in split_by_test_set(rows).items()}
    if len(rows) == 1:
        return _figures_of(rows[0])
    if len(sets) > 1:
        return _best_of_each(sets)
    accuracy = deciding_accuracy(rows)
    known = sorted(
        (row for row in rows if row.stat(accuracy).mean is not None), key=lambda row: -(row.stat(accuracy).mean or 0.0)
    )
    tested = accuracy == "test_accuracy"
    best = findings.best_row(rows) if tested else None
    body = [
        {
            "cells": [
                Cell(name_row(row, rows), "label"),
                Cell(percent(row.stat(accuracy).mean, row.stat(accuracy).std, unit=""), "number"),
                Cell(duration(row.time_s.mean), "number"),
                *([_against(best, row)] if best is not None else []),
            ],
            "best": row is best,
        }
        for row in known[:_MOST_ROWS]
    ]
    heads = [("Row", "text"), ("Test acc. %" if tested else "Validation %", "number"), ("Time", "number")]
    heads += [("Difference to best", "text")] if best is not None else []
    return {"heads": heads, "rows": body, "total": len(rows), "ranked": best is not None}


def _against(best: Row, row: Row) -> Cell:
    """Say whether a row is significantly less accurate than the best."""
    if row is best:
        return Cell(MISSING, "text")
    found = difference(best, row)
    return Cell("one seed" if found.one_seed else "significant" if found.significant else "not significant", "text")


def _best_of_each(sets: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """List the most accurate row of each test set."""
    body = []
    for name, own in sets.items():
        if (best := findings.best_row(own)) is not None:
            accuracy = percent(best.test_accuracy.mean, best.test_accuracy.std, unit="")
            cells = [Cell(name, "label"), Cell(name_row(best, own), "text"), Cell(accuracy, "number")]
            body.append({"cells": cells, "best": False})
    heads = [("Test set", "text"), ("Most accurate", "text"), ("Test acc. %", "number")]
    return {"heads": heads, "rows": body[:_MOST_ROWS], "total": len(body), "ranked": False}


def _figures_of(row: Row) -> dict[str, Any]:
    """List the figures of a single row, a line each."""
    shown = [
        ("Test accuracy", percent(row.test_accuracy.mean, row.test_accuracy.std)),
        ("Validation accuracy", percent(row.val_accuracy.mean, row.val_accuracy.std)),
        ("Training time", duration(row.time_s.mean)),
        ("Gradient evaluations", whole(row.gradient_evaluations.mean)),
        ("Parameters", compact(row.parameters.mean)),
    ]
    body = [{"cells": [Cell(a, "label"), Cell(b, "number")], "best": False} for a, b in shown if b != MISSING]
    return {"heads": [("Figure", "text"), ("Value", "number")], "rows": body, "total": 1, "ranked": False}
