"""A study's accuracies with what they cost, by matplotlib: a panel for each value of its first axis, a line a row."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from steppe.report.image_sets import deciding_accuracy
from steppe.report.numbers import MISSING, whole
from steppe.report.paper import _BLUE, _GREY, _ORANGE, _figure, plain
from steppe.report.rows import Row, join_labels, varying_axes

PANELS = 6
_LINE, _AROUND = 0.21, 0.75
"""Inches that a row takes, and that a panel takes beside its rows."""
LEAST_POINTS = 2.0
"""What a panel is wide, at the least, in points of accuracy."""


def draw_accuracy_and_cost(rows: Sequence[Row], title: str = "") -> Figure:
    """Draw the accuracy of every row, the best first: each seed, mean and deviation; gradients at the right.

    Args:
        rows: of a study; those without a finished run are left out, and those that others begin from, on other data.
        title: over the figure.
    """
    judged = deciding_accuracy(rows)
    rows = _of_one_question([row for row in rows if row.stat(judged).mean is not None])
    axes = sorted(varying_axes(rows), key=lambda axis: axis != "data")  # accuracies on other data are other figures
    among = Counter(row.labels.get(axes[0], "") for row in rows) if len(axes) > 1 else Counter([""])
    panels = list(among) if len(among) <= PANELS and min(among.values()) > 1 else [""]
    shown = axes[1:] if panels != [""] else axes
    groups = [[row for row in rows if panels == [""] or row.labels.get(axes[0], "") == panel] for panel in panels]
    columns = min(2, len(panels))
    lines = [groups[start : start + columns] for start in range(0, len(groups), columns)]
    heights = [_AROUND + _LINE * max(len(group) for group in line) for line in lines]
    figure = _figure(4.6 * columns, sum(heights) + 0.5)
    grid = figure.add_gridspec(len(lines), columns, height_ratios=heights)
    for number, (panel, group) in enumerate(zip(panels, groups, strict=True)):
        part = figure.add_subplot(grid[number // columns, number % columns])
        _draw_rows(part, group, judged, shown)
        part.set_title(plain(f"{axes[0]} {panel}" if panel[:1].isdigit() else panel), fontsize=9, loc="left")
    _align(figure.axes)
    figure.supxlabel("test accuracy, %" if judged == "test_accuracy" else "validation accuracy, %", fontsize=8)
    handles = [part.plot([], [], "o", color=color, markersize=5)[0] for color in (_BLUE, _ORANGE)]
    if len({_is_sharp(row) for row in rows}) > 1:
        names = ["plain", "sharpness-aware"]
        figure.legend(handles, names, loc="outside lower right", ncols=2, fontsize=7, frameon=False)
    figure.suptitle(textwrap.fill(plain(title), 58 * columns), fontsize=10)
    return figure


def _of_one_question(rows: Sequence[Row]) -> list[Row]:
    """Return the rows whose data is that of the study's most usual kind of row, by their labels."""
    kinds = [frozenset(axis for axis, label in row.labels.items() if label not in ("", MISSING)) for row in rows]
    usual = Counter(kinds).most_common(1)[0][0] if kinds else frozenset()
    asked = {row.config.data.name for row, kind in zip(rows, kinds, strict=True) if kind == usual}
    return [row for row in rows if row.config.data.name in asked]


def _draw_rows(part: Axes, rows: Sequence[Row], judged: str, shown: Sequence[str]) -> None:
    ranked = sorted(rows, key=lambda row: row.stat(judged).mean or 0.0)  # the axis counts from below
    for height, row in enumerate(ranked):
        stat, color = row.stat(judged), _ORANGE if _is_sharp(row) else _BLUE
        if judged == "test_accuracy":
            seeds = [100 * value for value in row.accuracies.values()]
            part.plot(seeds, [height] * len(seeds), "o", color=color, alpha=0.35, markersize=3, markeredgewidth=0)
        mean, deviation = 100 * (stat.mean or 0.0), 100 * (stat.std or 0.0)
        within = [[min(deviation, mean)], [max(0.0, min(deviation, 100 - mean))]]
        part.errorbar(
            mean,
            height,
            xerr=within if stat.std is not None else None,
            fmt="o",
            color=color,
            markersize=5,
            capsize=2,
            linewidth=1,
        )
    names = [join_labels(row, shown) for row in ranked]
    part.set_yticks(range(len(ranked)), [plain(n or r.config.model.name) for n, r in zip(names, ranked, strict=True)])
    part.set_ylim(-0.6, len(ranked) - 0.4)
    part.margins(x=0.08)
    low, high = part.get_xlim()
    if high - low < LEAST_POINTS:  # a hundredth of a point is not to look like a lead
        middle = (low + high) / 2
        part.set_xlim(middle - LEAST_POINTS / 2, middle + LEAST_POINTS / 2)
    part.xaxis.set_major_locator(MaxNLocator(6))
    part.tick_params(labelsize=7, length=2)
    part.grid(axis="x", alpha=0.3)
    part.grid(axis="y", alpha=0.12)
    right = part.secondary_yaxis("right")
    spent = [row.gradient_evaluations.mean for row in ranked]
    right.set_yticks(range(len(ranked)), [whole(value) if value else "" for value in spent])
    right.tick_params(labelsize=6, length=0, labelcolor=_GREY)
    part.text(1.0, 1.02, "gradients", transform=part.transAxes, fontsize=6, color=_GREY, ha="left")
    for side in ("top", "right"):
        part.spines[side].set_visible(False)
        right.spines[side].set_visible(False)


def _align(parts: Sequence[Axes]) -> None:
    """Give panels one axis where each stays readable: a point is then as wide in one as in the next."""
    ends = [part.get_xlim() for part in parts]
    low, high = min(end[0] for end in ends), max(end[1] for end in ends)
    if high - low <= 2 * min(end[1] - end[0] for end in ends):
        for part in parts:
            part.set_xlim(low, high)


def _is_sharp(row: Row) -> bool:
    return row.config.minimizer.name != "base"
