"""Print the tables of `benchmarks/fit.py`, and draw accuracy against seconds.

python benchmarks/fit_table.py results/fit.csv --picture fit.png
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

Rows = list[dict[str, str]]
NAMES = {"steppe": "`steppe fit`", "logistic": "logistic regression", "fastai": "fastai", "plain": "plain torch loop"}
COLOURS = {"steppe": "#d1495b", "logistic": "#00798c", "fastai": "#edae49", "plain": "#6c757d"}


def read(path: Path) -> Rows:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def group(rows: Rows, *keys: str) -> dict[tuple[str, ...], Rows]:
    found: dict[tuple[str, ...], Rows] = defaultdict(list)
    for row in rows:
        found[tuple(row[key] for key in keys)].append(row)
    return dict(found)


def describe(rows: Rows) -> str:
    """Mean accuracy in percent, its deviation over seeds, and the mean seconds; who did not end in time is told."""
    ended = [row for row in rows if row["accuracy"]]
    late = f"{len(rows) - len(ended)} of {len(rows)} not in time" if len(ended) < len(rows) else ""
    if not ended:
        return late
    percents = [100 * float(row["accuracy"]) for row in ended]
    spread = f" ± {statistics.stdev(percents):.1f}" if len(percents) > 1 else ""
    seconds = statistics.mean(float(row["seconds"]) for row in ended)
    return f"{statistics.mean(percents):.1f}{spread} ({seconds:.0f} s)" + (f"; {late}" if late else "")


def tabulate(rows: Rows) -> str:
    """A Markdown table for each machine: a line for data and budget, a column for each competitor."""
    lines = []
    for (machine,), own in group(rows, "machine").items():
        there = [who for who in NAMES if any(row["who"] == who for row in own)]
        lines += [
            f"Test accuracy in % on {machine}: mean ± standard deviation over seeds, and seconds until it stood.",
            "",
        ]
        lines += [
            "| data | budget | " + " | ".join(NAMES[who] for who in there) + " |",
            "|---" * (len(there) + 2) + "|",
        ]
        cells = group(own, "data", "budget_s", "who")
        for name, budget in sorted(group(own, "data", "budget_s"), key=lambda key: (key[0], float(key[1]))):
            told = [describe(cells[name, budget, who]) if (name, budget, who) in cells else "–" for who in there]
            lines.append(f"| {name} | {float(budget) / 60:g} min | " + " | ".join(told) + " |")
        lines.append("")
    return "\n".join(lines)


def draw(rows: Rows, path: Path) -> None:
    """Draw a panel for each machine and data set: a mark for a run, a line through the means of the budgets."""
    from matplotlib.figure import Figure

    machines = group(rows, "machine")
    names = [name for (name,) in group(rows, "data")]
    figure = Figure(figsize=(3.1 * len(names), 0.5 + 3.0 * len(machines)), layout="constrained")
    axes = figure.subplots(len(machines), len(names), squeeze=False)
    for line, ((machine,), own) in zip(axes, machines.items(), strict=True):
        for axis, name in zip(line, names, strict=True):
            cells = group([row for row in own if row["data"] == name and row["accuracy"]], "who", "budget_s")
            for who, colour in COLOURS.items():
                parts = [
                    part for (one, _), part in sorted(cells.items(), key=lambda item: float(item[0][1])) if one == who
                ]
                runs = [(float(row["seconds"]), 100 * float(row["accuracy"])) for part in parts for row in part]
                means = [
                    (
                        statistics.mean(float(row["seconds"]) for row in part),
                        statistics.mean(100 * float(row["accuracy"]) for row in part),
                    )
                    for part in parts
                ]
                if runs:
                    axis.scatter(*zip(*runs, strict=True), color=colour, s=18, alpha=0.6, linewidths=0)
                    label = NAMES[who].strip("`")
                    axis.plot(*zip(*means, strict=True), color=colour, label=label, marker="_", markersize=9)
            for budget in {float(row["budget_s"]) for row in own}:
                axis.axvline(budget, color="#bbbbbb", linewidth=0.8, linestyle=":", zorder=0)
            axis.set_xscale("log")
            ticks = [tick for tick in (5, 10, 30, 60, 120, 300, 600, 1200) if _is_near(tick, own)]
            axis.set_xticks(ticks, [str(tick) for tick in ticks])
            axis.minorticks_off()
            axis.grid(axis="y", color="#eeeeee")
            axis.spines[["top", "right"]].set_visible(False)
            axis.set_title(name, fontsize=10)
            axis.set_xlabel("seconds")
        line[0].set_ylabel(f"{machine}\ntest accuracy, %")
    known: dict[str, Any] = {}
    for axis in axes.flat:
        handles, labels = axis.get_legend_handles_labels()
        known |= dict(zip(labels, handles, strict=True))
    shown = list(known.values()), list(known)
    figure.legend(*shown, loc="outside lower center", ncols=len(known), frameon=False)
    figure.savefig(path, dpi=150)


def _is_near(tick: float, rows: Rows) -> bool:
    seconds = [float(row["seconds"]) for row in rows] + [float(row["budget_s"]) for row in rows]
    return 0.8 * min(seconds) <= tick <= 1.2 * max(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--picture", type=Path, help="a PNG or SVG file")
    given = parser.parse_args()
    rows = read(given.results)
    print(tabulate(rows))
    if given.picture:
        draw(rows, given.picture)


if __name__ == "__main__":
    main()
