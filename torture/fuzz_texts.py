"""Fuzzed texts: configurations, studies, claims, settings, published figures, command lines."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from steppe.config import RunConfig, at_scale, dump_toml, load_run_config, load_study_config, parse, plan
from steppe.config.study import StudyConfig, check_claims
from steppe.config.toml import leaves
from torture.fuzz import Once, command
from torture.mutate import NUMBERS, WORDS, mutate_text, value

STUDIES = Path(__file__).parent.parent / "studies"


def _examples() -> list[str]:
    every: list[dict[str, Any]] = [
        {},
        {"minimizer": {"name": "asam"}, "model": {"name": "vit_tiny_p2"}, "augment": {"flip": True, "mixup": 0.2}},
        {"objective": {"name": "contrastive"}, "optimizer": {"name": "sgd", "momentum": 0.9}, "budget": {"epochs": 4}},
        {"objective": {"name": "adversarial"}, "minimizer": {"name": "sam", "m": 16}, "ema": 0.99},
        {"data": {"name": "spirals"}, "budget": {"seconds": 10}},
    ]
    return [dump_toml(RunConfig.model_validate(values)) for values in every if _is_valid(values)]


def _is_valid(values: dict[str, Any]) -> bool:
    try:
        RunConfig.model_validate(values)
    except ValueError:
        return False
    return True


def _whole(config: RunConfig) -> None:
    """What was read can be written and read again, and names the same run."""
    import tomllib

    again = parse(RunConfig, tomllib.loads(dump_toml(config)), where="its own text")
    assert again.hash == config.hash, "written and read again, it is another run"
    assert config.run_id


def run_texts(folder: Path) -> Once:
    """Run configurations with a mutated text."""
    examples = _examples()
    path = folder / "run.toml"

    def once(rng: random.Random) -> None:
        path.write_bytes(mutate_text(rng.choice(examples), rng).encode(errors="surrogatepass"))
        before = path.read_bytes()
        _whole(load_run_config(path))
        assert path.read_bytes() == before

    return once


def run_values(folder: Path) -> Once:
    """Run configurations with other values at some of their keys, as flags give them."""
    keys = [name for name, _ in leaves(RunConfig)]

    def once(rng: random.Random) -> None:
        values: dict[str, Any] = {}
        for key in rng.sample(keys, rng.choice((1, 1, 2, 5))):
            *sections, last = key.split(".")
            table = values
            for section in sections:
                table = table.setdefault(section, {})
            table[last] = value(rng)
        if rng.random() < 0.1:
            values[rng.choice(keys).split(".")[0]] = value(rng)
        _whole(parse(RunConfig, values, where="fuzz"))

    return once


def study_texts(folder: Path) -> Once:
    """Study files with a mutated text, planned at every scale."""
    files = sorted(STUDIES.rglob("*.toml"))
    texts = [file.read_text() for file in files if file.stat().st_size < 6000] + [_STUDY]
    path = folder / "study.toml"

    def once(rng: random.Random) -> None:
        path.write_bytes(mutate_text(rng.choice(texts), rng).encode(errors="surrogatepass"))
        study = load_study_config(path)
        for name in study.scale or [None]:
            plan(at_scale(study, name))

    return once


_STUDY = """
name = "s"
seeds = [0, 1]
[base]
batch_size = 32
[axes.how.base]
[axes.how.sam]
minimizer = {name = "sam"}
[runs.begin]
labels = {how = "other"}
seeds = [3]
[runs.after]
model = {mode = "finetune", weights = "run:begin"}
[measure]
noise_draws = 4
[[claims]]
text = "one"
holds = "test_accuracy[how=sam] > test_accuracy[how=base] by 0.005"
"""

_CLAIMS = (
    "test_accuracy[model=ViT, training=SAM] > test_accuracy[model=ViT, training=AdamW] by 0.005",
    "time_s[training=SAM] / time_s[training=Adam] < 2.2",
    "test_accuracy[training=SAM, batch=split] = test_accuracy['training'='SAM', batch=whole] within 0.005",
    "(val_accuracy[training=SAM, batch=*] + 1e3) * −2 >= -geometry.trace[training=*] - 0.5",
)

_AXES = {
    "model": {"ViT": {}},
    "training": {"SAM": {"minimizer": {"name": "sam"}}, "AdamW": {}, "Adam": {"optimizer": {"name": "adam"}}},
    "batch": {"split": {"batch_size": 32}, "whole": {"batch_size": 64}},
}


def claims(folder: Path) -> Once:
    """Claims of a study with a mutated text, and judged where they can be read."""

    def once(rng: random.Random) -> None:
        text = mutate_text(rng.choice(_CLAIMS), rng)
        if rng.random() < 0.1:
            text = rng.choice(("(", "-", "a[", "1+", "a[x=1]*")) * rng.choice((10, 1000, 20_000)) + text
        values = {"name": "s", "axes": _AXES, "claims": [{"text": "t", "holds": text}]}
        study = parse(StudyConfig, values, where="fuzz")
        check_claims(study, where="fuzz")

    return once


def settings(folder: Path) -> Once:
    """`--set` and `--only` of the measuring commands, and times and sizes of others."""
    from steppe.cli.place import gibibytes
    from steppe.evaluate.measures import MEASURES as EVALUATE
    from steppe.geometry.measures import MEASURES as GEOMETRY
    from steppe.measuring import change_settings, choose
    from steppe.search.budget import parse_budget

    good = [f"{n}.{k}={v}" for table in (EVALUATE, GEOMETRY) for n, m in table.items() for k, v in m.defaults.items()]

    def once(rng: random.Random) -> None:
        table = rng.choice((EVALUATE, GEOMETRY))
        kind = rng.randrange(10)
        if kind == 0:
            choose(table, mutate_text(",".join(table), rng))
        elif kind == 1:
            parse_budget(mutate_text(rng.choice(("1h30m", "200epochs")), rng))
        elif kind == 2:
            gibibytes(rng.choice((None, *(float(n) for n in NUMBERS if abs(n) < 1e308))))
        else:
            left = rng.choice(good).partition("=")[0]
            text = rng.choice(
                (mutate_text(rng.choice(good), rng), f"{left}={rng.choice(WORDS)}", f"{left}={rng.choice(NUMBERS)}")
            )
            change_settings(table, [text])

    return once


def published(folder: Path) -> Once:
    """`published.csv` beside a study, mutated as text and as bytes."""
    from steppe.studies import read_published

    files = sorted(STUDIES.rglob("published.csv"))
    texts = [(file.read_text(), load_study_config(next(file.parent.glob("*.toml")))) for file in files]
    assert texts, "there are published figures"
    path = folder / "study.toml"

    def once(rng: random.Random) -> None:
        text, study = rng.choice(texts)
        lines = text.split("\n")
        some = "\n".join([lines[0], *rng.sample(lines[1:], min(6, len(lines) - 1))])
        (folder / "published.csv").write_bytes(mutate_text(some, rng).encode(errors="surrogatepass"))
        read_published(study, path)

    return once


def command_lines(folder: Path) -> Once:
    """The command line with wrong words; nothing is trained, for no command is given all it needs."""
    from steppe.cli.main import main

    words = (
        "train",
        "fit",
        "study",
        "run",
        "show",
        "compare",
        "evaluate",
        "geometry",
        "report",
        "cost",
        "symmetry",
        "env",
        "predict",
        "export",
    )
    flags = (
        "--model",
        "--epochs",
        "--rho",
        "--out",
        "-o",
        "--only",
        "--set",
        "--device",
        "--budget",
        "--scale",
        "--data",
        "--format",
        "--top",
        "--replace",
        "--json",
    )

    def once(rng: random.Random) -> None:
        line = [rng.choice(words), "/nowhere", *(rng.choice((*flags, *WORDS)) for _ in range(rng.randrange(5)))]
        line = [word.replace("\x00", "") for word in line if word != "~nobody/x"]
        command(main, [*line, "--data", "/nowhere/at/all"])

    return once
