"""Measures added to what is there: a run folder, or a folder made for a model with weights from elsewhere.

Every result is written as soon as it is found, with its settings beside it; one that is there with the same settings
is not computed again, and one of other settings is kept (see `steppe.runs.results`). What a long measure has found so
far lies in `<file>.partial.json` until it is done.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from steppe import models
from steppe.errors import Interrupted, MeasureError, SteppeError
from steppe.evaluate import suit_batch
from steppe.measuring import Measure, Settings, numerics
from steppe.runs import drop_result, find_result, locked, put_result, read_json, write_json
from steppe.studies.subjects import Subject

Event = Literal["start", "part", "done", "kept", "left_out", "remark"]
Notify = Callable[[Event, str, dict[str, Any]], None]

_EVERY_S = 1.0
"""So often, at the most, is a partial result written."""


def add_results(
    subject: Subject,
    file: str,
    chosen: Mapping[str, Measure],
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    strict: bool = False,
    quick: bool = False,
    again: bool = False,
    batch_size: int | None = None,
    data_root: Path | None = None,
    other: Subject | None = None,
    refused: dict[str, SteppeError] | None = None,
    notify: Notify = lambda event, name, details: None,
) -> dict[str, Any]:
    """Measure what is not there yet and add it to a JSON file of the folder, one result at a time.

    Args:
        subject: what to measure.
        file: such as "geometry.json"; keys of others stay.
        chosen: the measures.
        changes: measure -> settings that differ from its defaults.
        strict: a measure that means nothing for this model is an error, and not passed over.
        quick: take each measure's quick settings.
        again: measure even where results exist.
        batch_size: images at a time, to begin with; by default 512, and on a CPU as many as its cache holds.
        data_root: where published corruptions lie.
        other: a second run, for measures between two. A result knows it by its weights, wherever it lies.
        refused: takes what could not be measured, and why, while the others go on; without it the first one is raised.
        notify: told what goes on.

    Returns:
        Everything the file now holds.
    """
    path = subject.folder / file
    unfinished = path.with_suffix(".partial.json")
    with locked(subject.folder, "run"):
        say = partial(_say, notify, file)
        results, parts = _read(path, say), _read(unfinished, say)
        for name, measure in chosen.items():
            key = measure.key or name
            values = settings_of(measure, (changes or {}).get(name, {}), quick=quick)
            if other is not None and name in ("between", "attacks"):
                values |= {"with": str(other.folder), "with_sha256": models.weights_sha256(str(other.folder))}
            there = find_result(results, key, values, measure.defaults)
            if measure.of_training and not strict and name not in (changes or {}):
                there = _whole(results.get(key)) or there
            if there is not None and not again:
                if "with" in values and there["settings"].get("with") != values["with"]:  # the second run was moved
                    there = {**there, "settings": {**there["settings"], "with": values["with"]}}
                if there is not results.get(key):  # the last one asked for stands in front
                    results = put_result(results, key, there, measure.defaults)
                    write_json(path, results)
                notify("kept", name, there)
                continue
            notify("start", name, {"about": measure.about})
            before = find_result(parts, key, values, measure.defaults) or {}
            keeper = _Keeper(unfinished, key, values, measure.defaults, say)
            settings = Settings(
                values,
                device=subject.device,
                batch_size=batch_size or suit_batch(512, subject.dataset.image_size, subject.device),
                loss=subject.loss,
                root=data_root,
                other=other.model if other else None,
                fresh=subject.fresh,
                known=None if again else before.get("found"),
                keep=keeper,
                tell=partial(_tell, notify, name),
                say=partial(_say, notify, name),
            )
            began = time.monotonic()
            try:
                with numerics("float32"):
                    found = measure.function(subject.model, subject.dataset, settings)
            except SteppeError as error:
                passed_over = isinstance(error, MeasureError) and not strict
                if isinstance(error, Interrupted) or (refused is None and not passed_over):
                    raise
                if refused is not None and not passed_over:
                    refused[name] = error
                notify("left_out", name, {"reason": error.what})
                continue
            precision = _precision(found, subject.model)
            made_on = {"device": str(subject.device), "torch": torch.__version__, "precision": precision}
            if there is None:
                _say_what_stays(measure, results.get(key), values, partial(_say, notify, name))
            result = {**_jsonable(found), "settings": values, "made_on": made_on}
            results = put_result(_read(path, say), key, result, measure.defaults)
            write_json(path, results)
            keeper.forget()
            seconds = time.monotonic() - began
            _add_seconds(subject.folder / "cost.json", name, seconds, say)
            notify("done", name, {**results[key], "time_s": seconds})
    return results


def _add_seconds(path: Path, name: str, seconds: float, say: Callable[[str], None]) -> None:
    """Keep what a measure took when last made, by the process that ended it, beside what training cost.

    Not in the measure's own file, which is the same to the bit every time.
    """
    cost = _read(path, say)
    measuring = cost.get("measuring_s")
    known = measuring if isinstance(measuring, dict) else {}
    write_json(path, {**cost, "measuring_s": {**known, name: round(seconds, 3)}})


def _precision(found: Mapping[str, Any], model: nn.Module) -> str:
    """The precision a figure was made in: what it says itself, else that of the weights."""
    how = found.get("how")
    stated = how.get("precision") if isinstance(how, Mapping) else None
    return stated or str(next(model.parameters()).dtype).removeprefix("torch.")


def _whole(result: Any) -> dict[str, Any] | None:
    """A result that says what it found and with which settings; None where it is damaged."""
    return result if isinstance(result, dict) and "mean" in result and "settings" in result else None


def _say_what_stays(measure: Measure, old: Any, values: dict[str, Any], say: Callable[[str], None]) -> None:
    """Tell that a figure of other settings is not lost."""
    if isinstance(old, dict) and isinstance(before := old.get("settings"), dict):
        before = {**measure.defaults, **before}
        changed = ", ".join(f"{k}={before.get(k)}" for k in {**before, **values} if before.get(k) != values.get(k))
        say(f"the figure with {changed} is kept, under 'earlier'")


class _Keeper:
    """Writes what a measure has found so far, now and then."""

    def __init__(
        self, path: Path, key: str, values: dict[str, Any], defaults: dict[str, Any], say: Callable[[str], None]
    ) -> None:
        self.path, self.key, self.values, self.defaults, self.say = path, key, values, defaults, say
        self.written = -math.inf

    def __call__(self, found: Any) -> None:
        if time.monotonic() - self.written < _EVERY_S:
            return
        entry = {"settings": self.values, "found": _jsonable(found)}
        write_json(self.path, put_result(_read(self.path, self.say), self.key, entry, self.defaults))
        self.written = time.monotonic()

    def forget(self) -> None:
        left = drop_result(_read(self.path, self.say), self.key, self.values, self.defaults)
        if left:
            write_json(self.path, left)
        else:
            self.path.unlink(missing_ok=True)


def _tell(notify: Notify, name: str, done: int, total: int) -> None:
    notify("part", name, {"done": done, "total": total})


def _say(notify: Notify, name: str, text: str) -> None:
    notify("remark", name, {"text": text})


def settings_of(measure: Measure, changes: Mapping[str, Any], *, quick: bool = False) -> dict[str, Any]:
    """All settings of a measure, as they are stored beside what it finds."""
    return json.loads(json.dumps({**measure.defaults, **(measure.quick if quick else {}), **changes}))


def _read(path: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Read what was measured before; what is damaged is set aside under another name, not written over."""
    try:
        value = read_json(path) if path.exists() else {}
    except SteppeError:
        value = None
    if isinstance(value, dict):
        return value
    aside = next(p for n in itertools.count(1) if not (p := path.with_suffix(f".damaged-{n}.json")).exists())
    path.rename(aside)
    say(f"{path.name} is damaged; it is kept as {aside.name}, and what it held is measured anew as it is asked for")
    return {}


def _jsonable(value: Any) -> Any:
    """The same with None for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {str(key): _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
