"""What stands first on the page: what became of the claims of each study, then what is most accurate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from steppe.report import findings
from steppe.report.findings import Sentence
from steppe.report.parts import Part
from steppe.report.published import sum_claims
from steppe.report.table import Row

_MOST_ANSWERS = 3
"""sentences about accuracies for each of several studies"""


def told_by_studies(
    parts: Sequence[Part], rows: Sequence[Row], published: Sequence[Mapping[str, Any]]
) -> tuple[list[Sentence], list[Sentence]]:
    """The headlines, and the sentences below them.

    A study asks a question, and its claims are the answer; so these lead where there are any.

    Args:
        parts: the studies.
        rows: the summary of all.
        published: what `published_parts` made of their claims.
    """
    claims = [one for one in published if one["claims"]]
    if len(parts) != 1:
        return _of_several(parts, rows, claims)
    answer, overall = parts[0].text("answer"), findings.overall(rows)
    said = [overall] if overall else findings.answers(rows)
    more = findings.answers(rows) if overall else findings.supports(rows)
    if answer:
        return [[(answer, False)]], [*more, *(one["sentence"] for one in claims)]
    return [*(one["sentence"] for one in claims), *said], more


def _of_several(
    parts: Sequence[Part], rows: Sequence[Row], claims: Sequence[Mapping[str, Any]]
) -> tuple[list[Sentence], list[Sentence]]:
    """What became of all claims first; then of each study its own claims, and what is most accurate in it."""
    if not rows:
        return [findings.headline(rows)], []
    finished = sum(row.finished for row in rows)
    total = [sum_claims(claims)] if claims else [[(f"{finished} runs", True), (" are finished.", False)]]
    out: list[Sentence] = []
    for part in parts:
        own = [row for row in rows if row.study == part.name]
        overall = findings.overall(own)
        said = [one["sentence"] for one in claims if one["name"] == part.name]
        said += [overall] if overall else findings.answers(own)[:_MOST_ANSWERS]
        out += [[(f"{part.name}: ", True), *sentence] for sentence in said]
    return total, out
