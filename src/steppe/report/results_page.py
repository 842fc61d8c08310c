"""Markdown pages of a folder of results: a page with every study's tables, and a short table for a README.

A results folder holds one folder for each study (run folders without weights, `compare.json`), and perhaps CSV files of
benchmarks. Everything on the page is read from there; nothing is typed.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mode
from typing import Any

from steppe.config import name_source
from steppe.config.cells import parse_labels
from steppe.errors import RunError
from steppe.plain_files import read_plain_text
from steppe.report.comparison import claim_interval, differing_data
from steppe.report.numbers import MISSING, compact, duration, number, percent, whole
from steppe.report.record import Record, dig
from steppe.report.rows import Row, Stat, name_axis, spread
from steppe.runs import Output

BEGIN, END = "<!-- results: begin (made by `steppe study publish`) -->", "<!-- results: end -->"

MADE_BY = "Made by `steppe study publish`"
RESULTS_PAGE = Output("a page of results", re.compile(rb"\A# Results\n\n" + MADE_BY.encode()))
"""How the page is known among the files of others."""

_GEOMETRY = {
    "λmax": ("geometry", "lambda_max", "parts", "whole", "lambda_max", "value"),
    "loss under noise": ("geometry", "noise_loss", "mean"),
    "κ": ("geometry", "ntk", "kappa"),
    "κ at first": ("geometry", "ntk_initial", "kappa"),
    "missing rate": ("geometry", "missing_rate", "rate"),
    "corruptions": ("robustness", "corruptions", "mean"),
    "PGD": ("robustness", "attacks", "pgd"),
}

_LAYERS = {"embedding": "embedding", "attention": "attention, token mixing", "mlp": "MLPs"}
"""Parts of a network across its blocks, and what they are called."""

_BLOCKS = {"first block": 0, "middle block": 0.5, "last block": 1}
"""Blocks that networks of any depth have, and how deep they lie."""


_SCALES_LEFT_OUT = ("smoke", "laptop", "own")
"""Scales for machines without a GPU, which a README's table does not show."""

_MOST_ROWS = 8
"""Rows of a README's table."""


@dataclass(frozen=True)
class StudyResults:
    """A study's folder of results, read."""

    name: str
    title: str
    question: str
    scale: str
    rows: list[Row]
    records: list[Record]
    comparison: Mapping[str, Any]
    pictures: Mapping[str, str]
    """Paths of pictures to show, as the page links them, and what each shows, where that is not in the picture."""


def render_page(
    studies: Sequence[StudyResults], benchmarks: Mapping[str, Sequence[Mapping[str, str]]], sources: str | None = None
) -> str:
    """Render the page of all results as Markdown.

    Args:
        studies: in the order they are to come.
        benchmarks: rows of CSV files by the file's name without its ending.
        sources: the page that says what source 004 is, as this one links it.
    """
    lines = [
        "# Results",
        "",
        f"{MADE_BY} from what `results/` holds: do not edit.",
        "Test accuracy after the last epoch, no test-time augmentation; ± is the standard deviation over seeds. A",
        "claim *holds* or *does not hold* when its 95 % interval over seeds lies on one side, and else is undecided.",
        *([f"What source 004 and the others are: [sources]({sources})."] if sources else []),
        "",
        *_render_overview(studies),
    ]
    for study in studies:
        lines += ["", *_render_study(study)]
    for name, rows in benchmarks.items():
        lines += ["", *_render_benchmark(name, rows)]
    return "\n".join(lines).rstrip() + "\n"


def render_summary(studies: Sequence[StudyResults], page: str) -> list[str]:
    """Render the README's table: at most eight studies, and how many of their claims hold.

    A study is counted once, at paper scale where that was run. Runs at scales for machines without a GPU are left out.
    Those with most decided claims come first.

    Args:
        studies: what was found.
        page: path of the page of all results, as the README links it.
    """
    shown: dict[str, StudyResults] = {}
    for study in sorted(studies, key=lambda one: (one.scale != "paper", -_decided(one))):
        if study.scale not in _SCALES_LEFT_OUT:
            shown.setdefault(study.name, study)
    most_decided = sorted(
        shown.values(), key=lambda one: (-_decided(one), one.scale != "paper", -_verdicts(one).total())
    )
    most_decided = most_decided[:_MOST_ROWS]
    lines = _header("study", "claims that hold", "that do not", "undecided") if most_decided else []
    for study in most_decided:
        counts = _verdicts(study)
        link = f"[{study.name}]({page}#{_anchor(study.title)})"
        lines.append(_row(link, *(str(counts[verdict]) for verdict in ("holds", "does not hold", "undecided"))))
    runs = sum(len(study.records) for study in studies)
    return [*lines, *([""] if lines else []), f"[All results]({page}): tables, intervals and seeds of {runs} runs."]


def _render_overview(studies: Sequence[StudyResults]) -> list[str]:
    """Render one line a study: accuracies published and ours, and how many of its claims came out how.

    A column of accuracies that is empty in every line is left out.
    """
    rows = []
    for study in studies:
        counts = _verdicts(study)
        holds, fails = counts["holds"], counts["does not hold"]
        undecided = counts["undecided"]
        others = counts.total() - holds - fails - undecided
        cells = [cell for cell in _compared(study) if "accuracy" in str(cell.get("measure"))][:5]
        named = list(zip(_cell_names(cells), cells, strict=True))
        theirs = "; ".join(f"{name} {_value(cell.get('value'), cell.get('unit'))}".strip() for name, cell in named)
        ours = "; ".join(f"{name} {_measured(cell)}".strip() for name, cell in named)
        if (there := differing_data(cells)) and all(cell.get("published_on") for cell in cells):
            theirs, ours = f"on {there[0]}: {theirs}", f"on {there[1]}, {_scale(study)}: {ours}"
        elif cells and study.scale != "paper":
            ours = f"{_scale(study)}: {ours}"
        if not cells and len(study.rows) <= 6:
            ours = "; ".join(f"{', '.join(row.labels.values())} {_accuracy(row.test_accuracy)}" for row in study.rows)
        link = f"[{study.title}](#{_anchor(study.title)})"
        rows.append((link, theirs, ours, *(str(count) for count in (holds, fails, undecided, others))))
    names = (
        "study",
        "published accuracy, %",
        "our accuracy, %",
        "claims that hold",
        "that do not",
        "undecided",
        "not measured",
    )
    kept = [at for at in range(len(names)) if at not in (1, 2) or any(row[at] for row in rows)]
    lines = _header(*(names[at] for at in kept))
    return lines + [_row(*(row[at] or MISSING for at in kept)) for row in rows]


def _verdicts(study: StudyResults) -> Counter[str]:
    """Count the study's claims by verdict."""
    return Counter(str(claim.get("verdict")) for claim in study.comparison.get("claims", []))


def _decided(study: StudyResults) -> int:
    """Count the claims that hold and those that do not."""
    counts = _verdicts(study)
    return counts["holds"] + counts["does not hold"]


def put_between_marks(text: str, lines: Sequence[str], where: str) -> str:
    """Replace what stands between the marks of a text.

    Args:
        text: of a Markdown file.
        lines: to put there.
        where: the file, for the error.

    Raises:
        RunError: the marks are not there, in order.
    """
    start, end = text.find(BEGIN), text.find(END)
    if start < 0 or end < start:
        raise RunError(
            "the marks of the results table are missing", where=where, fix=f"add the lines {BEGIN} and {END}"
        )
    return text[: start + len(BEGIN)] + "\n" + "\n".join(lines) + "\n" + text[end:]


def read_benchmarks(folder: Path) -> dict[str, list[dict[str, str]]]:
    """Read the CSV files of a results folder, by name.

    Args:
        folder: the results.
    """
    found = {}
    for path in sorted(folder.glob("*.csv")):
        try:
            text = read_plain_text(path)
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(f"the file cannot be read: {error}", where=str(path)) from None
        found[path.stem] = list(csv.DictReader(io.StringIO(text, newline="")))
    return found


# -- one study ----------------------------------------------------------------------------------------------------


def _render_study(study: StudyResults) -> list[str]:
    finished = sum(row.finished for row in study.rows)
    machines = _facts(study.records, "device_name") or _facts(study.records, "device")
    torches = _facts(study.records, "versions", "torch")
    commits = _facts(study.records, "commit")
    made = f"{finished} runs at {_scale(study, '`')} on {machines or 'a machine that is not known'}, torch {torches}"
    lines = [f"## {study.title}", "", f"*{study.question}*", "", f"{made}; commit {commits or 'not known'}.", ""]
    if networks := _networks(study):
        lines += [f"Networks: {networks}.", ""]
    lines += _run_table(study)
    lines += _part_table(study)
    if claims := study.comparison.get("claims"):
        lines += ["", *_claim_table(claims)]
    if cells := _compared(study):
        if there := differing_data(cells):
            lines += ["", f"Figures of {there[0]} stand beside ours of {there[1]} without a difference."]
        lines += ["", *_cell_table(cells)]
    for picture, about in study.pictures.items():
        lines += ["", *([f"{about}, the first seed of each:", ""] if about else [])]
        lines.append(f"![{about or study.title}]({picture})")
    return lines


def _scale(study: StudyResults, quote: str = "") -> str:
    """Name the scale, with what most of its runs have made smaller: the images, or their number."""
    smaller = []
    if study.records:
        images = [record.config.data for record in study.records]
        side, share = mode(one.image_size for one in images), mode(one.fraction or 1.0 for one in images)
        smaller += [f"images at {side} px"] if side else []
        smaller += [f"{share:g} of them" if side else f"{share:g} of the images"] if share < 1 else []
    return f"scale {quote}{study.scale}{quote}" + (f" ({', '.join(smaller)})" if smaller else "")


def _networks(study: StudyResults) -> str:
    """Name the network behind each label: a scale may use a smaller one than the source."""
    by_id = {record.id: record for record in study.records}
    names: dict[str, dict[str, None]] = {}
    for row in study.rows:
        for run in row.run_ids:
            if (label := row.labels.get("model")) and run in by_id:
                names.setdefault(label, {})[f"`{by_id[run].config.model.name}`"] = None
    return "; ".join(f"{label} is {' or '.join(found)}" for label, found in names.items())


def _run_table(study: StudyResults) -> list[str]:
    axes = list(study.rows[0].labels) if study.rows else []
    by_id = {record.id: record for record in study.records}
    shown = {name: keys for name, keys in _GEOMETRY.items() if any(_dig(r, keys) is not None for r in study.records)}
    names = ["test accuracy, %", "gap", "parameters", "gradients", "time / epoch", *shown]
    lines = _header(*(name_axis(axis) for axis in axes), *names)
    for row in study.rows:
        gap = spread([_gap(by_id[run]) for run in row.run_ids if run in by_id])
        measured = [spread([_dig(by_id[run], keys) for run in row.run_ids if run in by_id]) for keys in shown.values()]
        lines.append(
            _row(
                *(row.labels[axis] for axis in axes),
                _accuracy(row.test_accuracy),
                percent(gap.mean, unit=""),
                compact(row.parameters.mean),
                whole(row.gradient_evaluations.mean),
                duration(row.time_per_epoch_s.mean),
                *(_stat(stat) for stat in measured),
            )
        )
    return lines


def _part_table(study: StudyResults) -> list[str]:
    """Render λmax by part, ‖w‖, and ‖a‖ of three blocks, where a study has measured any of them."""
    by_id = {record.id: record for record in study.records}
    found = [[_by_part(by_id[run]) for run in row.run_ids if run in by_id] for row in study.rows]
    columns = [f"λmax: {part}" for part in (*_LAYERS.values(), *_BLOCKS)]
    columns += ["‖w‖", *(f"‖a‖: {block}" for block in _BLOCKS)]
    columns = [column for column in columns if any(v.get(column) is not None for each in found for v in each)]
    if not columns:
        return []
    axes = list(study.rows[0].labels)
    lines = ["", *_header(*(name_axis(axis) for axis in axes), *columns)]
    for row, each in zip(study.rows, found, strict=True):
        stats = [spread([values.get(column) for values in each]) for column in columns]
        if any(stat.mean is not None for stat in stats):
            lines.append(_row(*(row.labels[axis] for axis in axes), *map(_stat, stats)))
    return lines


def _by_part(record: Record) -> dict[str, float | None]:
    """Return what a run has of each column of the table of parts."""
    parts = dig(record.geometry, "lambda_max", "parts")
    norms = dig(record.geometry, "norms", "activations")
    values = {"‖w‖": _dig(record, ("geometry", "norms", "weights", "whole"))}
    for part, name in _LAYERS.items():
        values[f"λmax: {name}"] = number(dig(parts, part, "lambda_max", "value"))
    for name, depth in _BLOCKS.items():
        values[f"λmax: {name}"] = number(dig(parts, _block(parts, depth), "lambda_max", "value"))
        values[f"‖a‖: {name}"] = number(dig(norms, _block(norms, depth), "norm"))
    return values


def _block(parts: Any, depth: float) -> str:
    """Name the block at a relative depth: of twelve the sixth is the middle one."""
    named = [re.fullmatch(r"block(\d+)", part) for part in parts] if isinstance(parts, dict) else []
    blocks = sorted(int(match[1]) for match in named if match)
    return f"block{blocks[int((len(blocks) - 1) * depth)]}" if blocks else ""


def _claim_table(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = _header("claim", "from", "difference, 95 %", "seeds", "holds?")
    for claim in claims:
        verdict = str(claim.get("verdict") or MISSING)
        verdict = f"**{verdict}**" if verdict in ("holds", "does not hold") else verdict
        words = (str(claim.get("text") or ""), name_source(str(claim.get("seed") or "steppe")), claim_interval(claim))
        lines.append(_row(*words, str(claim.get("seeds") or MISSING), verdict))
    return lines


def _cell_table(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = _header("published in", "row", "column", "published", "ours", "difference")
    for cell in cells:
        where = ", ".join(filter(None, (name_source(str(cell.get("seed") or "")), str(cell.get("table") or ""))))
        difference = number(cell.get("difference"))
        apart = MISSING if difference is None else f"{difference:+.3g}"
        words = (where, str(cell.get("row") or ""), str(cell.get("column") or ""))
        lines.append(_row(*words, _value(cell.get("value"), cell.get("unit")), _measured(cell), apart))
    return lines


def _compared(study: StudyResults) -> list[Mapping[str, Any]]:
    """List published figures with a counterpart here; a recipe's settings agree by construction and are left out."""
    cells = study.comparison.get("cells", [])
    return [c for c in cells if c.get("measured") is not None and not str(c.get("measure")).startswith("config.")]


def _cell_names(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name each cell by its labels, without those that all of them share."""
    labels = [parse_labels(str(cell.get("measure")).partition("[")[2].removesuffix("]")) for cell in cells]
    shared = set.intersection(*(set(each.items()) for each in labels)) if len(labels) > 1 else set()
    return [", ".join(label for axis, label in each.items() if (axis, label) not in shared) for each in labels]


def _measured(cell: Mapping[str, Any]) -> str:
    std = number(cell.get("std"))
    text = _value(cell.get("measured"), cell.get("unit"))
    return text + (f" ± {std:.2g}" if std else "")


def _value(value: Any, unit: Any) -> str:
    found = number(value)
    text = str(value) if found is None else f"{found:.4g}"
    return f"{text} {unit}".strip() if unit else text


def _gap(record: Record) -> float | None:
    train, test = (number(dig(record.summary, part, "accuracy")) for part in ("train", "test"))
    return None if train is None or test is None else train - test


def _dig(record: Record, keys: tuple[str, ...]) -> float | None:
    return number(dig(getattr(record, keys[0], None), *keys[1:]))


def _accuracy(stat: Stat) -> str:
    if stat.mean is None:
        return MISSING
    return f"{100 * stat.mean:.2f}" + (f" ± {100 * stat.std:.2f}" if stat.std is not None else "")


def _stat(stat: Stat) -> str:
    if stat.mean is None:
        return MISSING
    return _digits(stat.mean, 3) + (f" ± {_digits(stat.std, 2)}" if stat.std is not None else "")


def _digits(value: float, count: int) -> str:
    """Show a number with so many significant digits, and no power of ten where it reads well without."""
    return f"{value:,.0f}" if 100 <= abs(value) < 1e7 else f"{value:.{count}g}"


def _facts(records: Sequence[Record], *keys: str) -> str:
    found = {_short_commit(str(value)) for record in records if (value := dig(record.env, *keys))}
    return ", ".join(sorted(found))


def _short_commit(text: str) -> str:
    """Shorten a commit to seven digits; return anything else as it is."""
    return re.sub(r"^([0-9a-f]{7})[0-9a-f]+(\+?)$", r"\1\2", text)


# -- benchmarks ---------------------------------------------------------------------------------------------------

_LEFT_OUT = ("machine", "torch", "python", "commit", "date", "repeats", "ms_min", "ms_max", "platform", "steppe")


def _render_benchmark(name: str, rows: Sequence[Mapping[str, str]]) -> list[str]:
    if not rows:
        return []
    columns = [key for key in rows[0] if key not in _LEFT_OUT and any(row.get(key) for row in rows)]
    made = ", ".join(dict.fromkeys(row[key] for key in ("machine", "torch", "commit") for row in rows if row.get(key)))
    lines = [f"## Benchmark {name.replace('_', ' ')}", "", f"`results/{name}.csv`; {made}.", ""]
    lines += _header(*(column.replace("_", " ") for column in columns))
    return lines + [_row(*(_shorten(row.get(column) or "") for column in columns)) for row in rows]


def _shorten(cell: str) -> str:
    """Round a number with more digits than were measured to five."""
    try:
        return f"{float(cell):.5g}" if len(cell) > 8 else cell
    except ValueError:
        return cell


# -- Markdown -----------------------------------------------------------------------------------------------------


def _header(*names: str) -> list[str]:
    return [_row(*names), "|" + "---|" * len(names)]


def _row(*cells: str) -> str:
    return "| " + " | ".join(_escape(cell) for cell in cells) + " |"


def _escape(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")


def _anchor(title: str) -> str:
    """Return the anchor that Markdown makes of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
