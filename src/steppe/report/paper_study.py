"""Figures of several runs side by side, with one scale for all: the runs of a study, one a cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from steppe.report.paper import _figure, _numbers, draw_eigenvalues, draw_series


def draw_study(cells: Mapping[str, Mapping[str, Any]]) -> dict[str, Figure]:
    """Draw all that the cells of a study hold: name of the figure -> figure.

    Args:
        cells: name of a cell -> {"geometry": its `geometry.json`, "metrics": its epochs}.
    """
    figures: dict[str, Figure] = {}
    geometry = {name: cell.get("geometry", {}) for name, cell in cells.items()}
    squares = {name: found["landscape"] for name, found in geometry.items() if "landscape" in found}
    if squares:
        figures["landscapes"] = draw_landscapes(squares)
    curved = {name: found["lambda_max"]["parts"] for name, found in geometry.items() if "lambda_max" in found}
    if curved:
        figures["lambda_max"] = draw_eigenvalues(curved)
    active = {
        name: [values["active"] for part, values in found["norms"]["activations"].items() if part.startswith("block")]
        for name, found in geometry.items()
        if "norms" in found
    }
    if any(active.values()):
        figures["active_neurons"] = draw_series(active, "block, counted from 0", "share of active neurons")
    for key, label in (("train_loss", "training loss"), ("val_accuracy", "validation accuracy")):
        lines = {name: [record.get(key) for record in cell.get("metrics", [])] for name, cell in cells.items()}
        if any(any(value is not None for value in line) for line in lines.values()):
            figures[key] = draw_series(lines, "epoch, counted from 0", label)
    for key in ("rescaling_initial", "rescaling"):
        rescaled = {name: found[key] for name, found in geometry.items() if key in found}
        for case in ("weights", "weights_and_biases"):
            for kind in ("sam", "asam_weights", "asam_weights_eta", "asam_all", "asam_all_eta"):
                lines = {name: found[case]["sharp_loss"][kind] for name, found in rescaled.items()}
                if lines:
                    figures[f"{key}_{case}_{kind}"] = draw_series(lines, "rescaling", f"loss, {kind.replace('_', ' ')}")
    return figures


def draw_landscapes(found: Mapping[str, Mapping[str, Any]], columns: int = 4) -> Figure:
    """Contours of several landscapes with one scale of colours, so that they can be compared.

    Args:
        found: name -> what the measure `landscape` gave.
        columns: panels in a row, at the most.
    """
    losses = {name: _numbers(square["loss"]) for name, square in found.items()}
    finite = np.concatenate([loss[np.isfinite(loss)] for loss in losses.values()])
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    logarithmic = low > 0 and high / low > 10
    high = high if high > low else low + 1e-9
    levels = np.geomspace(low, high, 25) if logarithmic else np.linspace(low, high, 25)
    norm: Normalize = LogNorm(low, high) if logarithmic else Normalize(low, high)
    across = min(columns, len(found))
    down = math.ceil(len(found) / across)
    figure = _figure(2.5 * across + 0.8, 2.6 * down)
    grid = figure.subplots(down, across, squeeze=False)
    for axes in grid.flat[len(found) :]:
        axes.set_axis_off()
    drawn: Any = None
    for axes, (name, square) in zip(grid.flat, found.items(), strict=False):
        steps: Sequence[float] = square["steps"]
        shown = np.ma.masked_invalid(losses[name])
        drawn = axes.contourf(steps, steps, shown, levels=levels, cmap="viridis", norm=norm)
        axes.plot(0, 0, marker="+", color="white", markersize=8)
        axes.set(title=name, aspect="equal")
        axes.title.set_fontsize(8)
        axes.tick_params(labelsize=7)
    bar = figure.colorbar(drawn, ax=grid.ravel().tolist(), fraction=0.03, pad=0.02, format="%.3g")
    bar.set_ticks([float(level) for level in levels[::6]])
    bar.ax.minorticks_off()
    bar.set_label("loss" + (", logarithmic" if logarithmic else ""))
    return figure
