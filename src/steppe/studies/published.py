"""Published figures beside a study: `published.csv`, one line a cell of a table, with its place in the document.

    value,unit,seed,table,row,column,measure,labels,note
    92.3,%,004,I,Accuracy,ADAM,test_accuracy,"model=WRN-28-10, training=Adam",best of 50 epochs

`measure` and `labels` say which measure of which cell of the study is to be compared with it; both are empty where the
study has no counterpart, and `note` then says why.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

from steppe.config import StudyConfig, check_measure, study_cells
from steppe.config.cells import ClaimSyntaxError, Measure, parse_labels
from steppe.errors import ConfigError
from steppe.plain_files import read_plain_text
from steppe.studies.measures import check_name

COLUMNS = ("value", "unit", "seed", "table", "row", "column", "measure", "labels", "note")
UNITS: dict[str, float] = {"": 1.0, "%": 100.0, "M": 1e-6, "MMAC": 0.5e-6, "s": 1.0, "min": 1 / 60, "px": 1.0}
"""Unit -> what a measure is multiplied by to be shown in it. A multiply-add is two of our FLOPs."""


@dataclass(frozen=True)
class Published:
    """One published figure: a number, or a word such as an optimizer's name."""

    value: float | str
    unit: str
    seed: str
    table: str
    row: str
    column: str
    measure: Measure | None
    note: str


def read_published(study: StudyConfig, path: Path) -> list[Published]:
    """Read the published figures beside a study's file; none where there is no `published.csv`.

    Args:
        study: with all of its scales, so that every label can be checked.
        path: the study's file.

    Raises:
        ConfigError: a line cannot be read, or names a cell or a measure that does not exist.
    """
    file = path.parent / "published.csv"
    if not file.is_file():
        return []
    try:
        text = read_plain_text(file)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file cannot be read as text: {error}", where=str(file)) from None
    reader = csv.DictReader(io.StringIO(text), strict=True)
    cells = study_cells(study, where=str(path))
    out = []
    try:
        if tuple(reader.fieldnames or ()) != COLUMNS:
            what = f"the columns are {', '.join(reader.fieldnames or ())}"
            raise ConfigError(what, where=str(file), fix=f"they should be {', '.join(COLUMNS)}")
        for line in reader:
            where = f"{file}, line {reader.line_num}"
            if None in line or None in line.values():
                what = f"this line does not have {len(COLUMNS)} columns"
                raise ConfigError(what, where=where, fix="put what has a comma in it between quotes")
            figure = _read_line({key: value.strip() for key, value in line.items()}, where)
            if figure.measure:
                check_measure(figure.measure, cells, where)
            out.append(figure)
    except csv.Error as error:
        raise ConfigError(f"this is not readable CSV: {error}", where=f"{file}, line {reader.line_num}") from None
    return out


def _read_line(line: dict[str, str], where: str) -> Published:
    if line["unit"] not in UNITS:
        fix = f"there are {', '.join(filter(None, UNITS))}, or none"
        raise ConfigError(f"unknown unit {line['unit']!r}", where=where, fix=fix)
    if not line["value"] or not line["seed"]:
        raise ConfigError("a published figure needs its value and its document", where=where)
    measure = None
    if line["measure"]:
        problem = check_name(line["measure"])
        if problem:
            raise ConfigError(problem, where=where)
        try:
            measure = Measure(line["measure"], tuple(parse_labels(line["labels"]).items()))
        except ClaimSyntaxError as error:
            raise ConfigError(str(error), where=f"{where}, labels") from None
    elif not line["note"]:
        raise ConfigError("a figure without a measure needs a note that says why", where=where)
    try:
        value: float | str = float(line["value"])
    except ValueError:
        value = line["value"]
    places = (line["unit"], line["seed"], line["table"], line["row"], line["column"])
    return Published(value, *places, measure, line["note"])
