"""Figures for a paper by matplotlib, as PNG and as PDF.

They draw what measures left as plain numbers in `geometry.json` and `robustness.json`.
"""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from steppe.runs.files import write_atomically

_BLUE, _ORANGE, _GREY = "#2f6db3", "#d9822b", "#666666"
_SIZE = 9


_FORMATS: dict[str, dict[str, Any]] = {"png": {"dpi": 200}, "pdf": {"metadata": {"CreationDate": None}}}
_PROGRAM = {"png": "Software", "pdf": "Creator"}


def save(figure: Figure, stem: Path, formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
    """Write `stem`.png and `stem`.pdf, whole or not at all; the same figure gives the same bytes."""
    paths = []
    for kind in formats:
        path = stem.with_name(f"{stem.name}.{kind}")
        write_atomically(path, encode(figure, kind))
        paths.append(path)
    return paths


def encode(figure: Figure, kind: str, made_by: str | None = None) -> bytes:
    """Encode a figure as the bytes of a file.

    Args:
        figure: what is drawn.
        kind: "png" or "pdf".
        made_by: a program's name, put where the format has a place for it.
    """
    options = _FORMATS[kind]
    if made_by:
        options = {**options, "metadata": {**options.get("metadata", {}), _PROGRAM[kind]: made_by}}
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, bbox_inches="tight", **options)
    return buffer.getvalue()


def plain(text: str) -> str:
    """Make a name fit for matplotlib: no formula between dollars, no signs that cannot be drawn.

    Args:
        text: the name of a folder or a class.
    """
    return "".join(c if c.isprintable() else "�" for c in text).replace("$", r"\$")


def draw_landscape(found: Mapping[str, Any], title: str = "") -> Figure:
    """Draw the loss on a square, as contours and as a surface; the cross is the model."""
    steps = np.array(found["steps"], dtype=float)
    loss = _numbers(found["loss"])
    low, high = np.nanmin(loss), np.nanmax(loss)
    figure = _figure(8.6, 3.7)
    flat = figure.add_subplot(1, 2, 1)
    logarithmic = low > 0 and high / low > 10
    spread = np.geomspace(low, high, 25) if logarithmic else np.linspace(low, high if high > low else low + 1e-9, 25)
    norm = LogNorm(low, high) if logarithmic else None
    filled = flat.contourf(steps, steps, np.ma.masked_invalid(loss), levels=spread, cmap="viridis", norm=norm)
    flat.contour(
        steps, steps, np.ma.masked_invalid(loss), levels=spread[::2], colors="white", linewidths=0.4, alpha=0.7
    )
    flat.plot(0, 0, marker="+", color="white", markersize=10, markeredgewidth=1.5)
    along = _along(found)
    flat.set(xlabel=f"first {along}", ylabel=f"second {along}", aspect="equal")
    bar = figure.colorbar(filled, ax=flat, fraction=0.046, pad=0.03, format="%.3g")
    bar.set_ticks([float(level) for level in spread[::4]])
    bar.ax.minorticks_off()
    bar.set_label("loss" + (", logarithmic" if logarithmic else ""))
    solid: Any = figure.add_subplot(1, 2, 2, projection="3d")
    x, y = np.meshgrid(steps, steps)
    height = np.log10(loss) if logarithmic else loss
    solid.plot_surface(x, y, height, cmap="viridis", linewidth=0, rcount=60, ccount=60)
    solid.set(xlabel="first", ylabel="second")
    solid.set_zlabel("log₁₀ loss" if logarithmic else "loss", labelpad=4 if logarithmic else 12)
    for axis in (solid.xaxis, solid.yaxis, solid.zaxis):
        axis.set_major_locator(MaxNLocator(5))
    solid.view_init(elev=28, azim=-55)
    centre = found.get("centre")
    said = f"loss at the weights {centre:.4g}" if centre is not None else ""
    figure.suptitle(" · ".join(text for text in (title, said) if text), fontsize=_SIZE + 1)
    return figure


def _along(found: Mapping[str, Any]) -> str:
    """Name the direction of a landscape: only for eigenvectors it is stored."""
    return "eigenvector" if found.get("directions") else "direction"


def draw_line(found: Mapping[str, Any], title: str = "") -> Figure:
    """Draw the loss along a direction."""
    figure = _figure(4.2, 3.0)
    axes = figure.add_subplot()
    axes.plot(found["steps"], _numbers(found["loss"]), color=_BLUE)
    if found.get("centre") is not None:
        axes.plot(0, found["centre"], marker="o", color=_ORANGE, linestyle="none", label="the weights")
        axes.legend(frameon=False, loc="upper center")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set(xlabel=f"step along the {_along(found)}", ylabel="loss", title=title)
    return _tidy(figure, axes)


def draw_between(found: Mapping[str, Any], title: str = "", ends: tuple[str, str] | None = None) -> Figure:
    """Draw the loss on the way between two models, and the straight line it is compared with."""
    shares, loss = np.array(found["shares"]), _numbers(found["loss"])
    figure = _figure(4.2, 3.0)
    axes = figure.add_subplot()
    axes.plot(shares, loss, color=_BLUE, marker=".")
    axes.plot([0, 1], [loss[0], loss[-1]], color=_GREY, linestyle="--", linewidth=1)
    barrier = found.get("barrier")
    said = "" if barrier is None else f"barrier {barrier:.4g}"
    axes.set(ylabel="loss", title=" · ".join(text for text in (title, said) if text))
    axes.set_xticks([0, 0.5, 1], ["this run", "half way", "the other"])
    if ends:  # below each other: names of runs are long
        axes.set_xlabel(f"{ends[0]}\nto {ends[1]}", fontsize=_SIZE - 3)
    return _tidy(figure, axes)


def draw_spectrum(
    grid: Sequence[float], density: Sequence[float], eigenvalues: Sequence[float] = (), title: str = ""
) -> Figure:
    """Draw the density of a Hessian's eigenvalues on a logarithmic scale, with single eigenvalues marked."""
    figure = _figure(4.6, 3.0)
    axes = figure.add_subplot()
    values = np.array(density, dtype=float)
    axes.semilogy(grid, np.maximum(values, max(values.max() * 1e-8, 1e-300)), color=_BLUE)
    for index, value in enumerate(eigenvalues):
        axes.axvline(value, color=_ORANGE, linewidth=0.8, label="eigenvalues" if index == 0 else None)
    if len(eigenvalues):
        axes.legend(frameon=False)
    axes.set(xlabel="eigenvalue", ylabel="density", title=title)
    return _tidy(figure, axes)


def draw_eigenvalues(groups: Mapping[str, Mapping[str, Any]], title: str = "") -> Figure:
    """Draw λmax of each part of a network, hatched where it had not converged.

    Args:
        groups: model -> part -> what `lambda_max` found of it.
        title: above.
    """
    values = {
        model: {part: found["lambda_max"]["value"] for part, found in parts.items()} for model, parts in groups.items()
    }
    doubtful = {
        (model, part)
        for model, parts in groups.items()
        for part, found in parts.items()
        if found["lambda_max"].get("converged") is False
    }
    return draw_bars(values, "λmax (hatched: not converged)" if doubtful else "λmax", title, doubtful)


def _number_of_block(part: str) -> int:
    """Return a sort key that puts blocks last, in their order, even where networks differ in depth."""
    number = part.removeprefix("block")
    return int(number) if number.isdecimal() else 0


def draw_bars(
    groups: Mapping[str, Mapping[str, float | None]],
    label: str,
    title: str = "",
    hatched: Collection[tuple[str, str]] = (),
) -> Figure:
    """Draw bars for the parts of a network, such as λmax of each block; one colour a model.

    Args:
        groups: model -> part -> value.
        label: of the vertical axis.
        title: above.
        hatched: (model, part) of bars to be drawn with a hatch.
    """
    parts = sorted(dict.fromkeys(part for values in groups.values() for part in values), key=_number_of_block)
    figure = _figure(max(3.6, (0.35 + 0.07 * len(groups)) * len(parts) + 1.4), max(3.0, 0.21 * len(groups)))
    axes = figure.add_subplot()
    colours = colormaps["tab20" if len(groups) > 10 else "tab10"]
    width = 0.8 / len(groups)
    for index, (name, values) in enumerate(groups.items()):
        heights = [_nan(values.get(part)) for part in parts]
        places = np.arange(len(parts)) + (index - (len(groups) - 1) / 2) * width
        bars = axes.bar(places, heights, width, label=name, color=colours(index % colours.N))
        for part, bar in zip(parts, bars, strict=True):
            if (name, part) in hatched:
                bar.set(hatch="////", edgecolor="white")
    positive = [v for values in groups.values() for v in values.values() if v is not None and v > 0]
    if positive and max(positive) / min(positive) > 50:
        axes.set_yscale("log")
    axes.set_xticks(range(len(parts)), parts, rotation=40, ha="right")
    axes.set(ylabel=label, title=title)
    if len(groups) > 1:
        axes.legend(frameon=False, fontsize=_SIZE - 2, loc="center left", bbox_to_anchor=(1, 0.5))
    return _tidy(figure, axes)


def draw_attention(
    images: np.ndarray, rows: Mapping[str, np.ndarray], title: str = "", names: Sequence[str] = ()
) -> Figure:
    """Draw images with maps laid over them.

    Args:
        images: (N, C, H, W) of uint8.
        rows: name -> maps (N, H, W) in [0, 1], such as "last layer" and "rollout".
        title: above.
        names: one above each image, if any.
    """
    count = len(images)
    figure = _figure(1.15 * count + 0.6, 1.2 * (1 + len(rows)) + 0.35)
    grid = figure.subplots(1 + len(rows), count, squeeze=False)
    for column, image in enumerate(images):
        shown = image.transpose(1, 2, 0) if len(image) == 3 else np.repeat(image[0][..., None], 3, axis=2)
        grid[0][column].imshow(shown)
        for row, maps in enumerate(rows.values(), 1):
            grid[row][column].imshow(overlay(shown, maps[column]))
    for axes, name in zip(grid[0], names, strict=False):
        axes.set_title(plain(name), fontsize=_SIZE - 1)
    for row, name in enumerate(["image", *rows]):
        grid[row][0].set_ylabel(name, fontsize=_SIZE)
        for axes in grid[row]:
            axes.set_xticks([])
            axes.set_yticks([])
    figure.suptitle(title, fontsize=_SIZE + 1)
    return figure


def save_sheet(images: np.ndarray, rows: Mapping[str, np.ndarray], path: Path, cell: int = 96) -> None:
    """Write images and the maps over them as bare square cells, a column an image: the report cuts them out.

    Args:
        images: (N, C, H, W) of uint8.
        rows: name -> maps (N, H, W) in [0, 1]; the first row of cells holds the images themselves.
        path: a PNG.
        cell: side of a cell in pixels.
    """
    columns = []
    for number, image in enumerate(images):
        shown = image.transpose(1, 2, 0) if len(image) == 3 else np.repeat(image[0][..., None], 3, axis=2)
        parts = [shown, *((255 * overlay(shown, maps[number])).round().astype(np.uint8) for maps in rows.values())]
        way = Image.Resampling.NEAREST if shown.shape[0] < cell else Image.Resampling.LANCZOS
        columns.append(np.concatenate([np.asarray(Image.fromarray(p).resize((cell, cell), way)) for p in parts]))
    buffer = io.BytesIO()
    Image.fromarray(np.concatenate(columns, axis=1)).save(buffer, "PNG")
    write_atomically(path, buffer.getvalue())


def overlay(image: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """Lay a map (H, W) in [0, 1] over an image (H, W, 3) of uint8: cold where it is low, hot where it is high."""
    heat = colormaps["inferno"](strength)[..., :3]
    grey = image.mean(axis=2, keepdims=True) / 255
    return np.clip(0.45 * grey + 0.55 * heat, 0, 1)


def draw_series(
    lines: Mapping[str, Sequence[float | None]],
    x_label: str,
    y_label: str,
    title: str = "",
    *,
    logarithmic: bool = False,
) -> Figure:
    """Draw values over the steps of a process, one line a name."""
    figure = _figure(4.6, 3.0)
    axes = figure.add_subplot()
    for index, (name, values) in enumerate(lines.items()):
        drawn = [_nan(v) for v in values]
        style = ("-", "--", ":", "-.")[index % 4]  # lines may lie on one another
        axes.plot(drawn, label=name, color=colormaps["tab10"](index % 10), linestyle=style, linewidth=1.6)
    if logarithmic:
        axes.set_yscale("log")
    axes.set(xlabel=x_label, ylabel=y_label, title=title)
    if len(lines) > 1:
        axes.legend(frameon=False, fontsize=_SIZE - 2, loc="center left", bbox_to_anchor=(1, 0.5))
    return _tidy(figure, axes)


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _tidy(figure: Figure, *panels: Axes) -> Figure:
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=_SIZE)
        axes.title.set_fontsize(_SIZE + 1)
    return figure


def _numbers(values: Any) -> np.ndarray:
    return np.array(values, dtype=float)  # None becomes nan


def _nan(value: float | None) -> float:
    return math.nan if value is None else float(value)
