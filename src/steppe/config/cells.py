"""Cells of a study by their labels: "axis=label, axis=label" in text, and the measure of a cell or of several.

A label with a comma, a bracket or a quote in it stands in 'quotes'. `axis=*` averages over every cell that fits.
`axis=best` takes, with every seed, the cell of the highest validation accuracy: what a sweep would choose.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Labels = Mapping[str, str]

BEST = "best"
SEVERAL = ("*", BEST)
"""Labels that stand for every variant of an axis: their average, or the one that validates best."""


@dataclass(frozen=True)
class Measure:
    """A measure of one cell, or of several where a label is `*` or `best`."""

    name: str
    labels: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        """As it would be written."""
        return f"{self.name}[{show_labels(dict(self.labels))}]"

    def fits(self, labels: Labels) -> bool:
        """Whether a cell is meant."""
        return all(axis in labels and wanted in (*SEVERAL, labels[axis]) for axis, wanted in self.labels)

    @property
    def averages(self) -> bool:
        """Whether several cells are meant."""
        return any(wanted in SEVERAL for _, wanted in self.labels)

    @property
    def chosen_axes(self) -> list[str]:
        """The axes of which the best variant is taken."""
        return [axis for axis, wanted in self.labels if wanted == BEST]


class ClaimSyntaxError(ValueError):
    """The text is no claim or no list of labels; the message says why, and where in it."""


def pick_cells(measure: Measure, cells: Sequence[Labels]) -> list[Labels]:
    """Pick the cells that a measure means: all that fit; without `*` or `best`, one with just these labels wins.

    More than one cell for a measure that does not average is an ambiguity, for the caller to refuse.
    """
    fitting = [cell for cell in cells if measure.fits(cell)]
    if not measure.averages:
        exact = [cell for cell in fitting if len(cell) == len(measure.labels)]
        return exact or fitting
    return fitting


def parse_labels(text: str) -> dict[str, str]:
    """Read "axis=label, axis=label".

    Raises:
        ClaimSyntaxError: it cannot be read.
    """
    labels: dict[str, str] = {}
    for part in _PART.findall(text.strip()):
        before, equals, after = part.partition("=")
        axis, label = _unquote(before), _unquote(after)
        if not axis or not equals:
            raise ClaimSyntaxError(f"a label is expected here, as axis=label (at {part.strip()!r})")
        if not label:
            raise ClaimSyntaxError(f"the axis {axis!r} has no label")
        if axis in labels:
            raise ClaimSyntaxError(f"the axis {axis!r} is named twice")
        labels[axis] = label
    return labels


def show_labels(labels: Labels) -> str:
    """Write labels as `parse_labels` reads them."""
    return ", ".join(f"{axis}={_quote(label)}" for axis, label in labels.items())


_PART = re.compile(r"""(?:'[^']*'|"[^"]*"|[^,])+""")
"""What stands between two commas, except commas in quotes."""


def _unquote(word: str) -> str:
    """Return a label or an axis without its quotes; quotes and brackets within are refused."""
    word = word.strip()
    quoted = len(word) > 1 and word[0] in "'\"" and word[-1] == word[0]
    inner = word[1:-1] if quoted else word
    if word[0] in inner if quoted else re.search(r"""[\]\['"]""", inner):
        raise ClaimSyntaxError(f"a label with a comma, a bracket or a quote stands in 'quotes' (at {word!r})")
    return inner


def _quote(label: str) -> str:
    if not re.search(r"""[,\]\['"]""", label):
        return label
    return f'"{label}"' if "'" in label else f"'{label}'"
