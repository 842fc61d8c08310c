"""Draw the README's picture: two loss landscapes, and the accuracy of `steppe fit` against seconds.

    python benchmarks/readme_picture.py                                  # docs/images/readme.png, from results/
    python benchmarks/readme_picture.py --data pets --machine "AMD EPYC, 2 cores"

The landscapes are those of one network in a study's folder of results, with and without SAM, on one scale. The title of
each says what all seeds measured; the surface is that of the first seed. The curve is read from the rows that
`benchmarks/fit.py` wrote. Without that file the landscapes stand alone.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
BLUE, GREY = "#0b5cad", "#8a8a8a"
MARKS = "s^Dv"

Reached = dict[str, dict[float, list[tuple[float, float]]]]
"""Name -> budget -> seconds and accuracy of each seed."""


def read_runs(study: Path, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Read what the runs with these labels measured, in the order of their seeds.

    Args:
        study: its folder of results.
        labels: every label of the runs, by axis.
    """
    listed = json.loads((study / "study.json").read_text(encoding="utf-8"))["runs"]
    chosen = sorted((run for run in listed if run["labels"] == labels), key=lambda run: run["seed"])
    found = []
    for run in chosen:
        files = {name: study / run["run_id"] / f"{name}.json" for name in ("summary", "geometry")}
        found.append({name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items()})
    return found


def read_fit(file: Path, data: str, machine: str | None) -> tuple[str, Reached]:
    """Read the machine's name and who reached what on it.

    Args:
        file: the rows of `benchmarks/fit.py`.
        data: the data set to show.
        machine: the machine to show; the first one in the file where None.
    """
    with file.open(encoding="utf-8", newline="") as text:
        rows = [row for row in csv.DictReader(text) if row["data"] == data and row["accuracy"]]
    machine = machine or (rows[0]["machine"] if rows else "")
    found: Reached = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["machine"] == machine:
            found[row["who"]][float(row["budget_s"])].append((float(row["seconds"]), float(row["accuracy"])))
    return machine, found


def draw_landscapes(figure: Any, groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Draw the first run of each group as a surface, all with one scale.

    Args:
        figure: to draw on.
        groups: runs by the name of their training.
    """
    squares = {name: runs[0]["geometry"]["landscape"] for name, runs in groups.items()}
    top = max(float(np.nanmax(np.array(square["loss"], dtype=float))) for square in squares.values())
    for at, (name, square) in enumerate(squares.items()):
        axes = figure.add_axes((at / len(squares) - 0.01, 0.02, 1 / len(squares) - 0.02, 0.82), projection="3d")
        x, y = np.meshgrid(square["steps"], square["steps"])
        loss = np.array(square["loss"], dtype=float)
        axes.plot_surface(x, y, loss, cmap="viridis", vmin=0, vmax=top, rcount=60, ccount=60, linewidth=0)
        axes.set(zlim=(0, top), xticks=(-1, 0, 1), yticks=(-1, 0, 1))
        axes.set_zlabel("loss", labelpad=0)
        axes.tick_params(labelsize=8, pad=0)
        axes.view_init(elev=32, azim=-58)
        axes.set_box_aspect((1, 1, 0.8), zoom=1.0)
        runs = groups[name]
        accuracy = 100 * fmean(run["summary"]["test"]["accuracy"] for run in runs)
        parts = [run["geometry"]["lambda_max"]["parts"]["whole"] for run in runs]
        curvature = fmean(part["lambda_max"]["value"] for part in parts)
        figure.text((at + 0.5) / len(squares), 0.92, name, ha="center", fontsize=12, fontweight="bold")
        said = f"λmax {curvature:.3g}, test accuracy {accuracy:.1f} %"
        figure.text((at + 0.5) / len(squares), 0.85, said, ha="center", fontsize=10)


def draw_fit(axes: Any, found: Reached, title: str) -> None:
    """Draw mean accuracy over mean seconds, a point for each budget, and each seed as a dot.

    Args:
        axes: to draw on.
        found: what was reached.
        title: above the curve.
    """
    others = [name for name in found if name != "steppe"]
    for name in (*others, "steppe"):
        budgets = [found[name][budget] for budget in sorted(found.get(name, {}))]
        if not budgets:
            continue
        own = name == "steppe"
        style: dict[str, Any] = {"color": BLUE, "linewidth": 2.5, "marker": "o", "zorder": 3}
        if not own:
            style = {"color": GREY, "linewidth": 1.0, "marker": MARKS[others.index(name) % len(MARKS)], "zorder": 2}
        means = [[fmean(values) for values in zip(*seeds, strict=True)] for seeds in budgets]
        label = "steppe fit" if own else name
        axes.plot([s for s, _ in means], [100 * a for _, a in means], label=label, markersize=6, **style)
        points = [point for seeds in budgets for point in seeds]
        axes.scatter([s for s, _ in points], [100 * a for _, a in points], s=8, color=style["color"], alpha=0.5)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.tick_params(labelsize=8, which="both")
    axes.set_xlabel("seconds, from start to finished classifier", fontsize=9)
    axes.set_ylabel("test accuracy, %", fontsize=9)
    axes.set_title(title, fontsize=12, fontweight="bold")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8, frameon=False, loc="lower right")


def main() -> None:
    """Draw the picture and save it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", type=Path, default=ROOT / "results/sharp-minima-laptop")
    parser.add_argument("--model", default="Mixer")
    parser.add_argument("--fit", type=Path, default=ROOT / "results/fit.csv")
    parser.add_argument("--data", default="pets")
    parser.add_argument("--machine")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images/readme.png")
    given = parser.parse_args()
    names = {"AdamW": "plain", "AdamW + SAM": "SAM"}
    groups = {name: read_runs(given.study, {"model": given.model, "training": label}) for name, label in names.items()}
    machine, found = read_fit(given.fit, given.data, given.machine) if given.fit.is_file() else ("", {})
    figure = Figure(figsize=(12.6, 3.7) if found else (8.2, 3.7))
    if found:
        halves: Any = figure.subfigures(1, 2, width_ratios=(2, 1))
        left, right = halves
        draw_fit(right.add_axes((0.14, 0.15, 0.82, 0.73)), found, f"{given.data}: {machine}")
    else:
        left = figure
        print(f"no curve: {given.fit} has no rows of {given.data}")
    draw_landscapes(left, groups)
    figure.savefig(given.out, dpi=110)
    print(f"drawn: {given.out}")


if __name__ == "__main__":
    main()
