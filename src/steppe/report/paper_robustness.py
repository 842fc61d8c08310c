"""Figures for a paper about robustness: corruptions, calibration, confusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from steppe.report.paper import _BLUE, _GREY, _SIZE, _figure, _numbers, _tidy


def draw_corruptions(found: Mapping[str, Any], title: str = "") -> Figure:
    """Draw the accuracy under each corruption at each severity, as a heat map."""
    table = found["table"]
    values = 100 * _numbers(list(table.values()))
    means = values.mean(axis=1, keepdims=True)
    shown = np.concatenate([values, means], axis=1)
    figure = _figure(4.8, 0.27 * len(table) + 1.3)
    axes = figure.add_subplot()
    picture = axes.imshow(shown, cmap="viridis", vmin=0, vmax=100, aspect="auto")
    for (row, column), value in np.ndenumerate(shown):
        colour = "black" if value > 60 else "white"
        axes.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=_SIZE - 2, color=colour)
    axes.set_yticks(range(len(table)), [name.replace("_", " ") for name in table], fontsize=_SIZE - 1)
    axes.set_xticks(range(6), ["1", "2", "3", "4", "5", "mean"])
    axes.axvline(4.5, color="white", linewidth=2)
    axes.set(xlabel="severity")
    said = f"mean accuracy {100 * found['mean']:.1f} %"
    axes.set_title(" · ".join(text for text in (title, said) if text), fontsize=_SIZE + 1)
    figure.colorbar(picture, ax=axes, fraction=0.04, pad=0.02, label="accuracy, %")
    return figure


def draw_reliability(found: Mapping[str, Any], title: str = "") -> Figure:
    """Draw accuracy against confidence: on the diagonal a model is well calibrated."""
    rows = found["reliability"]
    bins = len(rows)
    figure = _figure(3.6, 3.4)
    axes = figure.add_subplot()
    for index, row in enumerate(rows):
        if row["count"]:
            share = row["count"] / found["examples"]
            axes.bar((index + 0.5) / bins, row["accuracy"], 0.92 / bins, color=_BLUE, alpha=0.3 + 0.7 * share)
            axes.plot(row["confidence"], row["accuracy"], marker="o", markersize=3, color=_BLUE)
    axes.plot([0, 1], [0, 1], color=_GREY, linestyle="--", linewidth=1)
    said = f"ECE {found['ece']:.3f}"
    axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.02), aspect="equal")
    axes.set_title(" · ".join(text for text in (title, said) if text))
    return _tidy(figure, axes)


def draw_confusion(found: Mapping[str, Any], classes: Sequence[str], title: str = "") -> Figure:
    """Draw which classes are taken for which, in percent of the label's images; numbers where there is room."""
    counts = _numbers(found["confusion"])
    shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    few = len(classes) <= 20
    side = 0.34 * len(classes) + 1.6 if few else 6.0
    figure = _figure(side, side * 0.9)
    axes = figure.add_subplot()
    picture = axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    if few:
        for (row, column), value in np.ndenumerate(shares):
            if value >= 0.5:
                colour = "white" if value > 55 else "black"
                axes.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=_SIZE - 3, color=colour)
        axes.set_xticks(range(len(classes)), classes, rotation=60, ha="right", fontsize=_SIZE - 2)
        axes.set_yticks(range(len(classes)), classes, fontsize=_SIZE - 2)
    axes.set(xlabel="answer", ylabel="label")
    axes.set_title(title, fontsize=_SIZE + 1)
    figure.colorbar(picture, ax=axes, fraction=0.046, pad=0.03, label="% of the label's images")
    return figure
