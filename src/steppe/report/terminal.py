"""The summary in a terminal, or in a log file."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from steppe.report.findings import unbeaten
from steppe.report.numbers import compact, duration, loss, percent, shorten, whole
from steppe.report.table import Row, name_axis

_COLUMNS = ("Test acc %", "Param", "FLOPs\n/image", "Time\n/epoch", "Time", "Gradient\nevals", "Loss under\nnoise")
_DROPPED_FIRST = ("Time", "FLOPs\n/image", "Param", "Time\n/epoch", "Gradient\nevals")
_GAP = 2
_NARROWEST_LABEL = 6


def print_table(rows: Sequence[Row], console: Console) -> None:
    """Print one line a row: what it is, how accurate, what it cost, how flat.

    A star marks the rows that no other beats in both test accuracy and training time. A terminal that is too narrow
    loses columns, not digits; a file gets the whole table.
    """
    if not rows:
        console.print("no runs")
        return
    front = unbeaten(rows, "time_s")
    cells = [_cells(row, index in front) for index, row in enumerate(rows)]
    axes = list(rows[0].labels)
    width = console.width
    if not console.is_terminal:
        width = max(width, 100 + 16 * (len(axes) - 2))
        console = Console(file=console.file, width=width, color_system=None)  # print() alone cannot widen a console
    columns, room = _choose_columns(cells, len(axes), width)
    label_widths = _label_widths(rows, axes, room)

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", show_edge=False)
    for axis in axes:
        table.add_column(Text(shorten(name_axis(axis), label_widths[axis])), no_wrap=True)
    for name in columns:
        table.add_column(Text(name), justify="right", no_wrap=True, vertical="bottom")
    for index, (row, cell) in enumerate(zip(rows, cells, strict=True)):
        labels = [shorten(_one_line(row.labels[axis]), label_widths[axis]) for axis in axes]
        style = "bold" if index in front else ""
        table.add_row(*(Text(text, style=style) for text in [*labels, *(cell[name] for name in columns)]))
    console.print(table, crop=False)
    for note in _notes(rows, bool(front)):
        console.print(Text(note, style="dim"), soft_wrap=True)
    for row in rows:
        for run_id, reason in row.reasons.items():
            console.print(Text(f"! {_one_line(run_id)}: {_one_line(reason)}", style="yellow"), soft_wrap=True)


def _cells(row: Row, on_front: bool) -> dict[str, str]:
    accuracy = percent(row.test_accuracy.mean, row.test_accuracy.std, unit="")
    if row.test_accuracy.mean is None and not row.finished:
        accuracy = "unfinished" if row.unfinished else "failed"
    values = (
        accuracy + (" *" if on_front else "  "),
        compact(row.parameters.mean),
        compact(row.flops_per_image.mean),
        duration(row.time_per_epoch_s.mean),
        duration(row.time_s.mean),
        whole(row.gradient_evaluations.mean),
        loss(row.noise_loss.mean, row.noise_loss.std),
    )
    return dict(zip(_COLUMNS, values, strict=True))


def _choose_columns(cells: Sequence[dict[str, str]], axes: int, width: int) -> tuple[list[str], int]:
    """Leave out columns until labels have room; return the columns and the characters left for the labels."""
    columns = list(_COLUMNS)
    for dropped in (None, *_DROPPED_FIRST):
        columns = [name for name in columns if name != dropped]
        taken = sum(max(len(text) for c in cells for text in [c[name], *name.split("\n")]) for name in columns)
        room = width - taken - _GAP * (len(columns) + axes - 1)
        if room >= _NARROWEST_LABEL * axes:
            break
    return columns, max(room, _NARROWEST_LABEL * axes)


def _label_widths(rows: Sequence[Row], axes: Sequence[str], room: int) -> dict[str, int]:
    """Share the room among the labels: the short ones take what they need, the long ones split the rest."""
    need = {axis: max(len(_one_line(row.labels[axis])) for row in rows) for axis in axes}
    need = {axis: max(width, min(len(name_axis(axis)), 10)) for axis, width in need.items()}
    widths: dict[str, int] = {}
    for position, axis in enumerate(sorted(axes, key=lambda a: need[a])):
        widths[axis] = min(need[axis], room // (len(axes) - position))
        room -= widths[axis]
    return widths


def _notes(rows: Sequence[Row], marked: bool) -> list[str]:
    seeds = sorted({row.test_accuracy.n for row in rows if row.test_accuracy.n})
    notes = []
    if any(n > 1 for n in seeds):
        notes.append(f"± standard deviation over seeds ({' or '.join(map(str, seeds))} finished in a row)")
    elif seeds:
        notes.append("one seed per row: small differences may be chance")
    if marked and len(rows) > 1:
        notes.append("* no row of the same data is more accurate and faster")
    return notes


def _one_line(text: str) -> str:
    """Keep control characters out of the terminal."""
    return "".join(c if c.isprintable() else " " for c in text)
