"""The search of a `steppe fit` folder: its moments, its candidates, and the mistakes of its winner.

A search leaves `fit.json` above its runs, and in the winner's folder `mistakes.json` and `mistakes.jpg`. All are
optional: an older folder, or one without pictures, has less to show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steppe.errors import RunError
from steppe.report.findings import Sentence
from steppe.report.numbers import duration, number, percent, whole
from steppe.report.pictures import PictureBudget, cut_row
from steppe.report.record import Record, class_names, dig
from steppe.report.rows import Row, name_row
from steppe.report.studies import StudyRuns
from steppe.report.tables import Cell
from steppe.runs import read_answers, read_json

KINDS = {"probe": "Probe", "fine-tuning": "Fine-tuning", "soup": "Soup", "trial": "Trial"}
"""How a candidate was made, and what the page calls it."""

_HOW = {
    "probe": "A probe is a linear classifier on the frozen features of a pretrained network.",
    "fine-tuning": "Fine-tuning goes on training the pretrained network itself.",
    "soup": "A soup averages the weights of several fine-tuned networks.",
    "trial": "A trial trains one configuration from scratch.",
}
_MOST_MISTAKES = 10
_MOST_CANDIDATES = 6


@dataclass(frozen=True)
class Moment:
    """A candidate of a search, at the time it was finished."""

    at_s: float
    kind: str
    words: str
    accuracy: float
    run: str

    @property
    def name(self) -> str:
        """The candidate without its kind: "fine-tuned resnet50, 224 px" is "resnet50, 224 px"."""
        return self.words.removeprefix("fine-tuned ")


@dataclass(frozen=True)
class Search:
    """What `fit.json` tells, as far as it is there."""

    moments: tuple[Moment, ...]
    best: str
    """the id of the winner's run; empty while the search goes on"""
    budget_s: float | None
    elapsed_s: float | None
    answer: str


def read_search(part: StudyRuns) -> Search | None:
    """Read the search that a part's runs belong to; None where they belong to none, or where it noted no moment.

    Args:
        part: runs with the folder of a search above them.
    """
    folders = {record.path.parent for record in part.records}
    if len(folders) != 1:
        return None
    path = folders.pop() / "fit.json"
    try:
        found = read_json(path) if path.is_file() else None
    except RunError:
        return None
    moments = _moments(dig(found, "moments"))
    if not moments:
        return None
    return Search(
        moments,
        str(dig(found, "best") or ""),
        number(dig(found, "budget_s")),
        number(dig(found, "elapsed_s")),
        str(dig(found, "answer") or ""),
    )


def _moments(listed: Any) -> tuple[Moment, ...]:
    """Return the moments that can be drawn, in the order of time."""
    out = []
    for one in listed if isinstance(listed, list) else []:
        at_s, accuracy = number(dig(one, "at_s")), number(dig(one, "accuracy"))
        if at_s is not None and accuracy is not None and 0 <= accuracy <= 1:
            words = [str(dig(one, key) or "") for key in ("kind", "words", "run")]
            out.append(Moment(at_s, words[0], words[1], accuracy, words[2]))
    return tuple(sorted(out, key=lambda moment: moment.at_s))


def chosen_row(search: Search, rows: Sequence[Row]) -> Row | None:
    """Return the row of the winner, once it has been tested."""
    return next((row for row in rows if search.best in row.run_ids and row.test_accuracy.mean is not None), None)


def tell_search(search: Search, rows: Sequence[Row]) -> tuple[list[Sentence], list[Sentence]]:
    """Say how accurate the winner is, and then how it was found.

    Args:
        search: of `read_search`.
        rows: the summary of its runs.

    Returns:
        The headline, and the sentences below it.
    """
    row = chosen_row(search, rows)
    leader = next((one for one in search.moments if one.run == search.best), None)
    leader = leader or max(search.moments, key=lambda one: one.accuracy)
    name = leader.name or (name_row(row, rows) if row else leader.run)
    known = len(search.moments)
    if row is None:
        head: Sentence = [(name, True), (f" leads so far: {percent(leader.accuracy)} of the validation images.", False)]
    else:
        images = f"{whole(row.test_images)} test images" if row.test_images else "the test images"
        head = [
            (name, True),
            (" gets ", False),
            (percent(row.test_accuracy.mean), True),
            (f" of {images} right.", False),
        ]
    of = f"the best of {known} candidates" if known > 1 else "the only candidate that fitted the budget"
    how = KINDS.get(leader.kind, leader.kind).lower()
    out: list[Sentence] = [
        [(f"It is {of}: {percent(leader.accuracy)} on validation images ({how}).", False)],
        [(f"It was ready after {duration(leader.at_s)}{_of_budget(search)}.", False)],
    ]
    return [head], out


def _of_budget(search: Search) -> str:
    if search.elapsed_s is None:
        return ""
    given = f" of {duration(search.budget_s)}" if search.budget_s else ""
    return f"; the search took {duration(search.elapsed_s)}{given}"


def candidate_table(search: Search, rows: Sequence[Row]) -> dict[str, Any]:
    """List the candidates of a search, the winner first and then the most accurate."""
    order = sorted(search.moments, key=lambda one: (one.run != search.best, -one.accuracy))
    several = len({one.kind for one in order}) > 1
    body = [
        {
            "cells": [
                Cell(one.name or one.run, "label", KINDS.get(one.kind, one.kind) if several else ""),
                Cell(percent(one.accuracy, unit=""), "number"),
                Cell(duration(one.at_s), "number"),
            ],
            "best": one.run == search.best,
        }
        for one in order[:_MOST_CANDIDATES]
    ]
    heads = [("Candidate", "text"), ("Validation %", "number"), ("Ready after", "number")]
    return {"heads": heads, "rows": body, "total": len(order), "ranked": False}


def explain_search(search: Search) -> list[str]:
    """Explain how the figures of a search are computed, a sentence each."""
    kinds = {one.kind for one in search.moments}
    out = [text for kind, text in _HOW.items() if kind in kinds]
    out.append("Each point is a candidate, at the second it was finished; the stepped line is the best so far.")
    if "probe" in kinds:
        out.append("A probe's accuracy is by cross-validation on all images that are not test images.")
    if kinds & {"fine-tuning", "soup"}:
        out.append("A fine-tuned network or a soup is judged on the validation images alone.")
    out.append("The winner alone is shown the test images, once, when nothing is left to decide.")
    out.append("The dashed line is its accuracy on them.")
    return out


def draw_search(search: Search, rows: Sequence[Row]) -> dict[str, Any]:
    """Collect what the page's script draws of a search."""
    row = chosen_row(search, rows)
    return {
        "kinds": [kind for kind in KINDS if any(one.kind == kind for one in search.moments)],
        "titles": KINDS,
        "moments": [
            {
                "at": round(one.at_s, 2),
                "accuracy": round(one.accuracy, 5),
                "kind": one.kind,
                "name": one.name or one.run,
                "best": one.run == search.best,
            }
            for one in search.moments
        ],
        "end": search.elapsed_s,
        "tested": None if row is None else row.test_accuracy.mean,
    }


def list_mistakes(records: Sequence[Record], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """List the most confident mistakes of each run that has them, with pictures where these are there.

    Args:
        records: the runs.
        names: what they are, by their ids, where that is worth saying.
    """
    budget, out = PictureBudget(), []
    for record in records:
        listed = record.mistakes.get("mistakes")
        if not isinstance(listed, list) or not all(isinstance(one, Mapping) for one in listed):
            continue
        classes = class_names([record])
        sources = cut_row(record.path / "mistakes.jpg", len(listed), budget)
        known = _wrong_pairs(record)
        entries = []
        for place, one in enumerate(listed[:_MOST_MISTAKES]):
            pair = tuple(int(v) if (v := number(one.get(key))) is not None else -1 for key in ("label", "answer"))
            confidence = number(one.get("confidence"))
            if confidence is None or min(pair) < 0 or (known is not None and pair not in known):
                continue
            label, answer = (classes[i] if i < len(classes) else str(i) for i in pair)
            entries.append(
                {
                    "label": label.replace("_", " "),
                    "answer": answer.replace("_", " "),
                    "confidence": f"{100 * confidence:.1f}\N{NO-BREAK SPACE}%",
                    "src": sources[place] if sources else None,
                }
            )
        if entries:
            name = names.get(record.id, "")
            out.append({"name": name, "entries": entries, "pictured": any(entry["src"] for entry in entries)})
    return [{**one, "name": one["name"] if len(out) > 1 else ""} for one in out]


def _wrong_pairs(record: Record) -> set[tuple[int, ...]] | None:
    """Return label and answer of each mistake in the run's answers; None where it kept none."""
    try:
        answers = read_answers(record.path)
    except RunError:
        return None
    if answers is None:
        return None
    return {(int(a), int(b)) for a, b in zip(answers.labels, answers.answers, strict=True) if a != b}
