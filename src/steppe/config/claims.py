"""Claims: what a study says will come out, as a comparison of measures that can be checked.

    test_accuracy[model=ViT, training=SAM] > test_accuracy[model=ViT, training=AdamW] by 0.005
    time_s[training=SAM] / time_s[training=Adam] < 2.2
    test_accuracy[batch=split] = test_accuracy[batch=whole] within 0.005

A side is made of numbers and measures with + − * / and parentheses. A measure is a name, perhaps dotted, with labels
of a cell in brackets; a label with a comma, a bracket or a quote in it stands in 'quotes', and `axis=*` averages over
every cell that fits. `axis=best` takes, with every seed, the cell of the highest validation accuracy: what a sweep over
that axis would choose. The language is read by the few lines below: nothing is ever executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Labels = Mapping[str, str]
Comparison = Literal[">", ">=", "<", "<=", "="]

AVERAGE, BEST = "*", "best"
SEVERAL = (AVERAGE, BEST)
"""Labels that stand for every variant of an axis: their average, or the one that validates best."""


@dataclass(frozen=True)
class Number:
    """A number that stands in the claim."""

    value: float


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


@dataclass(frozen=True)
class Operation:
    """Two expressions, and what is done with them."""

    sign: str
    left: Expression
    right: Expression


Expression = Number | Measure | Operation


@dataclass(frozen=True)
class Claim:
    """A comparison. Of `>` and `<` the margin is how much, of `=` how near."""

    left: Expression
    sign: Comparison
    right: Expression
    margin: float = 0.0

    @property
    def measures(self) -> list[Measure]:
        """Every measure it names, each once."""
        return list(dict.fromkeys([*_measures(self.left), *_measures(self.right)]))

    @property
    def in_points(self) -> bool:
        """Whether its sides differ by points: they are made of accuracies and errors by + and −, or averages."""
        return _is_share(self.left) and _is_share(self.right)


class ClaimSyntaxError(ValueError):
    """The text is no claim; the message says why, and where in it."""


def parse_claim(text: str) -> Claim:
    """Read a claim.

    Args:
        text: such as "a[x=1] > b[x=2] + 0.01".

    Raises:
        ClaimSyntaxError: it cannot be read.
    """
    reader = _Reader(text)
    left = reader.expression()
    sign = reader.take(*_SIGNS)
    if sign is None:
        raise reader.error("a comparison is expected here: >, >=, <, <= or =")
    right = reader.expression()
    word = reader.take("within" if sign == "=" else "by")
    margin = reader.number() if word else 0.0
    if sign == "=" and not word:
        raise reader.error("of measured numbers, = needs how near: `= … within 0.01`")
    if reader.peek():
        raise reader.error("this does not belong here")
    claim = Claim(left, sign, right, margin)  # type: ignore[arg-type]
    if not claim.measures:
        raise ClaimSyntaxError("it compares no measure: write one as name[axis=label]")
    return claim


def parse_labels(text: str) -> dict[str, str]:
    """Read "axis=label, axis=label".

    Raises:
        ClaimSyntaxError: it cannot be read.
    """
    reader = _Reader(text)
    labels = reader.labels(end=None)
    return dict(labels)


def show_labels(labels: Labels) -> str:
    """Write labels as `parse_labels` reads them."""
    return ", ".join(f"{axis}={_quote(label)}" for axis, label in labels.items())


def pick_cells(measure: Measure, cells: Sequence[Labels]) -> list[Labels]:
    """The cells a measure means: all that fit; where it averages over nothing, one with just these labels comes first.

    More than one cell for a measure that does not average is an ambiguity, for the caller to refuse.
    """
    fitting = [cell for cell in cells if measure.fits(cell)]
    if not measure.averages:
        exact = [cell for cell in fitting if len(cell) == len(measure.labels)]
        return exact or fitting
    return fitting


_SIGNS = (">=", "<=", ">", "<", "=")
LONGEST, MOST_PARTS = 5000, 100
"""Characters of a claim, and numbers, measures, signs and parentheses in it, at the most: readers go into its depth."""
_TOKEN = re.compile(
    r"\s*(?P<token>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[A-Za-z_]\w*(?:\.\w+)*|>=|<=|[-−+*/()<>=\[\],])"
)
_LABEL = re.compile(r"""\s*(?:'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<bare>[^,\]\['"]*))\s*""")
_AXIS = re.compile(r"""\s*(?:'(?P<quoted>[^']*)'|(?P<bare>[^=,\]\['"]+?))\s*=""")


class _Reader:
    """Reads a text from left to right, one symbol ahead."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.parts = text, 0, 0
        if len(text) > LONGEST:
            raise self.error(f"a claim has at most {LONGEST} characters")

    def error(self, why: str) -> ClaimSyntaxError:
        rest = self.text[self.at :].strip()
        place = f"at {rest[:30]!r}" if rest else "at its end"
        return ClaimSyntaxError(f"{why} ({place}, character {self.at + 1})")

    def peek(self) -> str:
        if not self.text[self.at :].strip():
            return ""
        found = _TOKEN.match(self.text, self.at)
        if not found:
            raise self.error("this cannot be read")
        return found["token"]

    def take(self, *wanted: str) -> str | None:
        token = self.peek()
        if token not in wanted or not token:
            return None
        return self.advance()

    def advance(self) -> str:
        found = _TOKEN.match(self.text, self.at)
        assert found is not None
        self.at = found.end()
        return found["token"]

    def expression(self) -> Expression:
        left = self.term()
        while sign := self.take("+", "-", "−"):
            left = Operation("+" if sign == "+" else "-", left, self.term())
        return left

    def term(self) -> Expression:
        left = self.factor()
        while sign := self.take("*", "/"):
            left = Operation(sign, left, self.factor())
        return left

    def factor(self) -> Expression:
        self.parts += 1
        if self.parts > MOST_PARTS:
            raise self.error(f"a claim has at most {MOST_PARTS} parts")
        if self.take("-", "−"):
            return Operation("-", Number(0.0), self.factor())
        if self.take("("):
            inner = self.expression()
            if not self.take(")"):
                raise self.error("a ) is missing")
            return inner
        token = self.peek()
        if token[:1].isdigit() or token[:1] == ".":
            return Number(self.number())
        if not (token[:1].isalpha() or token[:1] == "_"):
            raise self.error("a number or a measure is expected here")
        return self.measure()

    def number(self) -> float:
        token = self.peek()
        if not (token[:1].isdigit() or token[:1] == "."):
            raise self.error("a number is expected here")
        return float(self.advance())

    def measure(self) -> Measure:
        name = self.advance()
        if not self.take("["):
            raise self.error(f"the measure {name!r} needs the labels of a cell: {name}[axis=label]")
        if self.take("]"):
            return Measure(name, ())
        return Measure(name, self.labels(end="]"))

    def labels(self, end: str | None) -> tuple[tuple[str, str], ...]:
        out: dict[str, str] = {}
        while self.text[self.at :].strip() or end:
            axis = _AXIS.match(self.text, self.at)
            if not axis:
                raise self.error("a label is expected here, as axis=label")
            self.at = axis.end()
            label = _LABEL.match(self.text, self.at)
            assert label is not None
            name = axis["quoted"] if axis["quoted"] is not None else axis["bare"]
            value = next(
                (label[k] for k in ("single", "double") if label[k] is not None), (label["bare"] or "").strip()
            )
            if not value:
                raise self.error(f"the axis {name!r} has no label")
            if name in out:
                raise self.error(f"the axis {name!r} is named twice")
            self.at = label.end()
            out[name] = value
            if end and self.take(end):
                break
            if not self.take(","):
                if not end and not self.text[self.at :].strip():
                    break
                raise self.error("a comma is missing" if not end else f"a comma or {end} is missing")
        return tuple(out.items())


def _measures(expression: Expression) -> Iterator[Measure]:
    if isinstance(expression, Measure):
        yield expression
    elif isinstance(expression, Operation):
        yield from _measures(expression.left)
        yield from _measures(expression.right)


def _is_share(expression: Expression) -> bool:
    """Whether an expression is a share of images, or a plain number."""
    if isinstance(expression, Operation):
        scaled = expression.sign == "/" and isinstance(expression.right, Number)  # an average of shares
        return (expression.sign in "+-" or scaled) and _is_share(expression.left) and _is_share(expression.right)
    return isinstance(expression, Number) or expression.name.endswith(("accuracy", "accuracy_gap", "error"))


def _quote(label: str) -> str:
    if not re.search(r"""[,\]\['"]""", label):
        return label
    return f'"{label}"' if "'" in label else f"'{label}'"
