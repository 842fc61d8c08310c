"""How a comparison with published figures looks on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from steppe.config import name_source
from steppe.report.comparison import claim_interval
from steppe.studies import Cell, JudgedClaim, StudyComparison
from steppe.studies.claims import FAILS, HOLDS

_STYLES = {HOLDS: "green", FAILS: "red"}


def print_comparison(comparison: StudyComparison, console: Console) -> None:
    """Print every cell, then every claim, then how many held."""
    at = f" at scale {comparison.scale}" if comparison.scale else ""
    finished = f"{comparison.finished} of {comparison.runs} runs are finished"
    console.print(f"study {comparison.study}{at}: {finished}", markup=False, soft_wrap=True)
    compared = [cell for cell in comparison.cells if cell.published.measure]
    for place in dict.fromkeys((cell.published.seed, cell.published.table) for cell in compared):
        table = Table("row", "column", "published", "measured", "difference", box=None, header_style="bold")
        mine = [cell for cell in compared if (cell.published.seed, cell.published.table) == place]
        on = {f" (on {cell.published_on}, ours on {cell.measured_on})": None for cell in mine if cell.published_on}
        title = name_source(", ".join(filter(None, place))) + "".join(on)
        table.title, table.title_justify = Text(title), "left"
        for cell in mine:
            table.add_row(*(Text(word) for word in _cell(cell)))
        console.print(table)
    for cell in comparison.cells:
        if not cell.published.measure:
            p = cell.published
            at = name_source(", ".join(filter(None, (p.seed, p.table, p.row, p.column))))
            line = f"not compared: {at}: {_shown(p.value, p.unit)} ({p.note})"
            console.print(line, markup=False, soft_wrap=True)
    if comparison.claims:
        print_claims(comparison.claims, console)
    else:
        console.print("this study makes no claims")


def print_claims(claims: Sequence[JudgedClaim], console: Console, *, most: int | None = None) -> None:
    """Print how many claims hold, after every claim.

    Args:
        claims: with their verdicts.
        console: where to.
        most: more claims than this are only counted.
    """
    for claim in claims if most is None or len(claims) <= most else ():
        _print_claim(claim, console)
    counts = Counter(claim.verdict.verdict for claim in claims)
    words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    console.print(f"{len(claims)} claim{'s' if len(claims) > 1 else ''}: {words}", markup=False, soft_wrap=True)


def _cell(cell: Cell) -> tuple[str, ...]:
    p = cell.published
    place = (p.row, p.column)
    if cell.measured is None:
        return (*place, _shown(p.value, p.unit), f"– {cell.missing}", "")
    seeds = f" ({cell.seeds} of {cell.of_seeds} seeds)" if cell.seeds < cell.of_seeds else ""
    if cell.same is not None:
        return (*place, str(p.value), f"{cell.measured}{seeds}", "same" if cell.same else "differs")
    spread = f" ± {_number(cell.std)}" if cell.std else ""
    assert not isinstance(cell.measured, str)
    measured = f"{_number(cell.measured)}{spread}{seeds}"
    apart = "" if cell.difference is None else f"{cell.difference:+.4g}"
    return (*place, _shown(p.value, p.unit), measured, apart)


def _print_claim(claim: JudgedClaim, console: Console) -> None:
    v = claim.verdict
    line = Text(f"{v.verdict:>13}  ", style=_STYLES.get(v.verdict, "yellow"))
    line.append(claim.text, style="default")
    details = [v.reason] if v.reason else []
    if v.difference is not None:
        over = f" over {v.seeds} {'paired ' if v.paired else ''}seeds" if v.seeds and v.low is not None else ""
        details.insert(0, f"difference {claim_interval({'holds': claim.holds, **vars(v)})}{over}")
    if claim.seed:
        details.append(name_source(claim.seed))
    line.append(f" ({'; '.join(details)})" if details else "", style="dim")
    console.print(line, soft_wrap=True)


def _shown(value: float | str, unit: str) -> str:
    return value if isinstance(value, str) else f"{value:g} {unit}".strip()


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
