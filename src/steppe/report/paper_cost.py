"""Accuracy against what it cost, by matplotlib: one panel for each value of a study's first axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from steppe.report.sets import judged_by
from steppe.report.table import Row, varying_axes

PANELS = 6
_MARKS = "osD^vPX*<>"


def draw_accuracy_against_cost(rows: Sequence[Row], title: str = "") -> Figure:
    """Accuracy over gradient evaluations, with the standard deviation over seeds.

    Args:
        rows: of a study; those without a finished run are left out.
        title: over the figure.
    """
    judged = judged_by(rows)
    rows = [row for row in rows if row.stat(judged).mean is not None and row.gradient_evaluations.mean]
    axes = varying_axes(rows)
    panels = list(dict.fromkeys(row.labels.get(axes[0], "") for row in rows)) if len(axes) > 1 else [""]
    panels = panels if len(panels) <= PANELS else [""]
    names = list(dict.fromkeys(_name(row, axes, panels) for row in rows))
    figure = Figure(figsize=(max(3.4, 2.5 * len(panels)), 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    drawn: dict[str, Any] = {}
    for number, panel in enumerate(panels):
        part = figure.add_subplot(1, len(panels), number + 1)
        for row in rows:
            if panels != [""] and row.labels.get(axes[0], "") != panel:
                continue
            name = _name(row, axes, panels)
            place = names.index(name)
            drawn[name] = part.errorbar(
                row.gradient_evaluations.mean or 0.0,
                100 * (row.stat(judged).mean or 0.0),
                yerr=100 * (row.stat(judged).std or 0.0),
                fmt=_MARKS[place % len(_MARKS)],
                color=colormaps["tab10"](place % 10),
                markersize=5,
                capsize=2,
                linewidth=1,
            )
        part.set_title(f"{axes[0]} {panel}" if panel[:1].isdigit() else panel, fontsize=9)
        part.set_xlabel("gradient evaluations", fontsize=8)
        part.set_xmargin(0.15)
        part.xaxis.set_major_locator(MaxNLocator(4))
        part.xaxis.set_major_formatter(EngFormatter(sep=""))
        if number == 0:
            part.set_ylabel("test accuracy, %" if judged == "test_accuracy" else "validation accuracy, %", fontsize=8)
        part.tick_params(labelsize=7)
        part.grid(alpha=0.3)
        for side in ("top", "right"):
            part.spines[side].set_visible(False)
    if 1 < len(drawn) <= 24:
        where: dict[str, Any] = {"loc": "outside lower center", "ncols": 3, "fontsize": 7, "frameon": False}
        figure.legend(list(drawn.values()), list(drawn), **where)
    figure.suptitle(title, fontsize=10)
    return figure


def _name(row: Row, axes: Sequence[str], panels: Sequence[str]) -> str:
    used = axes[1:] if list(panels) != [""] else axes
    return " · ".join(row.labels.get(axis, "") for axis in used) or row.config.model.name
