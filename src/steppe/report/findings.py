"""What the rows say, in words: the best, the cheapest that is as good, and whether a second gradient paid.

Every sentence is computed, and says how sure it can be. Two rows differ where the 95 % interval of their difference
leaves zero out, by the rule of `steppe compare` (see `apart`); what it does not separate is as good.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from steppe.config import RunConfig
from steppe.report.apart import Difference, accuracy_interval, difference
from steppe.report.layout import Layout
from steppe.report.numbers import duration, percent, points
from steppe.report.sets import judged_by, split_by_test_set
from steppe.report.table import Row, Stat, name_row

Sentence = list[tuple[str, bool]]
"""Pieces of text, each with whether it is emphasised."""

BETTER, WORSE, NOISE, ONE_SEED = "better", "worse", "within noise", "one seed"


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
        """How much more accurate the sharpness-aware row is."""
        return self.found.middle

    @property
    def verdict(self) -> str:
        """Whether the difference means something."""
        if self.found.one_seed:
            return ONE_SEED
        if not self.found.shown:
            return NOISE
        return BETTER if self.difference > 0 else WORSE


def pareto_front(rows: Sequence[Row], cost: str = "time_s") -> list[int]:
    """Find the rows that no other row beats: none is at least as accurate at no more cost, and better in one.

    Args:
        rows: of the same test images.
        cost: the measure that counts as cost.

    Returns:
        The rows' positions, from the cheapest to the most accurate.
    """
    accuracy = judged_by(rows)
    at = [(_cost(row, cost), row.stat(accuracy).mean) for row in rows]
    known = [(c, a, i) for i, (c, a) in enumerate(at) if c is not None and a is not None]
    front = [
        (c, i)
        for c, a, i in known
        if not any(other <= c and better >= a and (other < c or better > a) for other, better, _ in known)
    ]
    return [i for _, i in sorted(front)]


def _cost(row: Row, cost: str) -> float | None:
    """What a row cost; where it was given seconds no more than these, for its last step goes over them."""
    spent, given = row.stat(cost).mean, row.config.budget.seconds
    return spent if spent is None or given is None or cost != "time_s" else min(spent, given)


def unbeaten(rows: Sequence[Row], cost: str = "time_s") -> set[int]:
    """Find the rows that no other row of the same test images beats."""
    return {index for front in fronts(rows, cost).values() for index in front}


def fronts(rows: Sequence[Row], cost: str = "time_s") -> dict[str, list[int]]:
    """The Pareto front of every test set, by its name: accuracies on different images do not compare."""
    groups = split_by_test_set(rows)
    return {
        name: [own[position] for position in pareto_front([rows[index] for index in own], cost)]
        for name, own in groups.items()
    }


def best_row(rows: Sequence[Row]) -> Row | None:
    """The row with the highest mean test accuracy; of equals, the one that trained faster."""
    known = [row for row in rows if row.test_accuracy.mean is not None]
    return max(known, key=lambda row: (row.test_accuracy.mean or 0.0, -_seconds(row)), default=None)


def answers(rows: Sequence[Row]) -> list[Sentence]:
    """The answer in one sentence, or in one for each test set."""
    return _on_each(rows, lambda own: [headline(own)])


def overall(rows: Sequence[Row]) -> Sentence | None:
    """The answer over many test sets: what is most accurate on how many of them. None for one or two."""
    groups = [[rows[index] for index in own] for own in split_by_test_set(rows).values()]
    best = [(group, row) for group in groups if (row := best_row(group)) is not None]
    if len(best) < 3:
        return None
    count = Counter(name_row(row, group) for group, row in best)
    (name, wins), *others = count.most_common()
    clear = sum(
        name_row(row, group) == name and row.test_accuracy.std is not None and not _as_good(row, group)
        for group, row in best
    )
    start = f"{wins} of {len(best)} test sets"
    sure = f", set apart from every other row on {clear if clear < wins else 'all'} of them"
    if clear == 0:
        sure = ", but on none of them set apart from every other row"
    if others and others[0][1] == wins:
        sure += f"; {others[0][0]} is on as many"
    return [(name, True), (" is the most accurate on ", False), (start, True), (f"{sure}.", False)]


def supports(rows: Sequence[Row]) -> list[Sentence]:
    """What belongs beside the answers, where these are few."""
    return _on_each(rows, supporting) if len(split_by_test_set(rows)) < 3 else []


def _on_each(rows: Sequence[Row], say: Callable[[list[Row]], list[Sentence]]) -> list[Sentence]:
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
    """The answer in one sentence, for rows of the same test images."""
    best = best_row(rows)
    if best is None:
        if not rows:
            return [("There is nothing here yet", True), (": no run has begun.", False)]
        if any(row.failed for row in rows) and not any(row.unfinished for row in rows):
            return [("No run has a test result", True), (": all of them failed.", False)]
        if tried := [row for row in rows if row.val_accuracy.mean is not None]:
            leader = max(tried, key=lambda row: (row.val_accuracy.mean or 0.0, -_seconds(row)))
            leads = (
                f" leads on the validation images, at {percent(leader.val_accuracy.mean)}; none has been tested yet."
            )
            return [(name_row(leader, rows), True), (leads, False)]
        return [("No run has finished yet", True), (", so there is no test accuracy to compare.", False)]
    accuracy, sure = best.test_accuracy, _surely(best)
    others = [row for row in rows if row is not best and row.test_accuracy.mean is not None]
    if not others:
        reaches = f" reaches {percent(accuracy.mean)} test accuracy {sure}."
        return [(name_row(best, rows), True), (reaches, False)]
    verb = (" is the most accurate, at ", False)
    doubt = ": chance is not ruled out" if accuracy.std is None else _rivals(best, rows)
    return [(name_row(best, rows), True), verb, (percent(accuracy.mean), True), (f" {sure}{doubt}.", False)]


def supporting(rows: Sequence[Row]) -> list[Sentence]:
    """What belongs beside the headline: the surest row where the best has one seed, and the cheapest as good."""
    best = best_row(rows)
    if best is None or sum(row.test_accuracy.mean is not None for row in rows) < 2:
        return []
    out: list[Sentence] = []
    leader, it = best, "it"
    if best.test_accuracy.std is None:
        sure = best_row([row for row in rows if row.test_accuracy.std is not None])
        if sure is None:
            return []
        leader, it = sure, "that"
        text = f" leads with {percent(sure.test_accuracy.mean)} {_surely(sure)}."
        out.append([("Of the rows with several seeds, ", False), (name_row(sure, rows), True), (text, False)])
    cheaper = [row for row in _as_good(leader, rows) if _seconds(row) < 0.99 * _seconds(leader)]  # less is noise
    if not cheaper:
        return [*out, [(f"No row that trains faster is as good as {it}.", False)]]
    cheap = min(cheaper, key=_seconds)
    accuracy = percent(cheap.test_accuracy.mean, cheap.test_accuracy.std)
    seeds = "" if cheap.test_accuracy.n > 1 else " (one seed)"
    times = f"{duration(cheap.time_s.mean)} of training instead of {duration(leader.time_s.mean)}"
    start = (f"The cheapest that is as good as {it}, for all that can be told, is ", False)
    return [*out, [start, (name_row(cheap, rows), True), (f": {accuracy}{seeds} after {times}.", False)]]


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


def tell(comparisons: Sequence[Comparison], things: str = "models") -> list[Sentence]:
    """Say for each method and budget in how many settings it beat the plain optimizer."""
    groups: dict[tuple[str, str, str], list[Comparison]] = {}
    for comparison in comparisons:
        groups.setdefault((comparison.budget, comparison.sharp, comparison.plain), []).append(comparison)
    return [_tell_one(*key, group, things) for key, group in groups.items()]


def _tell_one(budget: str, sharp: str, plain: str, group: Sequence[Comparison], things: str) -> Sentence:
    start: Sentence = [(f"At equal {budget}, ", False), (sharp, True)]
    if len(group) == 1:
        one = group[0]
        by = f"{points(abs(one.difference)).lstrip('+')} points {'above' if one.difference >= 0 else 'below'}"
        if one.difference == 0:
            by = "exactly as accurate as"
        sure = {
            NOISE: "within noise",
            ONE_SEED: "with one seed, so it may be chance",
            BETTER: "more than chance explains",
            WORSE: "more than chance explains",
        }[one.verdict]
        return [*start, (f" is {by} ", False), (plain, True), (f": {sure}.", False)]
    count = {word: sum(c.verdict == word for c in group) for word in (BETTER, WORSE, NOISE, ONE_SEED)}
    singles = [c.difference for c in group if c.verdict == ONE_SEED]
    ahead = f"{sum(d > 0 for d in singles)} of {len(singles)}"
    tested = len(group) - len(singles)
    if not tested:
        end = f" in {ahead} {things}, with one seed each, so it may be chance."
        return [*start, (" is ahead of ", False), (plain, True), (end, False)]
    rest = [f"{count[word]} {word}" for word in (NOISE, WORSE) if count[word]]
    end = f" in {count[BETTER]} of {tested} {things} with several seeds"
    end += f" ({', '.join(rest)})" if rest else ""
    end += f", and is ahead in {ahead} with one seed only" if singles else ""
    return [*start, (" beats ", False), (plain, True), (f"{end}.", False)]


def _surely(row: Row) -> str:
    """Over how many seeds and test images an accuracy is, and the interval that these leave."""
    n, images = row.test_accuracy.n, row.test_images
    base = "with one seed" if n == 1 else f"over {n} seeds"
    interval = accuracy_interval(row)
    if interval is None:
        return base
    low, high = (f"{100 * edge:.1f}" for edge in interval)
    if n == 1:
        return f"{base} ({low} to {high} by the choice of {images:,.0f} test images)"
    of = f" and {images:,.0f} test images" if images else ""
    return f"{base}{of} (95 %: {low} to {high})"


def _rivals(best: Row, rows: Sequence[Row]) -> str:
    """Who is as good as the best, and who is so little known that it might be."""
    others = sum(row.test_accuracy.mean is not None for row in rows) - 1
    good, doubtful = _as_good(best, rows), _doubtful(best, rows)
    out = ""
    if good:
        who = f"all {others} other rows" if len(good) == others else f"{len(good)} of {others} other rows"
        if len(good) <= 2:
            who = " and ".join(name_row(row, rows) for row in good)
        out = f"; {who} {'is' if len(good) == 1 else 'are'} as good, for all that can be told"
    if doubtful:
        who = f"{len(doubtful)} {'others' if good else 'other rows'}"
        if len(doubtful) <= 2:
            who = " and ".join(f"{name_row(row, rows)} ({_with_seeds(row.test_accuracy)})" for row in doubtful)
        out += f"; too little is known of {who} to rule {'it' if len(doubtful) == 1 else 'them'} out"
    return out


def _with_seeds(accuracy: Stat) -> str:
    return f"{percent(accuracy.mean)}, {'one seed' if accuracy.n == 1 else f'{accuracy.n} seeds'}"


def _not_apart(best: Row, rows: Sequence[Row]) -> list[Row]:
    """The other rows that chance cannot tell from the best."""
    others = [row for row in rows if row is not best and row.test_accuracy.mean is not None]
    return [row for row in others if not difference(best, row).shown]


def _as_good(best: Row, rows: Sequence[Row]) -> list[Row]:
    """Those of them that reach what the best itself may be worth."""
    interval = accuracy_interval(best)
    low = -math.inf if interval is None else interval[0]
    return [row for row in _not_apart(best, rows) if (row.test_accuracy.mean or 0.0) >= low]


def _doubtful(best: Row, rows: Sequence[Row]) -> list[Row]:
    """The others of them: far below, with seeds so few or so far apart that this may be chance."""
    good = _as_good(best, rows)
    return [row for row in _not_apart(best, rows) if row not in good]


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
