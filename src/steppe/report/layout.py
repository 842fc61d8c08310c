"""The layout of rows in figures: a panel for each data set and model, a colour for each way of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steppe.report.numbers import MISSING
from steppe.report.rows import Row, join_labels, name_axis, name_row, varying_axes


@dataclass(frozen=True)
class Layout:
    """Where each row goes. `panel_of` and `series_of` are in the order of the rows."""

    panels: list[str]
    series: list[str]
    panel_of: list[str]
    series_of: list[str]
    panel_word: str
    """what the panels are, in the plural: "models" """


def lay_out(rows: Sequence[Row]) -> Layout:
    """Split the labels into panels and series.

    An axis is one of panels when moving along it alone changes the data or the model. Where nothing else varies, the
    panels become the series: a comparison of models alone is one panel with a colour for each.
    """
    studies = list(dict.fromkeys(row.study for row in rows))
    if len(studies) > 1:
        return _side_by_side(rows, studies)
    axes = varying_axes(rows)
    panel_axes = [axis for axis in axes if _changes_what_is_learned(axis, axes, rows)]
    series_axes = [axis for axis in axes if axis not in panel_axes]
    if not series_axes:
        panel_axes, series_axes = [], axes
    panel_of = [join_labels(row, panel_axes) or (MISSING if panel_axes else "") for row in rows]
    series_of = [(join_labels(row, series_axes) or MISSING) if series_axes else name_row(row, rows) for row in rows]
    words = [name_axis(axis).lower() for axis in panel_axes]
    return Layout(
        list(dict.fromkeys(panel_of)),
        list(dict.fromkeys(series_of)),
        panel_of,
        series_of,
        "models" if words == ["model"] else "data sets" if words == ["data"] else "settings",
    )


def _side_by_side(rows: Sequence[Row], studies: Sequence[str]) -> Layout:
    """Lay each study out by itself, with its panels named after it."""
    panel_of, series_of = [""] * len(rows), [""] * len(rows)
    for study in studies:
        own = [index for index, row in enumerate(rows) if row.study == study]
        inner = lay_out([rows[index] for index in own])
        for place, index in enumerate(own):
            panel_of[index] = " · ".join(filter(None, (study, inner.panel_of[place])))
            series_of[index] = inner.series_of[place]
    panels, series = (list(dict.fromkeys(names)) for names in (panel_of, series_of))
    return Layout(panels, series, panel_of, series_of, "settings")


def _changes_what_is_learned(axis: str, axes: Sequence[str], rows: Sequence[Row]) -> bool:
    others = [a for a in axes if a != axis]
    neighbours: dict[tuple[str | None, ...], set[str]] = {}
    for row in rows:
        learned = repr((row.config.data, row.config.model))
        neighbours.setdefault(tuple(row.labels.get(a) for a in others), set()).add(learned)
    return any(len(found) > 1 for found in neighbours.values())
