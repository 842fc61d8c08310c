"""What the rows say, in words: the best, the cheapest that is as good, and whether a second gradient paid.

Every sentence is computed, and says how sure it can be. A difference counts only where it exceeds the spread of the
seeds, √(s₁² + s₂²) for two rows with sample standard deviations s₁ and s₂, and one image of the test set.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from steppe.config import RunConfig
from steppe.report.layout import Layout
from steppe.report.numbers import duration, percent, points
from steppe.report.sets import name_test_sets, split_by_test_set
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
    """what both spent the same of: epochs or gradient evaluations"""
    difference: float
    spread: float | None
    """None where one of them has a single seed"""
    seeds: tuple[int, int]

    @property
    def verdict(self) -> str:
        """Whether the difference means something."""
        if self.spread is None:
            return ONE_SEED
        if abs(self.difference) <= self.spread:
            return NOISE
        return BETTER if self.difference > 0 else WORSE


def pareto_front(rows: Sequence[Row], cost: str = "time_s") -> list[int]:
    """Find the rows that no other row beats: none is at least as accurate at no more cost, and better in one.

    Returns:
        The rows' positions, from the cheapest to the most accurate.
    """
    at = [(row.stat(cost).mean, row.test_accuracy.mean) for row in rows]
    known = [(c, a, i) for i, (c, a) in enumerate(at) if c is not None and a is not None]
    front = [
        (c, i)
        for c, a, i in known
        if not any(other <= c and better >= a and (other < c or better > a) for other, better, _ in known)
    ]
    return [i for _, i in sorted(front)]


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


def answers(rows: Sequence[Row], images: Mapping[str, float | None] | None = None) -> list[Sentence]:
    """The answer in one sentence, or in one for each test set.

    Args:
        rows: the summary.
        images: how many test images there are, by the test set's name.
    """
    return _on_each(rows, lambda own, name: [headline(own, (images or {}).get(name))])


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
    sure = f", beyond one standard deviation of every other row on {clear if clear < wins else 'all'} of them"
    if clear == 0:
        sure = ", but on none of them by more than one standard deviation"
    if others and others[0][1] == wins:
        sure += f"; {others[0][0]} is on as many"
    return [(name, True), (" is the most accurate on ", False), (start, True), (f"{sure}.", False)]


def supports(rows: Sequence[Row]) -> list[Sentence]:
    """What belongs beside the answers, where these are few."""
    return _on_each(rows, lambda own, name: supporting(own)) if len(split_by_test_set(rows)) < 3 else []


def _on_each(rows: Sequence[Row], say: Callable[[list[Row], str], list[Sentence]]) -> list[Sentence]:
    groups = split_by_test_set(rows)
    if len(groups) < 2:
        return say(list(rows), next(iter(groups), ""))
    out = []
    for name, own in groups.items():
        members = [rows[index] for index in own]
        if best_row(members) is not None:
            out += [[("On ", False), (name, True), (": ", False), *s] for s in say(members, name)]
    return out or say(list(rows), "")


def headline(rows: Sequence[Row], images: float | None = None) -> Sentence:
    """The answer in one sentence, for rows of the same test images.

    Args:
        rows: the summary.
        images: how many test images there are; with one seed they alone say how sure an accuracy is.
    """
    best = best_row(rows)
    if best is None:
        if any(row.failed for row in rows) and not any(row.unfinished for row in rows):
            return [("No run has a test result", True), (": all of them failed.", False)]
        return [("No run has finished yet", True), (", so there is no test accuracy to compare.", False)]
    accuracy = best.test_accuracy
    shown = percent(accuracy.mean, accuracy.std)
    if sum(row.test_accuracy.mean is not None for row in rows) == 1:
        sure = _margin(accuracy, images)
        return [(name_row(best, rows), True), (f" reaches {shown} test accuracy {_over(accuracy.n)}{sure}.", False)]
    verb = (" is the most accurate, at ", False)
    if accuracy.std is None:
        doubt = f" with {_count(accuracy.n, 'seed')}{_margin(accuracy, images)}: chance is not ruled out."
        return [(name_row(best, rows), True), verb, (shown, True), (doubt, False)]
    rivals = len(_as_good(best, rows))
    doubt = f", but {_count(rivals, 'other row')} came within one standard deviation" if rivals else ""
    return [(name_row(best, rows), True), verb, (shown, True), (f" {_over(accuracy.n)}{doubt}.", False)]


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
        accuracy = f" leads with {percent(sure.test_accuracy.mean, sure.test_accuracy.std)}"
        seeds = f" {_over(sure.test_accuracy.n)}."
        out.append(
            [("Of the rows with several seeds, ", False), (name_row(sure, rows), True), (accuracy + seeds, False)]
        )
    cheaper = [row for row in _as_good(leader, rows) if _seconds(row) < 0.99 * _seconds(leader)]  # less is noise
    if not cheaper:
        return [*out, [(f"No row that trains faster comes within one standard deviation of {it}.", False)]]
    cheap = min(cheaper, key=_seconds)
    accuracy = percent(cheap.test_accuracy.mean, cheap.test_accuracy.std)
    seeds = "" if cheap.test_accuracy.n > 1 else " (one seed)"
    times = f"{duration(cheap.time_s.mean)} of training instead of {duration(leader.time_s.mean)}"
    start = (f"The cheapest within one standard deviation of {it} is ", False)
    return [*out, [start, (name_row(cheap, rows), True), (f": {accuracy}{seeds} after {times}.", False)]]


def compare(
    rows: Sequence[Row], layout: Layout, examples: float | Mapping[str, float | None] | None = None
) -> list[Comparison]:
    """Set every sharpness-aware row against the plain rows that spent the same, epochs or gradient evaluations.

    Args:
        rows: the summary.
        layout: how the rows are named.
        examples: images in the test set, or in each by its name; a difference of one image is never more than noise.
    """
    out = []
    names = name_test_sets(rows)
    known = examples if isinstance(examples, Mapping) else dict.fromkeys(names, examples)
    for budget in ("epochs", "gradient_evaluations"):
        for sharp, row in enumerate(rows):
            if row.config.minimizer.name == "base" or row.test_accuracy.mean is None:
                continue
            for plain, other in enumerate(rows):
                if _is_plain_twin(other, row) and _spent_the_same(row.stat(budget), other.stat(budget)):
                    assert other.test_accuracy.mean is not None
                    out.append(
                        Comparison(
                            layout.panel_of[sharp],
                            layout.series_of[sharp],
                            layout.series_of[plain],
                            budget.replace("_", " "),
                            row.test_accuracy.mean - other.test_accuracy.mean,
                            _spread(row.test_accuracy, other.test_accuracy, known.get(names[sharp])),
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
            BETTER: "more than the seeds spread",
            WORSE: "more than the seeds spread",
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


def _margin(accuracy: Stat, images: float | None) -> str:
    """With one seed, how far off the accuracy may be by the choice of so many test images: Wilson's interval, 95 %."""
    if accuracy.std is not None or accuracy.mean is None or not images:
        return ""
    z, p = 1.96, accuracy.mean
    middle = (p + z * z / (2 * images)) / (1 + z * z / images)
    reach = z / (1 + z * z / images) * math.sqrt(p * (1 - p) / images + z * z / (4 * images * images))
    low, high = 100 * max(0.0, middle - reach), 100 * min(1.0, middle + reach)
    return f" ({low:.1f} to {high:.1f} by the choice of {images:,.0f} test images)"


def _as_good(best: Row, rows: Sequence[Row]) -> list[Row]:
    floor = (best.test_accuracy.mean or 0.0) - (best.test_accuracy.std or 0.0)
    return [row for row in rows if row is not best and (row.test_accuracy.mean or -1.0) >= floor]


def _is_plain_twin(plain: Row, sharp: Row) -> bool:
    """Whether `plain` differs from `sharp` in its minimizer and in what it spent, and in nothing else."""
    if plain.config.minimizer.name != "base" or plain.test_accuracy.mean is None:
        return False
    return _rest(plain.config) == _rest(sharp.config)


def _rest(config: RunConfig) -> dict[str, object]:
    return config.model_dump(exclude={"seed", "minimizer", "budget"})


def _spent_the_same(a: Stat, b: Stat) -> bool:
    return a.mean is not None and b.mean is not None and math.isclose(a.mean, b.mean, rel_tol=0.02)


def _spread(a: Stat, b: Stat, examples: float | None) -> float | None:
    if a.std is None or b.std is None:
        return None
    one_image = 1.000001 / examples if examples else 0.0
    return max(math.hypot(a.std, b.std), one_image)


def _seconds(row: Row) -> float:
    return math.inf if row.time_s.mean is None else row.time_s.mean


def _over(n: int) -> str:
    return "with one seed" if n == 1 else f"over {n} seeds"


def _count(n: int, thing: str) -> str:
    return f"{'one' if n == 1 else n} {thing}{'' if n == 1 else 's'}"
