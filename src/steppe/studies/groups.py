"""From what a user names to groups of runs that can be compared: one configuration each, with every run's answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from steppe.config import RunConfig
from steppe.data import in_order
from steppe.errors import RunError
from steppe.evaluate import predict, suit_batch
from steppe.measuring import ignore
from steppe.runs import Answers, Run, find_runs, read_answers, read_json, split_group, write_answers
from steppe.studies.subjects import Subject, open_run
from steppe.studies.versus import Group


def find_group(
    name: str, *, data_root: str | Path | None = None, device: str | None = None, tell: Callable[[str], None] = print
) -> Group:
    """The runs a user means, with their answers on the test set; those that are missing are made from the weights.

    Args:
        name: a run folder, a folder of runs that differ in their seed alone, or `FOLDER:LABEL=VALUE,…` for those of a
            study's folder.
        data_root: where named data sets live.
        device: to make answers on.
        tell: told what takes time.

    Raises:
        RunError: there are none, or they differ in more than their seed.
    """
    folder, chosen = split_group(name)
    runs = [run for run in find_runs([folder]) if run.read_or_empty("summary.json").get("status") == "finished"]
    if chosen:
        runs = _with_labels(runs, folder, chosen)
    if not runs:
        raise RunError(
            "none of the runs here is finished", where=str(folder), fix="train one to its end: `steppe train`"
        )
    configs = {run.config.without_seed().hash: run.config for run in runs}
    if len(configs) > 1:
        keys = ", ".join(_differing(list(configs.values())))
        fix = f"name one run, or choose by a study's labels: {folder}:LABEL=VALUE"
        raise RunError(f"these {len(runs)} runs differ in more than their seed: {keys}", where=str(folder), fix=fix)
    found, noted = {}, {}
    for run in runs:
        answers = read_answers(run.path)
        if answers is None:
            tell(f"making the answers of {run.id} on its test images")
            answers = answer(open_run(run.path, data_root=data_root, device=device))
            with run.lock():
                write_answers(run.path, answers)
        found[run.config.seed] = answers
        noted[run.config.seed] = run.read_or_empty("data.json")
    return Group(name, found, noted)


def answer(subject: Subject, *, batch_size: int = 512, tell: Callable[[int], None] = ignore) -> Answers:
    """A model's answers on the test images of its data set.

    Args:
        subject: the model and its data.
        batch_size: images at a time, at the most.
        tell: takes the number of images that were begun, before each batch.
    """
    data, device = subject.dataset, subject.device
    size = suit_batch(batch_size, data.image_size, device)

    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for number, batch in enumerate(in_order(data.test, data, batch_size=size, device=device)):
            tell(number * size)
            yield batch

    logits, labels = predict(subject.model, batches())
    nll = torch.nn.functional.cross_entropy(logits.double(), labels, reduction="none")
    whole = [t.cpu().numpy().astype(np.int32) for t in (logits.argmax(1), labels)]
    return Answers(whole[0], whole[1], nll.float().cpu().numpy())


def _with_labels(runs: list[Run], folder: Path, chosen: str) -> list[Run]:
    """Those of a study's runs that carry the labels."""
    about = read_json(folder / "study.json") if (folder / "study.json").is_file() else None
    planned = about.get("runs") if isinstance(about, dict) else None
    if not isinstance(planned, list):
        raise RunError("this folder has no study whose labels could choose", where=str(folder), fix="name runs instead")
    labels = {str(one.get("run_id")): dict(one.get("labels") or {}) for one in planned if isinstance(one, dict)}
    own = {run.id: labels.get(run.id, {}) for run in runs}
    wanted = _read_labels(chosen, {name for some in labels.values() for name in some})
    found = [run for run in runs if all(own[run.id].get(k) == v for k, v in wanted.items())]
    if not found:
        known = sorted({f"{k}={v}" for some in own.values() for k, v in some.items()})
        raise RunError(f"no finished run has {chosen}", where=str(folder), fix=f"there are: {'; '.join(known)}")
    return found


def _read_labels(chosen: str, names: set[str]) -> dict[str, str]:
    """`model=ViT,training='SAM, ρ = 0.05'`: only a comma before a label's name ends a value; quotes may enclose one."""
    known = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    words = re.split(rf"(?:^|,)\s*({known})\s*=", chosen) if known else [chosen]
    if len(words) < 3 or words[0].strip():
        fix = f"say, for instance, FOLDER:model=ViT,training=SAM; this study's labels: {', '.join(sorted(names))}"
        raise RunError(f"{chosen!r} is no LABEL=VALUE", fix=fix)
    return {name: _without_quotes(value.strip()) for name, value in zip(words[1::2], words[2::2], strict=True)}


def _without_quotes(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


def _differing(configs: list[RunConfig]) -> list[str]:
    flat = [_flatten(config.model_dump()) for config in configs]
    return sorted(key for key in flat[0] if key != "seed" and len({repr(one.get(key)) for one in flat}) > 1)


def _flatten(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flatten(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": value}
    return flat
