"""The summary in a terminal, or in a log file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from steppe.report.findings import unbeaten
from steppe.report.image_sets import deciding_accuracy
from steppe.report.numbers import compact, duration, loss, percent, shorten, whole
from steppe.report.rows import Row, join_columns, label_columns

_VALIDATION, _AUGMENTED = "Val. acc %", "with\nTTA %"
_COLUMNS = (
    *(_VALIDATION, "Test acc %", _AUGMENTED, "Param", "FLOPs\n/image", "Time\n/epoch", "Time", "Gradient\nevals"),
    "Loss under\nnoise",
)
_DROPPED_FIRST = ("Time", "FLOPs\n/image", "Param", "Time\n/epoch", "Gradient\nevals", "Loss under\nnoise")
_GAP = 2
_NARROWEST_LABEL = 6
_NARROWEST_NAME = 24


def print_table(rows: Sequence[Row], console: Console) -> None:
    """Print one line a row: what it is, how accurate, what it cost, how flat; the rows of each study by themselves.

    A star marks the rows that no other beats in both accuracy and training time. The trials of a search are compared by
    their validation accuracy, other rows by that on the test images. A terminal that is too narrow loses columns, not
    digits; a file gets the whole table.
    """
    if not rows:
        console.print("no runs")
        return
    studies = list(dict.fromkeys(row.study for row in rows))
    for study in studies:
        if len(studies) > 1:
            console.print(Text(f"\n{_one_line(study)}", style="bold"))
        _print_rows([row for row in rows if row.study == study], console)
    for note in _notes(rows):
        console.print(Text(note, style="dim"), soft_wrap=True)
    for row in rows:
        for run_id, reason in row.reasons.items():
            console.print(Text(f"! {_one_line(run_id)}: {_one_line(reason)}", style="yellow"), soft_wrap=True)


def _print_rows(rows: Sequence[Row], console: Console) -> None:
    front = unbeaten(rows, "time_s") if len(rows) > 1 else set()
    by_validation = deciding_accuracy(rows) == "val_accuracy"
    hidden = set() if by_validation else {_VALIDATION}
    hidden |= set() if any(row.test_accuracy_tta.n for row in rows) else {_AUGMENTED}
    cells = [_cells(row, index in front, by_validation, hidden) for index, row in enumerate(rows)]
    labels = label_columns(rows)
    width = console.width
    if not console.is_terminal:
        width = max(width, 100 + 16 * (len(labels) - 2))
        console = Console(file=console.file, width=width, color_system=None)  # print() alone cannot widen a console
    columns, room = _choose_columns(cells, labels, width)
    if room < _least_room(labels):
        labels = join_columns(rows)
        columns, room = _choose_columns(cells, labels, width)
    label_widths = _label_widths(labels, max(room, _least_room(labels)))

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", show_edge=False)
    for name in labels:
        table.add_column(Text(shorten(name, label_widths[name])), no_wrap=True)
    for name in columns:
        table.add_column(Text(name), justify="right", no_wrap=True, vertical="bottom")
    for index, cell in enumerate(cells):
        words = [shorten(_one_line(own[index]), label_widths[name]) for name, own in labels.items()]
        style = "bold" if index in front else ""
        table.add_row(*(Text(text, style=style) for text in [*words, *(cell[name] for name in columns)]))
    console.print(table, crop=False)


def _cells(row: Row, on_front: bool, by_validation: bool, hidden: set[str]) -> dict[str, str]:
    judged, tested = (
        (row.val_accuracy if by_validation else row.test_accuracy),
        percent(row.test_accuracy.mean, unit=""),
    )
    accuracy = percent(judged.mean, judged.std, unit="")
    if judged.mean is None and not row.finished:
        accuracy = "unfinished" if row.unfinished else "failed"
    accuracy += " *" if on_front else "  "
    values = (
        *((accuracy, tested) if by_validation else ("", accuracy)),
        percent(row.test_accuracy_tta.mean, row.test_accuracy_tta.std, unit=""),
        compact(row.parameters.mean),
        compact(row.flops_per_image.mean),
        duration(row.time_per_epoch_s.mean),
        duration(row.time_s.mean),
        whole(row.gradient_evaluations.mean),
        loss(row.noise_loss.mean, row.noise_loss.std),
    )
    return {name: text for name, text in zip(_COLUMNS, values, strict=True) if name not in hidden}


def _choose_columns(
    cells: Sequence[dict[str, str]], labels: Mapping[str, Sequence[str]], width: int
) -> tuple[list[str], int]:
    """Leave out columns until labels have room; return the columns and the characters left for the labels."""
    columns = list(cells[0])
    for dropped in (None, *_DROPPED_FIRST):
        columns = [name for name in columns if name != dropped]
        taken = sum(max(len(text) for c in cells for text in [c[name], *name.split("\n")]) for name in columns)
        room = width - taken - _GAP * (len(columns) + len(labels) - 1)
        if room >= _least_room(labels):
            break
    return columns, room


def _least_room(labels: Mapping[str, Sequence[str]]) -> int:
    """Return the room that labels need; a single column of joined ones needs more."""
    if len(labels) > 1:
        return _NARROWEST_LABEL * len(labels)
    return min(_NARROWEST_NAME, max(len(text) for own in labels.values() for text in own))


def _label_widths(labels: Mapping[str, Sequence[str]], room: int) -> dict[str, int]:
    """Share the room among the labels: the short ones take what they need, the long ones split the rest."""
    need = {name: max([min(len(name), 10), *(len(_one_line(text)) for text in own)]) for name, own in labels.items()}
    widths: dict[str, int] = {}
    for position, name in enumerate(sorted(labels, key=lambda own: need[own])):
        widths[name] = min(need[name], room // (len(labels) - position))
        room -= widths[name]
    return widths


def _notes(rows: Sequence[Row]) -> list[str]:
    seeds = sorted({n for row in rows if (n := row.test_accuracy.n or row.val_accuracy.n)})
    notes = []
    if any(n > 1 for n in seeds):
        notes.append(f"± standard deviation over seeds ({' or '.join(map(str, seeds))} finished in a row)")
    elif seeds:
        notes.append("one seed per row: small differences may be chance")
    if len(rows) > 1 and unbeaten(rows, "time_s"):
        notes.append("* no row of the same data is more accurate and faster")
    return notes


def _one_line(text: str) -> str:
    """Keep control characters out of the terminal."""
    return "".join(c if c.isprintable() else " " for c in text)
