"""The confusion matrix of each row, and the accuracy of each class.

Counts of the runs of a row are added up: a cell says how many test images of one class got the answer of another.
Most cells are empty, so a label's line is written as answer, count, answer, count, …. Where even that is too much
for a page (a thousand classes in many rows), the rarest mistakes are left out and the page says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from steppe.report.image_sets import name_test_sets
from steppe.report.numbers import number
from steppe.report.record import Record, class_names
from steppe.report.results import results_of, short, with_usual_settings
from steppe.report.rows import Row, name_row, spread

_MOST_CELLS = 150_000
"""mistakes of all rows together: about a megabyte of the page"""


def confusions(rows: Sequence[Row], groups: Sequence[Sequence[Record]]) -> dict[str, Any]:
    """Collect the confusion matrices: `confusions`, one entry for each row that has one, and their `class_names`.

    Args:
        rows: the summary.
        groups: the runs of each row.
    """
    names: dict[tuple[str, ...], int] = {}
    sets = name_test_sets(rows)
    counted = {index: tables for index, group in enumerate(groups) if (tables := _tables(group))}
    room = _MOST_CELLS // max(len(counted), 1)
    out = []
    for index, tables in counted.items():
        total = np.sum(tables, axis=0)
        stats = [spread([_recognised(table, label) for table in tables]) for label in range(len(total))]
        lines, fewest = _lines(total, room)
        out.append(
            {
                "row": index,
                "name": name_row(rows[index], rows),
                "set": sets[index],
                "seeds": len(tables),
                "classes": names.setdefault(class_names(groups[index], len(total)), len(names)),
                "sizes": total.sum(axis=1).tolist(),
                "accuracy": [[short(stat.mean), short(stat.std)] for stat in stats],
                "lines": lines,
                "fewest": fewest,
            }
        )
    return {"confusions": out, "class_names": [list(one) for one in names]}


def _tables(group: Sequence[Record]) -> list[np.ndarray]:
    """Return the confusion matrices of a row's runs, all of one size; a line is a label.

    They are measured by `steppe evaluate`; the winner of a search has the counts of its test.
    """
    found = [_table(results_of(record)["scores"].get("confusion")) for record in with_usual_settings(group, "scores")]
    if not any(table is not None for table in found):
        found = [_dense(record.mistakes.get("counts")) for record in group]
    tables = [table for table in found if table is not None]
    return [table for table in tables if table.shape == tables[0].shape]


def _table(lines: Any) -> np.ndarray | None:
    """Return a matrix of counts; None where this is none."""
    if not isinstance(lines, list) or len(lines) < 2:
        return None
    if not all(isinstance(line, list) and len(line) == len(lines) for line in lines):
        return None
    counts = [number(value) for line in lines for value in line]
    if any(count is None or count < 0 or count > 1e9 or count != int(count) for count in counts):
        return None
    return np.array(counts, dtype=np.int64).reshape(len(lines), len(lines))


def _dense(lines: Any) -> np.ndarray | None:
    """Return the matrix of lines that hold answer, count, …; None where this is none."""
    if not isinstance(lines, list) or not 2 <= len(lines) <= 5000:
        return None
    total = np.zeros((len(lines),) * 2, dtype=np.int64)
    for label, line in enumerate(lines):
        values = [number(value) for value in line] if isinstance(line, list) else [None]
        for answer, count in zip(values[::2], values[1::2], strict=False):
            if answer is None or count is None or not (0 <= answer < len(lines) and 0 <= count <= 1e9):
                return None
            total[label, int(answer)] = int(count)
    return total


def _recognised(table: np.ndarray, label: int) -> float | None:
    """Return the share of a class's images with the right answer; None where the class has no image."""
    images = table[label].sum()
    return float(table[label, label] / images) if images else None


def _lines(total: np.ndarray, room: int) -> tuple[list[list[int]], int]:
    """Return each label's answers as answer, count, …, and the fewest images that a listed mistake has."""
    wrong = ~np.eye(len(total), dtype=bool)
    counts = np.sort(total[wrong & (total > 0)])[::-1]
    fewest = int(counts[room]) + 1 if len(counts) > room else 1
    listed = (total >= fewest) | (~wrong & (total > 0))
    lines = [
        [int(value) for answer in np.flatnonzero(own) for value in (answer, line[answer])]
        for line, own in zip(total, listed, strict=True)
    ]
    return lines, fewest
