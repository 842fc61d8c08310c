"""Figures of several runs side by side, with one scale for all: the runs of a study, one a cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from steppe.report.paper import _SIZE, _figure, _numbers, _tidy, draw_eigenvalues
from steppe.report.spectra import smooth_alike

MOST_LINES = 8
"""in a panel; more lines could not be distinguished"""


def draw_study(cells: Mapping[str, Mapping[str, Any]]) -> dict[str, Figure]:
    """Draw all that the cells of a study hold: a figure for each name.

    Args:
        cells: name of a cell -> {"labels": its labels by axis, "geometry": its `geometry.json`, "metrics": its epochs,
            "shift": its `shift.json`}.
    """
    figures: dict[str, Figure] = {}
    labels = {name: cell.get("labels") or {"": name} for name, cell in cells.items()}

    def draw(lines: Mapping[str, Sequence[float | None]], x_label: str, y_label: str, first: int = 1) -> Figure:
        counted = {name: (range(first, first + len(line)), line) for name, line in lines.items()}
        return draw_lines(counted, labels, x_label, y_label)

    geometry = {name: cell.get("geometry", {}) for name, cell in cells.items()}
    squares = {name: found["landscape"] for name, found in geometry.items() if "landscape" in found}
    if squares:
        figures["landscapes"] = draw_landscapes(squares)
    curved = {name: found["lambda_max"]["parts"] for name, found in geometry.items() if "lambda_max" in found}
    if curved:
        figures["lambda_max"] = draw_eigenvalues(curved)
    spectra = smooth_alike({name: found.get("spectrum") for name, found in geometry.items()})
    if spectra:
        smooth = {name: (grid.tolist(), line.tolist()) for name, (grid, line) in spectra.items()}
        floor = 1e-8 * max(max(line) for _, line in smooth.values())
        figures["spectra"] = draw_lines(smooth, labels, "eigenvalue of the Hessian", "density", floor)
    active = {
        name: [values["active"] for part, values in found["norms"]["activations"].items() if part.startswith("block")]
        for name, found in geometry.items()
        if "norms" in found
    }
    if any(active.values()):
        figures["active_neurons"] = draw(active, "block", "share of active neurons")
    curves = {
        "train_loss": "training loss",
        "train_accuracy": "training accuracy",
        "val_accuracy": "validation accuracy",
        "lr": "learning rate",
    }
    for key, label in curves.items():
        lines = {name: [record.get(key) for record in cell.get("metrics", [])] for name, cell in cells.items()}
        if any(any(value is not None for value in line) for line in lines.values()):
            figures[key] = draw(lines, "epoch", label)
    for key in ("rescaling_initial", "rescaling"):
        rescaled = {name: found[key] for name, found in geometry.items() if key in found}
        for case in ("weights", "weights_and_biases"):
            if rescaled:
                outputs = {name: found[case]["outputs"] for name, found in rescaled.items()}
                figures[f"{key}_{case}_outputs"] = draw_outputs(outputs)
            for kind in ("sam", "asam_weights", "asam_weights_eta", "asam_all", "asam_all_eta"):
                lines = {name: found[case]["sharp_loss"][kind] for name, found in rescaled.items()}
                if lines:
                    said = f"loss, {kind.replace('_', ' ')}"
                    figures[f"{key}_{case}_{kind}"] = draw(lines, "rescaling", said, first=0)
    shifted = {
        name: [point for key, point in cell["shift"].items() if key.startswith("variance_")]
        for name, cell in cells.items()
        if cell.get("shift")
    }
    for key in ("error", "loss") if shifted else ():
        tested = {name: ([p["variance"] for p in points], [p[key] for p in points]) for name, points in shifted.items()}
        figures[f"shift_{key}"] = draw_lines(tested, labels, "variance of the test points", f"test {key}")
    return figures


def draw_lines(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float | None]]],
    labels: Mapping[str, Mapping[str, str]],
    x_label: str,
    y_label: str,
    floor: float | None = None,
) -> Figure:
    """Draw lines of many cells, in as many panels as readability takes: by the first axis, then by the next.

    Args:
        lines: name of a cell -> where, and what.
        labels: name of a cell -> its labels by axis.
        x_label: says where.
        y_label: says what.
        floor: draw what on a logarithmic axis that begins here.
    """
    panels: dict[str, dict[str, str]] = {}  # title -> what its lines are called -> their cells
    for depth in range(1 + max(len(labels[name]) for name in lines)):
        panels = {}
        for name in lines:
            whole = list(labels[name].items())
            split = min(depth, len(whole) - 1)  # a line keeps a name
            title = ", ".join(" ".join(pair).strip() for pair in whole[:split])
            panels.setdefault(title, {})[", ".join(label for _, label in whole[split:])] = name
        if max(map(len, panels.values())) <= MOST_LINES:
            break
    called = list(dict.fromkeys(line for panel in panels.values() for line in panel))
    across = len(panels) if len(panels) < 6 else 4
    down = math.ceil(len(panels) / across)
    figure = _figure(3.2 * across + 1.4, 2.8 * down)
    grid = figure.subplots(down, across, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (title, panel) in zip(grid.flat, panels.items(), strict=False):
        for line, name in panel.items():
            index = called.index(line)
            look = {"color": colormaps["tab10"](index % 10), "linestyle": ("-", "--", ":", "-.")[index % 4]}
            at, values = lines[name]
            axes.plot(at, _numbers(values), label=line, linewidth=1.4, marker="." if len(at) < 3 else "", **look)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set(title=title, xlabel=x_label, ylabel=y_label)
        if floor is not None:
            drawn = np.concatenate([_numbers(lines[name][1]) for name in panel.values()])
            highest = float(drawn[np.isfinite(drawn)].max(initial=0.0))
            axes.set(yscale="log", ylim=(floor, max(3 * highest, 10 * floor)))
    known = {line: handle for axes in grid.flat for handle, line in zip(*axes.get_legend_handles_labels(), strict=True)}
    if len(known) > 1 or "" in panels:  # a line that no title names
        handles = list(known.values())
        figure.legend(handles, list(known), loc="outside right center", frameon=False, fontsize=_SIZE - 2)
    return _tidy(figure, *grid.flat[: len(panels)])


def draw_outputs(found: Mapping[str, Sequence[Any]]) -> Figure:
    """Draw the outputs of networks for a few points during rescaling: a panel a network, a line an output."""
    figure = _figure(3.2 * len(found), 2.8)
    grid = figure.subplots(1, len(found), squeeze=False)[0]
    for axes, (name, steps) in zip(grid, found.items(), strict=True):
        axes.plot(_numbers(steps).reshape(len(steps), -1), linewidth=1.2)
        axes.set(title=name, xlabel="rescaling", ylabel="outputs")
    return _tidy(figure, *grid)


def draw_points(found: Mapping[str, tuple[Any, Any]], columns: int = 4) -> Figure:
    """Draw labelled points of the plane, a panel for every set, all on one scale.

    Args:
        found: name -> points (count, 2) and their labels.
        columns: panels in a row, at the most.
    """
    across = min(columns, len(found))
    down = math.ceil(len(found) / across)
    figure = _figure(2.3 * across, 2.4 * down)
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for axes in grid.flat[len(found) :]:
        axes.set_axis_off()
    for axes, (name, (points, labels)) in zip(grid.flat, found.items(), strict=False):
        colours = colormaps["tab10"](np.asarray(labels) % 10)
        axes.scatter(points[:, 0], points[:, 1], s=2, c=colours, linewidths=0, rasterized=True)
        axes.set(title=name, aspect="equal")
    return _tidy(figure, *grid.flat[: len(found)])


def draw_landscapes(found: Mapping[str, Mapping[str, Any]], columns: int = 4) -> Figure:
    """Draw contours of several landscapes with one scale of colours, so that they can be compared.

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
