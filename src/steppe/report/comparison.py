"""A study's `compare.json` as the page shows it: claims with their verdicts, published figures beside measured ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from steppe.config import name_source
from steppe.config.cells import ClaimSyntaxError
from steppe.config.claims import Expression, Operation, parse_claim
from steppe.report.numbers import MISSING, number, points
from steppe.report.studies import StudyRuns

_KINDS = {"holds": "better", "does not hold": "worse"}
_WORDS = {
    "holds": ("holds", "hold"),
    "does not hold": ("does not hold", "do not hold"),
    "undecided": ("is undecided", "are undecided"),
    "not measured yet": ("is not measured yet", "are not measured yet"),
    "not at this scale": ("cannot be judged at this scale", "cannot be judged at this scale"),
}
"""The verdict on one claim and on several, in the order of the sentence."""


def published_studies(parts: Sequence[StudyRuns]) -> list[dict[str, Any]]:
    """Return the comparison of each study that has one: `published_tables` with the study's name and title."""
    out = []
    for part in parts:
        finished = sum(record.status == "finished" for record in part.records if part.plans(record))
        found = published_tables(part.comparison, finished)
        if found is not None:
            said = {"name": part.name, "title": part.text("title") or part.name, "question": part.text("question")}
            out.append({**said, **found})
    return out


def describe_all_claims(tables: Sequence[Mapping[str, Any]]) -> list[tuple[str, bool]]:
    """Say how the claims of several studies together came out."""
    claims = [claim for table in tables for claim in table["claims"]]
    counts = Counter(str(claim["verdict"]) for claim in claims)
    return _sentence(counts, sum(bool(claim["source"]) for claim in claims))


def published_tables(comparison: Mapping[str, Any], finished: int) -> dict[str, Any] | None:
    """Return the comparison as tables of text; None where there is none.

    Args:
        comparison: the content of `compare.json`, as `steppe study compare` writes it.
        finished: runs that are finished now: where there were fewer then, the page says so.
    """
    claims = [_claim(c) for c in _mappings(comparison.get("claims"))]
    cells = _mappings(comparison.get("cells"))
    if not claims and not cells:
        return None
    counts = Counter(str(claim["verdict"]) for claim in claims)
    made_with = number(comparison.get("finished"))
    compared = [_cell(cell) for cell in cells if cell.get("measure")]
    return {
        "claims": claims,
        "counts": [(_chip(verdict, count), count, _KINDS.get(verdict, "")) for verdict, count in counts.most_common()],
        "sentence": _sentence(counts, sum(bool(claim["source"]) for claim in claims)),
        "cells": compared,
        "data": differing_data(cells),
        "left_out": [
            {"place": _place(cell), "value": _value(cell.get("value"), cell.get("unit")), "note": str(cell.get("note"))}
            for cell in cells
            if not cell.get("measure")
        ],
        "stale": made_with is not None and made_with < finished,
    }


def differing_data(cells: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """Return the data sets of published figures and of ours, where the two differ.

    Args:
        cells: of `compare.json`.
    """
    there, here = (
        ", ".join(dict.fromkeys(str(cell[key]) for cell in cells if cell.get(key)))
        for key in ("published_on", "measured_on")
    )
    return (there, here) if there and here else None


def _sentence(counts: Counter[str], published: int) -> list[tuple[str, bool]]:
    """Say how the claims came out: pieces of text, each with whether it is emphasised.

    Args:
        counts: how many claims have each verdict.
        published: how many of them were published somewhere; the others are the study's own.
    """
    total = sum(counts.values())
    what = "claim" if total == 1 else "claims"
    if published == total:
        what = f"published {what}"
    else:
        what += f" ({total - published} of them our own)" if published else " of our own"
    first, *others = [verdict for verdict in {**_WORDS, **counts} if counts[verdict] or verdict == "holds"]
    end = "".join(f", {_became(verdict, counts[verdict])}" for verdict in others)
    return [(f"Of {total} {what} ", False), (_became(first, counts[first]), True), (f"{end}.", False)]


def _chip(verdict: str, count: int) -> str:
    """Name a verdict as it stands beside its count: "2 hold", "3 undecided"."""
    return _WORDS[verdict][count > 1] if verdict in _KINDS else verdict


def _became(verdict: str, count: int) -> str:
    one, several = _WORDS.get(verdict, (verdict, verdict))
    return f"{count} {one if count == 1 else several}"


def claim_interval(claim: Mapping[str, Any]) -> str:
    """Show by how much a claim's sides differ, with the interval; accuracies and errors in percentage points."""
    difference, low, high = (number(claim.get(key)) for key in ("difference", "low", "high"))
    if difference is None:
        return MISSING
    shares = _in_points(str(claim.get("holds") or ""))
    shown = [MISSING if v is None else points(v) if shares else _number(v) for v in (difference, low, high)]
    unit = " points" if shares else ""
    return shown[0] + unit + ("" if low is None or high is None else f" ({shown[1]} to {shown[2]})")


def _in_points(holds: str) -> bool:
    """Whether a claim's sides differ by points: accuracies and errors with + and - between them, or averages."""
    try:
        claim = parse_claim(holds)
    except ClaimSyntaxError:
        return False  # compare.json is anybody's
    return _is_share(claim.left) and _is_share(claim.right)


def _is_share(expression: Expression) -> bool:
    """Whether an expression is a share of images, or a plain number."""
    if isinstance(expression, Operation):
        scaled = expression.sign == "/" and isinstance(expression.right, float)  # an average of shares
        return (expression.sign in "+-" or scaled) and _is_share(expression.left) and _is_share(expression.right)
    return isinstance(expression, float) or expression.name.endswith(("accuracy", "accuracy_gap", "error"))


def _claim(claim: Mapping[str, Any]) -> dict[str, Any]:
    verdict = str(claim.get("verdict") or "undecided")
    seeds = number(claim.get("seeds"))
    over = f"{seeds:.0f} {'paired ' if claim.get('paired') else ''}seed{'' if seeds == 1 else 's'}" if seeds else ""
    return {
        "text": str(claim.get("text") or ""),
        "holds": str(claim.get("holds") or ""),
        "source": name_source(str(claim.get("seed") or "")),
        "verdict": verdict,
        "kind": _KINDS.get(verdict, ""),
        "interval": claim_interval(claim),
        "difference_sort": number(claim.get("difference")),
        "details": "; ".join(filter(None, (over, str(claim.get("reason") or "")))),
    }


def _cell(cell: Mapping[str, Any]) -> dict[str, Any]:
    measured, std = cell.get("measured"), number(cell.get("std"))
    difference = number(cell.get("difference"))
    here, there = number(cell.get("seeds")), number(cell.get("of_seeds"))
    text = str(measured) if isinstance(measured, str) else MISSING
    if (value := number(measured)) is not None:
        text = _number(value) + (f" ± {_number(std)}" if std else "")
    if cell.get("missing"):
        text = f"{MISSING} {cell['missing']}"
    same = cell.get("same")
    said = {True: "same", False: "differs"}.get(same, "") if isinstance(same, bool) else ""
    return {
        "source": name_source(" ".join(filter(None, (str(cell.get("seed") or ""), str(cell.get("table") or ""))))),
        "row": str(cell.get("row") or ""),
        "column": str(cell.get("column") or ""),
        "published": _value(cell.get("value"), cell.get("unit")),
        "published_sort": number(cell.get("value")),
        "measured": text,
        "measured_sort": number(measured),
        "difference": said if difference is None else _signed(difference),
        "difference_sort": difference,
        "seeds": f"{here:.0f} of {there:.0f}" if here is not None and there and here < there else f"{here or 0:.0f}",
        "note": str(cell.get("note") or ""),
    }


def _place(cell: Mapping[str, Any]) -> str:
    return name_source(", ".join(str(cell[key]) for key in ("seed", "table", "row", "column") if cell.get(key)))


def _value(value: Any, unit: Any) -> str:
    known = number(value)
    return f"{_number(known)} {unit or ''}".strip() if known is not None else str(value)


def _number(value: float) -> str:
    return f"{value:.4g}".replace("-", "−") if abs(value) < 1e4 else f"{value:,.0f}".replace("-", "−")


def _signed(value: float) -> str:
    return _number(value) if value <= 0 else f"+{_number(value)}"


def _mappings(values: Any) -> list[Mapping[str, Any]]:
    return [value for value in values if isinstance(value, Mapping)] if isinstance(values, list) else []
