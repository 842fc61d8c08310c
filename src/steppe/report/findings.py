"""Findings as sentences: the best row, the fastest that matches it, and whether a second gradient paid.

Every sentence is computed, and says how sure it is. Two rows differ significantly where the 95 % interval of their
difference excludes zero, by the rule of `steppe compare` (see `significance`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from steppe.config import RunConfig
from steppe.report.image_sets import deciding_accuracy, split_by_test_set
from steppe.report.layout import Layout
from steppe.report.numbers import duration, percent, points
from steppe.report.rows import Row, name_row
from steppe.report.significance import Difference, accuracy_interval, difference

Sentence = list[tuple[str, bool]]
"""Pieces of text, each with whether it is emphasised."""

BETTER, WORSE, NO_DIFFERENCE, ONE_SEED = "better", "worse", "not significant", "one seed"


@dataclass(frozen=True)
class Comparison:
    """A sharpness-aware row against the plain optimizer, all else equal but what is spent."""

    setting: str
    """what both share, such as the model"""
    sharp: str
    plain: str
    budget: str
    """what both spent the same of: seconds, epochs or gradient evaluations"""
    found: Difference
    seeds: tuple[int, int]

    @property
    def difference(self) -> float:
        """Return by how much the sharpness-aware row is more accurate."""
        return self.found.middle

    @property
    def verdict(self) -> str:
        """Whether the difference is significant."""
        if self.found.one_seed:
            return ONE_SEED
        if not self.found.significant:
            return NO_DIFFERENCE
        return BETTER if self.difference > 0 else WORSE


def pareto_front(rows: Sequence[Row], cost: str = "time_s") -> list[int]:
    """Find the rows that no other row beats: none is at least as accurate at no more cost, and better in one.

    Args:
        rows: of the same test images.
        cost: the measure that counts as cost.

    Returns:
        The rows' positions, from the cheapest to the most accurate.
    """
    accuracy = deciding_accuracy(rows)
    at = [(_cost(row, cost), row.stat(accuracy).mean) for row in rows]
    known = [(c, a, i) for i, (c, a) in enumerate(at) if c is not None and a is not None]
    front = [
        (c, i)
        for c, a, i in known
        if not any(other <= c and better >= a and (other < c or better > a) for other, better, _ in known)
    ]
    return [i for _, i in sorted(front)]


def _cost(row: Row, cost: str) -> float | None:
    """Return what a row cost; at most the seconds it was given, which the last step exceeds."""
    spent, given = row.stat(cost).mean, row.config.budget.seconds
    return spent if spent is None or given is None or cost != "time_s" else min(spent, given)


def unbeaten(rows: Sequence[Row], cost: str = "time_s") -> set[int]:
    """Find the rows that no other row of the same test images beats."""
    return {index for front in fronts(rows, cost).values() for index in front}


def fronts(rows: Sequence[Row], cost: str = "time_s") -> dict[str, list[int]]:
    """Find the Pareto front of every test set, by its name: accuracies on different images do not compare."""
    groups = split_by_test_set(rows)
    return {
        name: [own[position] for position in pareto_front([rows[index] for index in own], cost)]
        for name, own in groups.items()
    }


def best_row(rows: Sequence[Row]) -> Row | None:
    """Return the row with the highest mean test accuracy; of equals, the faster one."""
    known = [row for row in rows if row.test_accuracy.mean is not None]
    return max(known, key=lambda row: (row.test_accuracy.mean or 0.0, -_seconds(row)), default=None)


def answers(rows: Sequence[Row]) -> list[Sentence]:
    """Answer in one sentence for each test set."""
    return _for_each_test_set(rows, lambda own: [headline(own)])


def overall(rows: Sequence[Row]) -> Sentence | None:
    """Say which row is the most accurate on how many test sets; None for one or two sets."""
    groups = [[rows[index] for index in own] for own in split_by_test_set(rows).values()]
    best = [(group, row) for group in groups if (row := best_row(group)) is not None]
    if len(best) < 3:
        return None
    count = Counter(name_row(row, group) for group, row in best)
    (name, wins), *others = count.most_common()
    clear = sum(
        name_row(row, group) == name and row.test_accuracy.std is not None and not _matching(row, group)
        for group, row in best
    )
    start = f"{wins} of {len(best)} test sets"
    sure = (
        f", significantly so on {clear if clear < wins else 'all'} of them" if clear else ", but nowhere significantly"
    )
    if others and others[0][1] == wins:
        sure += f"; {others[0][0]} is on as many"
    return [(name, True), (" is the most accurate on ", False), (start, True), (f"{sure}.", False)]


def supports(rows: Sequence[Row]) -> list[Sentence]:
    """Say what belongs beside the answers, where these are few."""
    return _for_each_test_set(rows, supporting) if len(split_by_test_set(rows)) < 3 else []


def _for_each_test_set(rows: Sequence[Row], say: Callable[[list[Row]], list[Sentence]]) -> list[Sentence]:
    groups = split_by_test_set(rows)
    if len(groups) < 2:
        return say(list(rows))
    out = []
    for name, own in groups.items():
        members = [rows[index] for index in own]
        if best_row(members) is not None:
            out += [[("On ", False), (name, True), (": ", False), *s] for s in say(members)]
    return out or say(list(rows))


def headline(rows: Sequence[Row]) -> Sentence:
    """Answer in one sentence, for rows of the same test images."""
    best = best_row(rows)
    if best is None:
        if not rows:
            return [("There is nothing here yet", True), (": no run has begun.", False)]
        if any(row.failed for row in rows) and not any(row.unfinished for row in rows):
            return [("No run has a test result", True), (": all of them failed.", False)]
        if tried := [row for row in rows if row.val_accuracy.mean is not None]:
            leader = max(tried, key=lambda row: (row.val_accuracy.mean or 0.0, -_seconds(row)))
            leads = f" leads with {percent(leader.val_accuracy.mean)} on the validation images; none is tested yet."
            return [(name_row(leader, rows), True), (leads, False)]
        return [("No run has finished yet", True), (", so there is no test accuracy to compare.", False)]
    accuracy, name = best.test_accuracy, name_row(best, rows)
    if sum(row.test_accuracy.mean is not None for row in rows) == 1:
        return [(name, True), (" gets ", False), (percent(accuracy.mean), True), (" of the test images right.", False)]
    end = " with one seed, so this may be chance" if accuracy.std is None else _describe_rivals(best, rows)
    return [(name, True), (" is the most accurate: ", False), (percent(accuracy.mean), True), (f"{end}.", False)]


def supporting(rows: Sequence[Row]) -> list[Sentence]:
    """Say what belongs beside the headline: the interval, the best with several seeds, the cheapest that matches."""
    best = best_row(rows)
    if best is None:
        return []
    out = _describe_interval(best)
    if sum(row.test_accuracy.mean is not None for row in rows) < 2:
        return out
    leader = best
    if best.test_accuracy.std is None:
        sure = best_row([row for row in rows if row.test_accuracy.std is not None])
        if sure is None:
            return out
        leader = sure
        text = f" leads with {percent(sure.test_accuracy.mean)}."
        out.append([("Of the rows with several seeds, ", False), (name_row(sure, rows), True), (text, False)])
    elif doubtful := _doubtful(best, rows):
        who = _list_names(doubtful, rows)
        out.append([(f"Too few seeds to compare it with {who}.", False)])
    cheaper = [row for row in _matching(leader, rows) if _seconds(row) < 0.99 * _seconds(leader)]  # less is noise
    if not cheaper:
        return [*out, [("No row that trains faster matches it.", False)]]
    cheap = min(cheaper, key=_seconds)
    accuracy = percent(cheap.test_accuracy.mean, cheap.test_accuracy.std)
    seeds = "" if cheap.test_accuracy.n > 1 else " (one seed)"
    times = f"after {duration(cheap.time_s.mean)} instead of {duration(leader.time_s.mean)}"
    start = ("The fastest without a significant difference is ", False)
    return [*out, [start, (name_row(cheap, rows), True), (f": {accuracy}{seeds} {times}.", False)]]


def compare(rows: Sequence[Row], layout: Layout) -> list[Comparison]:
    """Set every sharpness-aware row against the plain rows that spent the same.

    Rows that were given the same seconds are compared at these alone; others at equal epochs and gradient evaluations.

    Args:
        rows: the summary.
        layout: how the rows are named.
    """
    out = []
    for budget in ("seconds", "epochs", "gradient_evaluations"):
        for sharp, row in enumerate(rows):
            if row.config.minimizer.name == "base" or row.test_accuracy.mean is None:
                continue
            for plain, other in enumerate(rows):
                if _is_plain_twin(other, row) and _spent_the_same(row, other, budget):
                    out.append(
                        Comparison(
                            layout.panel_of[sharp],
                            layout.series_of[sharp],
                            layout.series_of[plain],
                            budget.replace("_", " "),
                            difference(row, other),
                            (row.test_accuracy.n, other.test_accuracy.n),
                        )
                    )
    return out


def describe_comparisons(comparisons: Sequence[Comparison], things: str = "models") -> list[Sentence]:
    """Say for each method and budget in how many settings it beat the plain optimizer."""
    groups: dict[tuple[str, str, str], list[Comparison]] = {}
    for comparison in comparisons:
        groups.setdefault((comparison.budget, comparison.sharp, comparison.plain), []).append(comparison)
    return [_describe_one(*key, group, things) for key, group in groups.items()]


def _describe_one(budget: str, sharp: str, plain: str, group: Sequence[Comparison], things: str) -> Sentence:
    start: Sentence = [(f"At equal {budget}, ", False), (sharp, True)]
    if len(group) == 1:
        one = group[0]
        by = f"{points(abs(one.difference)).lstrip('+')} points {'above' if one.difference >= 0 else 'below'}"
        if one.difference == 0:
            by = "exactly as accurate as"
        sure = {
            NO_DIFFERENCE: "no significant difference",
            ONE_SEED: "one seed, so it may be chance",
            BETTER: "a significant difference",
            WORSE: "a significant difference",
        }[one.verdict]
        return [*start, (f" is {by} ", False), (plain, True), (f": {sure}.", False)]
    count = {word: sum(c.verdict == word for c in group) for word in (BETTER, WORSE, NO_DIFFERENCE, ONE_SEED)}
    singles = [c.difference for c in group if c.verdict == ONE_SEED]
    ahead = f"{sum(d > 0 for d in singles)} of {len(singles)}"
    tested = len(group) - len(singles)
    if not tested:
        end = f" in {ahead} {things}; with one seed each it may be chance."
        return [*start, (" is ahead of ", False), (plain, True), (end, False)]
    rest = [f"{count[word]} {word}" for word in (NO_DIFFERENCE, WORSE) if count[word]]
    end = f" significantly in {count[BETTER]} of {tested} {things}"
    end += f" ({', '.join(rest)})" if rest else ""
    end += f". With one seed, it leads in {ahead}" if singles else ""
    return [*start, (" beats ", False), (plain, True), (f"{end}.", False)]


def _describe_interval(row: Row) -> list[Sentence]:
    """Say within which interval a row's accuracy lies, and what that counts."""
    interval = accuracy_interval(row)
    if interval is None:
        return []
    low, high = (f"{100 * edge:.1f}" for edge in interval)
    seeds = f"{row.test_accuracy.n} seeds" if row.test_accuracy.n > 1 else "one seed"
    of = f" and {row.test_images:,.0f} test images" if row.test_images else ""
    return [[(f"Its 95 % interval is {low} to {high} %, from {seeds}{of}.", False)]]


def _describe_rivals(best: Row, rows: Sequence[Row]) -> str:
    """Say which rows do not differ significantly from the best."""
    matching = _matching(best, rows)
    if matching:
        return f", with no significant difference to {_list_names(matching, rows)}"
    return "" if _doubtful(best, rows) else ", significantly ahead of all others"


def _list_names(some: Sequence[Row], rows: Sequence[Row]) -> str:
    """Name one or two rows; count more."""
    if len(some) <= 2:
        return " and ".join(name_row(row, rows) for row in some)
    others = sum(row.test_accuracy.mean is not None for row in rows) - 1
    return f"all {others} other rows" if len(some) == others else f"{len(some)} of {others} other rows"


def _not_significant(best: Row, rows: Sequence[Row]) -> list[Row]:
    """List the other rows without a significant difference to the best."""
    others = [row for row in rows if row is not best and row.test_accuracy.mean is not None]
    return [row for row in others if not difference(best, row).significant]


def _matching(best: Row, rows: Sequence[Row]) -> list[Row]:
    """List those of them that reach the interval of the best."""
    interval = accuracy_interval(best)
    low = -math.inf if interval is None else interval[0]
    return [row for row in _not_significant(best, rows) if (row.test_accuracy.mean or 0.0) >= low]


def _doubtful(best: Row, rows: Sequence[Row]) -> list[Row]:
    """List the others: below the interval of the best, with too few seeds to be significant."""
    matching = _matching(best, rows)
    return [row for row in _not_significant(best, rows) if row not in matching]


def _is_plain_twin(plain: Row, sharp: Row) -> bool:
    """Whether `plain` differs from `sharp` in its minimizer and in what it spent, and in nothing else."""
    if plain.config.minimizer.name != "base" or plain.test_accuracy.mean is None or plain.study != sharp.study:
        return False
    return _rest(plain.config) == _rest(sharp.config)


def _rest(config: RunConfig) -> dict[str, object]:
    return config.model_dump(exclude={"seed", "minimizer", "budget"})


def _spent_the_same(a: Row, b: Row, budget: str) -> bool:
    given = a.config.budget.seconds
    if given is not None and given == b.config.budget.seconds:
        used = (row.time_s.mean or 0.0 for row in (a, b))  # who lost patience did not spend them
        return budget == "seconds" and all(seconds > 0.98 * given for seconds in used)
    if budget == "seconds":
        return False
    one, other = a.stat(budget).mean, b.stat(budget).mean
    return one is not None and other is not None and math.isclose(one, other, rel_tol=0.02)


def _seconds(row: Row) -> float:
    return math.inf if row.time_s.mean is None else row.time_s.mean
