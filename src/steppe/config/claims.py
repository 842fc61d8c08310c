"""Claims: what a study says will come out, as a comparison of measures that can be checked.

    test_accuracy[model=ViT, training=SAM] > test_accuracy[model=ViT, training=AdamW] by 0.005
    time_s[training=SAM] / time_s[training=Adam] < 2.2
    test_accuracy[batch=split] = test_accuracy[batch=whole] within 0.005

A side combines numbers and measures with + - * / and parentheses. The labels in brackets are those of `config.cells`.
Python's parser reads the arithmetic. Only the nodes that `_read_side` names are accepted, and nothing is executed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass

from steppe.config.cells import ClaimSyntaxError, Measure, parse_labels


@dataclass(frozen=True)
class Operation:
    """Two expressions and the sign between them: + - * or /."""

    sign: str
    left: Expression
    right: Expression


Expression = float | Measure | Operation


@dataclass(frozen=True)
class Claim:
    """A comparison. Of `>` and `<` the margin is how much, of `=` how near. Each measure is listed once."""

    left: Expression
    sign: str
    right: Expression
    margin: float
    measures: list[Measure]


def parse_claim(text: str) -> Claim:
    """Read a claim such as "a[x=1] > b[x=2] + 0.01"; raise ClaimSyntaxError where it cannot be read."""
    if len(text) > LONGEST:
        raise ClaimSyntaxError(f"a claim has at most {LONGEST} characters")
    measures = {m.start(): Measure(m[1], tuple(parse_labels(m[2]).items())) for m in _MEASURE.finditer(text)}
    plain = _MEASURE.sub(lambda m: "_" * (len(m[0]) - 1) + " ", text)  # same length: positions in the text stay valid
    plain = re.sub(r"\s", " ", plain).replace("−", "-")
    if len(re.findall(r"[-+*/(]", plain)) > MOST_SIGNS:
        raise ClaimSyntaxError(f"a claim has at most {MOST_SIGNS} signs and parentheses")
    if wrong := _WRONG.search(plain):
        name = wrong["name"]
        why = f"the measure {name!r} needs the labels of a cell: {name}[axis=label]" if name else "this cannot be read"
        why = "a ] is missing, or 'quotes' around a label with [ ] or a quote in it" if wrong["open"] else why
        raise _error(why, text, wrong.start())
    form = _FORM.fullmatch(plain)
    if not form:
        raise _error("one comparison is expected between two sides: >, >=, <, <= or =", text, 0)
    if (form[2] == "=" and form[4] != "within") or (form[2] != "=" and form[4] == "within"):
        raise _error("= needs how near, as `= 1 within 0.01`; > and < take `by 0.01`", text, form.start(2))
    left, right = (_read_side(form[n], text, form.start(n), measures) for n in (1, 3))
    if not measures:
        raise ClaimSyntaxError("it compares no measure: write one as name[axis=label]")
    return Claim(left, form[2], right, float(form[5] or 0), list(dict.fromkeys(measures.values())))


def _read_side(side: str, text: str, start: int, measures: Mapping[int, Measure]) -> Expression:
    def read(node: ast.expr) -> Expression:
        match node:
            case ast.Name() if node.col_offset - 1 in measures:
                return measures[node.col_offset - 1]
            case ast.Constant(value=int() | float() as value):
                return float(value)
            case ast.UnaryOp(ast.USub(), operand):
                return Operation("-", 0.0, read(operand))
            case ast.BinOp(left, sign, right) if type(sign) in _SIGNS:
                return Operation(_SIGNS[type(sign)], read(left), read(right))
        raise _error("numbers and measures are expected here, with + - * / between them", text, node.col_offset - 1)

    try:
        return read(ast.parse(f"({' ' * start}{side})", mode="eval").body)  # at the position it has in the text
    except (SyntaxError, OverflowError) as error:
        why = "a ) is missing" if side.count("(") > side.count(")") else "this does not belong here"
        raise _error(why, text, max(start, (getattr(error, "offset", None) or 0) - 2)) from None


def _error(why: str, text: str, at: int) -> ClaimSyntaxError:
    place = f"at {text[at : at + 30].strip()!r}" if text[at:].strip() else "at its end"
    return ClaimSyntaxError(f"{why} ({place}, character {at + 1})")


LONGEST, MOST_SIGNS = 5000, 100  # what reads a claim goes into its depth
_SIGNS: Mapping[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_NAME, _NUMBER = r"(?<![\w.])[^\W\d]\w*(?:\.\w+)*", r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_MEASURE = re.compile(rf"""({_NAME})\s*\[((?:'[^']*'|"[^"]*"|[^\[\]'"])*)\]""")
_WRONG = re.compile(rf"(?!_+ |(?:by|within)\b)(?P<name>{_NAME})(?P<open>\s*\[)?|[^-+*/()<>=.\w ]|[^ -~]")
_FORM = re.compile(rf"([^<>=]*)(>=|<=|>|<|=)([^<>=]*?)(?: (by|within) +({_NUMBER}) *)?")
