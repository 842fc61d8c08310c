"""A study's plan, and what it will cost, in tables and in plain values."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from steppe.cli.show import console, print_json
from steppe.config import PlannedRun, StudyConfig
from steppe.errors import RunError, SteppeError

if TYPE_CHECKING:
    from steppe.studies import Estimate


def planned_values(run_: PlannedRun) -> dict[str, Any]:
    """A planned run in plain values."""
    return {"run_id": run_.config.run_id, "labels": run_.labels, "seed": run_.config.seed}


def plan_table(planned: list[PlannedRun]) -> Table:
    """A line for every cell of a plan, with its seeds and its first run."""
    axes = list(dict.fromkeys(axis for run_ in planned for axis in run_.labels))
    table = Table(*(escape(axis) for axis in axes), "seeds", "run", box=None, header_style="bold")
    cells: dict[str, list[PlannedRun]] = {}
    for run_ in planned:
        cells.setdefault(run_.config.without_seed().hash, []).append(run_)
    for runs in cells.values():
        seeds = ", ".join(str(r.config.seed) for r in runs)
        table.add_row(*(Text(runs[0].labels.get(a, "–")) for a in axes), seeds, runs[0].config.run_id)
    return table


def print_estimate(
    study: StudyConfig,
    planned: list[PlannedRun],
    folder: Path,
    data_root: str | None,
    device: str | None,
    workers: int,
    json: bool,
) -> None:
    """Print what the runs that are not finished will cost, one by one and together.

    Args:
        study: what they belong to.
        planned: the runs.
        folder: where those that are finished lie.
        data_root: where named data sets live.
        device: to train on.
        workers: runs at a time.
        json: print JSON instead of a table.
    """
    from steppe.jobs import threads_for
    from steppe.studies import Estimate, estimate_runs, is_complete

    todo = [p for p in planned if not is_complete(folder, p, study)]
    found = estimate_runs(todo, data_root=data_root, device=device, threads=threads_for(workers))
    estimates = [one for one in found if isinstance(one, Estimate)]
    problems = Counter(str(one) for one in found if isinstance(one, SteppeError))
    reasons = [f"{count} of {len(todo)} runs cannot be made: {problem}" for problem, count in problems.items()]
    if todo and not estimates:
        raise RunError("\n".join(reasons))
    sums = {
        "gradient_evaluations": sum(e.gradient_evaluations for e in estimates),
        "flops": sum(e.flops for e in estimates),
        "time_s": max([sum(e.time_s for e in estimates) / workers, *(e.time_s for e in estimates)]),
    }
    before = len(planned) - len(todo)
    if json:
        rows = [planned_values(run_) | _estimated(one) for run_, one in zip(todo, found, strict=True)]
        print_json({"rows": rows, "finished_before": before, "workers": workers, **sums})
        return
    table = Table("run", "gradient evaluations", "TFLOP", "seconds", box=None, header_style="bold")
    for run_, one in zip(todo, found, strict=True):
        cells = ("–", "–", "–")
        if isinstance(one, Estimate):
            cells = (f"{one.gradient_evaluations:,.0f}", f"{one.flops / 1e12:,.2f}", f"{one.time_s:,.1f}")
        table.add_row(run_.config.run_id, *cells)
    console.print(table)
    for reason in reasons:
        console.print(reason, markup=False, soft_wrap=True)
    of = f" of the {len(estimates)} that can be made" if problems else ""
    console.print(
        f"{len(todo)} runs to do, {before} finished before; "
        f"{sums['gradient_evaluations']:,.0f} gradient evaluations, {sums['flops'] / 1e12:,.1f} TFLOP, "
        f"about {sums['time_s']:,.0f} s of training{of} with {workers} worker(s) on this machine",
        soft_wrap=True,
    )


def _estimated(found: Estimate | SteppeError) -> dict[str, Any]:
    """What a run will cost in plain values, or what keeps it from being made."""
    if isinstance(found, SteppeError):
        return {"gradient_evaluations": None, "flops": None, "time_s": None, "problem": str(found)}
    return asdict(found) | {"problem": None}
