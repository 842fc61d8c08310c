"""SIGKILL at random moments: what was killed is run again, perhaps killed again, and must end as if nothing had been.

A chain takes a fresh folder, starts a command and kills it after a delay drawn from the length of an undisturbed run;
it does so once to three times, then lets the command come to its end and compares what it left with what the
undisturbed run left: weights, answers and checkpoints of numbers to the bit, JSON without its times. So it does with a
search whose budget is epochs. Of one whose budget is seconds, no trial that had ended may be lost or made again, and
the budget must hold.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torture import process
from torture.found import Found

Fingerprint = dict[str, Any]
FIT = ("fit", "digits", "--device", "cpu", "--weights", "none", "--model", "mlp_64", "-o", "f")
FIT_BUDGET_S = 12

_TIMES = ("time", "_s", "_at", "per_second", "earlier", "command", "peak_memory", "energy", "started")


@dataclass(frozen=True)
class Command:
    """Something that is killed.

    Args:
        name: of the kind of command.
        arguments: as on the command line; it works in a fresh folder.
        share: how large a part of all kills it gets.
        prepare: fills the fresh folder.
        look: what the folder holds in the end.
    """

    name: str
    arguments: tuple[object, ...]
    share: int
    look: Callable[[Path], Fingerprint]
    prepare: Callable[[Path], None] = lambda folder: None


def look_at_run(run: Path) -> Fingerprint:
    """Everything of a finished run that must not depend on whether it was killed."""
    found: Fingerprint = {name: _digest(run / name) for name in ("weights.safetensors", "answers.safetensors")}
    found |= {name: _json(run / name) for name in ("geometry.json", "summary.json", "data.json")}
    records = run / "metrics.jsonl"  # a trial that fails in its first epoch has none
    lines = records.read_text().splitlines() if records.exists() else []
    last: dict[int, Any] = {}
    for line in lines:
        record = without_times(json.loads(line))
        last[record["epoch"]] = record
    return found | {
        "metrics": [last[epoch] for epoch in sorted(last)],
        "checkpoint left": (run / "checkpoint.safetensors").exists(),
    }


def look_at_study(folder: Path) -> Fingerprint:
    """Every run of a study, and what it says of itself."""
    found = {path.parent.name: look_at_run(path.parent) for path in sorted(folder.glob("s/*/config.toml"))}
    return {**found, "study": _json(folder / "s" / "study.json")}


def look_at_search(folder: Path) -> Fingerprint:
    """Every trial in its order, how it went and what it ended in; every run; and what was chosen."""
    from steppe.search.journal import open_journal

    search = folder / "f"
    runs = [path.parent for path in search.glob("*/config.toml") if not path.parent.is_symlink()]
    found: Fingerprint = {run.name: look_at_run(run) for run in runs}
    found |= {name: _json(search / name) for name in ("fit.json", "pareto.json", "study.json")}
    trials = open_journal(search).get_trials()
    about = [{key: value for key, value in t.user_attrs.items() if key != "cost"} for t in trials]
    found["order"] = [(t.number, t.params, said) for t, said in zip(trials, about, strict=True)]
    found["ends"] = [(t.state.name, t.value, t.intermediate_values) for t in trials]
    return found | {"best": (search / "best").readlink().name, "report": (search / "report.html").exists()}


def measured(file: str) -> Callable[[Path], Fingerprint]:
    """What a measurement leaves in the run folder `r`.

    Args:
        file: the one it writes.
    """

    def look(folder: Path) -> Fingerprint:
        left = [p.name for p in (folder / "r").glob("*.partial.json")]
        return {
            file: _json(folder / "r" / file),
            "weights": _digest(folder / "r" / "weights.safetensors"),
            "left": left,
        }

    return look


def look_at_export(folder: Path) -> Fingerprint:
    """An exported folder, whole; the run it came from; nothing half made under its name."""
    files = sorted(path.name for path in (folder / "out").iterdir())
    return {
        "files": files,
        "config.json": _json(folder / "out" / "config.json"),
        "weights": _digest(folder / "r" / "weights.safetensors"),
        "calibration.json": _json(folder / "r" / "calibration.json"),
        **{name: _digest(folder / "out" / name) for name in files if name != "config.json"},
    }


def without_times(value: Any) -> Any:
    """The same JSON without what a clock or a process put there."""
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if not any(part in k for part in _TIMES)}
    return [without_times(v) for v in value] if isinstance(value, list) else value


def _json(path: Path) -> Any:
    return without_times(json.loads(path.read_text())) if path.exists() else None


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


STUDY = """
name = "s"
seeds = [0]
[base]
batch_size = 64
[base.data]
fraction = 0.5
[base.model]
name = "resnet_tiny"
[base.budget]
epochs = 3
[axes.how.base]
[axes.how.sam]
minimizer = {name = "sam"}
[measure]
noise_draws = 4
"""


def commands(made: Path) -> list[Command]:
    """What is killed.

    Args:
        made: a finished run, for the commands that measure.
    """

    def train(name: str, *flags: object, share: int) -> Command:
        arguments = ("train", "--device", "cpu", "-o", "r", *flags)
        return Command(f"train {name}", arguments, share, lambda folder: look_at_run(folder / "r"))

    def bring_run(folder: Path) -> None:
        shutil.copytree(made, folder / "r")

    def bring_study(folder: Path) -> None:
        (folder / "s.toml").write_text(STUDY)

    small = ("--fraction", 0.25, "--batch-size", 64)
    measure = ("r", "--device", "cpu", "--quick")
    geometry = ("geometry", *measure, "--only", "lambda_max,trace,line,noise")
    names = "corruptions.names=gaussian_noise,fog,contrast,pixelate,glass_blur"
    evaluate = ("evaluate", *measure, "--only", "scores,corruptions", "--set", names)
    export = ("export", "r", "-o", "out", "--device", "cpu", "--replace", "--format")
    study = ("study", "run", "s.toml", "--device", "cpu", "--workers", 2, "-o", "s")
    fit = (*FIT, "--budget", "60epochs")
    return [
        train("sam", *small, "--model", "resnet_tiny", "--epochs", 6, "--minimizer", "sam", share=12),
        train("asam", *small, "--model", "vit_tiny_p2", "--epochs", 4, "--minimizer", "asam", "--ema", 0.9, share=12),
        train(
            "adamw flip", "--model", "mlp_64", "--batch-size", 32, "--epochs", 10, "--flip", "--dropout", 0.1, share=10
        ),
        train("adversarial", "--model", "mlp_64", "--objective", "adversarial", "--epochs", 12, share=12),
        train("contrastive", "--model", "mlp_64", "--objective", "contrastive", "--epochs", 10, share=10),
        Command("geometry", geometry, 14, measured("geometry.json"), bring_run),
        Command("evaluate", evaluate, 12, measured("robustness.json"), bring_run),
        Command("study", study, 10, look_at_study, bring_study),
        Command("fit, a budget of epochs", fit, 12, look_at_search),
        *(
            Command(f"export {format}", (*export, format), 4, look_at_export, bring_run)
            for format in ("safetensors", "onnx")
        ),
    ]


TIMED = "fit, a budget of seconds"
TIMED_SHARE = 8


def torture(found: Found, kills: int, seed: int, place: Path, killed: str = "") -> None:
    """Kill until so many kills hit a live process.

    Args:
        found: takes the account.
        kills: how many.
        seed: of the moments.
        place: an empty folder to work in.
        killed: only commands whose names begin so.
    """
    process.preload()
    made = place / "made"
    arguments = ("train", "--device", "cpu", "--model", "resnet_tiny", "--batch-size", 256, "--epochs", 1, "-o", made)
    if process.run(arguments, place, place / "made.log").code != 0:
        found.fail("the run to be measured could not be made")
        return
    every = commands(made)
    shares = {command.name: command.share for command in every} | {TIMED: TIMED_SHARE}
    quota = _divide(kills, {name: share for name, share in shares.items() if name.startswith(killed)})
    hit = missed = chains = again = 0
    for command in every:
        count = quota.get(command.name, 0)
        if not count:
            continue
        whole, length_s = _undisturbed(found, command, place)
        if whole is None:
            continue
        rng, mine = random.Random(f"{seed} {command.name}"), 0
        while mine < count:
            chains += 1
            wanted = min(rng.choice((1, 1, 2, 3)), count - mine)
            folder = place / f"{_slug(command.name)}_{chains}"
            struck, passed = _chain(found, command, folder, whole, length_s, rng, wanted)
            mine, missed, again = mine + struck, missed + passed, again + (struck > 1)
            if passed + struck == 0:
                break
        hit += mine
        found.say(f"{command.name}: {mine} kills, {length_s:.1f} s undisturbed; {hit} of {kills} in all")
        found.counts[f"kills of {command.name}"] = str(mine)
    if quota.get(TIMED):
        timed = torture_timed_fit(found, quota[TIMED], seed, place)
        found.counts[f"kills of {TIMED}"] = str(timed)
        hit += timed
    found.counts = {
        "SIGKILLs that hit a live process": str(hit),
        "aimed after the end of the process (not counted)": str(missed),
        "chains, each to its end and compared": f"{chains}, {again} of them killed more than once",
        **found.counts,
    }
    found.check("as many kills as asked for", hit >= kills, f"{hit} of {kills}")


def _slug(name: str) -> str:
    return name.replace(",", "").replace(" ", "_")


def _divide(total: int, shares: dict[str, int]) -> dict[str, int]:
    """Give each its share; what rounding leaves goes to the first."""
    whole = sum(shares.values())
    out = {name: total * share // whole for name, share in shares.items()}
    for name in list(shares)[: total - sum(out.values())]:
        out[name] += 1
    return out


def _undisturbed(found: Found, command: Command, place: Path) -> tuple[Fingerprint | None, float]:
    folder = place / f"whole_{_slug(command.name)}"
    folder.mkdir()
    command.prepare(folder)
    began = time.monotonic()
    done = process.run(command.arguments, folder, folder / "log")
    if not found.check(f"{command.name} comes to its end when left alone", done.code == 0, done.said):
        return None, 0.0
    length_s = time.monotonic() - began
    return command.look(folder), length_s


def _chain(
    found: Found,
    command: Command,
    folder: Path,
    whole: Fingerprint,
    length_s: float,
    rng: random.Random,
    wanted: int,
) -> tuple[int, int]:
    """Kill so often, then let it end; give how many kills hit and how many came too late."""
    folder.mkdir()
    command.prepare(folder)
    moments: list[str] = []
    hit = missed = 0
    for _ in range(wanted):
        delay_s = rng.uniform(0.0, length_s)
        way = rng.choice(("itself", "with its workers", "one worker") if command.name == "study" else ("itself",))
        running = process.start(command.arguments, folder, folder / "log")
        if running.wait(delay_s):
            missed += 1
            break
        if way == "one worker" and running.kill_child(rng):
            running.wait(rng.uniform(0.0, length_s))  # it goes on with another worker; then it is stopped too
            hit += 1
        if running.kill(everyone=way != "itself"):
            hit += 1
        else:  # it came to its end in the very moment
            missed += 1
        moments.append(f"{delay_s:.3f} s ({way})")
    done = process.run(command.arguments, folder, folder / "log")
    told = f"{command.name} killed at {', '.join(moments)} in {folder}"
    if found.check(f"{told} ends", done.code == 0, f"code {done.code}: {done.said}"):
        left = command.look(folder)
        different = [name for name in whole if left.get(name) != whole[name]] + [n for n in left if n not in whole]
        if found.check(f"{told} ends in the identical result", not different, f"differs in {', '.join(different)}"):
            shutil.rmtree(folder)
    return hit, missed


def torture_timed_fit(found: Found, kills: int, seed: int, place: Path) -> int:
    """Kill searches whose budget is seconds; give how many kills hit.

    Args:
        found: takes the account.
        kills: how many.
        seed: of the moments.
        place: an empty folder to work in.
    """
    rng, hit, chains = random.Random(f"{seed} fit"), 0, 0
    arguments = (*FIT, "--budget", f"{FIT_BUDGET_S}s")
    while hit < kills and chains < 3 * kills:
        chains += 1
        folder = place / f"fit_{chains}"
        folder.mkdir()
        moments: list[str] = []
        lost_s = 0.0
        for _ in range(min(rng.choice((1, 2, 2)), kills - hit)):
            delay_s = rng.uniform(0.0, 0.6 * FIT_BUDGET_S)
            before = _trials(folder / "f")
            began = time.monotonic()
            running = process.start(arguments, folder, folder / "log")
            if running.wait(delay_s) or not running.kill():
                break
            lost_s += time.monotonic() - began
            hit += 1
            moments.append(f"{delay_s:.2f} s")
            _check_kept(found, before, folder, moments)
        before = _trials(folder / "f")
        began = time.monotonic()
        done = process.run(arguments, folder, folder / "log", limit_s=10 * FIT_BUDGET_S)
        last_s = time.monotonic() - began
        told = f"fit killed at {', '.join(moments)} in {folder}"
        if not found.check(f"{told} ends", done.code == 0, f"code {done.code}: {done.said}"):
            continue
        _check_kept(found, before, folder, moments)
        about = json.loads((folder / "f" / "fit.json").read_text())
        found.check(f"{told} keeps its budget", about["elapsed_s"] <= 1.1 * FIT_BUDGET_S + 1, f"{about['elapsed_s']} s")
        found.check(
            f"{told}: its last session keeps to what was left", last_s <= 1.1 * FIT_BUDGET_S + 2, f"{last_s:.1f} s"
        )
        shutil.rmtree(folder)
    return hit


def _trials(folder: Path) -> dict[str, Any]:
    """Trials that had come to their end, with what they gave, and the weights of finished runs."""
    found: dict[str, Any] = {}
    journal = folder / "optuna.journal"
    for line in journal.read_bytes().splitlines() if journal.exists() else []:
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # torn by the kill
        if entry.get("op_code") == 6 and entry.get("state") in (1, 2, 3):
            found[f"trial {entry['trial_id']}"] = (entry["state"], entry.get("values"))
    for weights in folder.glob("*/weights.safetensors"):
        if (weights.parent / "summary.json").exists():
            found[weights.parent.name] = _digest(weights)
    return found


def _check_kept(found: Found, before: dict[str, Any], folder: Path, moments: list[str]) -> None:
    after = _trials(folder / "f")
    lost = [name for name, value in before.items() if after.get(name) != value]
    found.check(f"fit killed at {', '.join(moments)} in {folder} loses nothing", not lost, ", ".join(lost))
