"""`steppe fit`: what is chosen from, who goes up, what is given up, and what a trial leaves."""

from __future__ import annotations

import csv
import json
import re
import time
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
import torch
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState

from steppe import data
from steppe.config import DataConfig, RunConfig
from steppe.data import Split
from steppe.errors import ConfigError, RunError
from steppe.jobs import Job
from steppe.report import write_report
from steppe.report.record import read_record
from steppe.runs import Run, create_run, read_json
from steppe.search import space
from steppe.search.budget import Budget, parse_budget, parse_seconds
from steppe.search.chosen import evaluate_chosen
from steppe.search.fitting import Wanted
from steppe.search.journal import begin_trial, choose, interrupted_trials, open_journal, to_promote
from steppe.search.observer import SearchObserver
from steppe.search.pareto import explain, tabulate, write_fronts
from steppe.search.space import Space, find_models, recommended, suggest, to_config
from steppe.search.starts import STARTS
from steppe.search.trial import VAL_EXAMPLES, Outcome, TrialSettings, make_trial, reporter, run_trial
from steppe.search.trial_search import Search
from steppe.train import train

DIGITS = {"name": "digits"}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("45s", 45), ("20m", 1200), ("1h30m", 5400), ("1.5h", 5400), ("2 min", 120), ("1H 5S", 3605)],
)
def test_times_are_read(text, seconds):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "0", "-5s", "1.2.3s", "m", "5d", "nan", "1e9999", "99999999h"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(ConfigError, match="is not a time"):
        parse_seconds(text)


def test_every_point_of_the_space_is_a_run():
    space = Space(("resnet_tiny", "vit_tiny_p2"), (32, 64), crop=1)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    seen = set()
    for _ in range(60):
        config = to_config(suggest(study.ask(), space), space, data=DIGITS, seed=3, budget={"seconds": 1.23456})
        seen.add((config.minimizer.name, config.minimizer.sharp_last, config.minimizer.ascent_fraction))
        assert config.model.mode is None
        assert config.budget.seconds == 1.23
        assert config.seed == 3
    assert seen == {("base", None, None), ("sam", 0.25, None), ("sam", None, None), ("asam", None, None)}
    assert Space.from_json(json.loads(json.dumps(space.to_json()))) == space


def test_recommended_points_are_in_the_space_and_each_family_has_one():
    space = Space(("resnet_tiny", "wrn_10_2", "vit_tiny_p2", "mixer_tiny_p2"), crop=1)
    points = recommended(space)
    assert {point["model"] for point in points} == set(space.models)
    study = optuna.create_study()
    for point in points:
        study.enqueue_trial(point)
        assert suggest(study.ask(), space) == point, "Optuna would drop what is out of its range"


def test_every_start_has_a_source_that_is_there_and_can_be_tried():
    root = Path(__file__).parents[2]
    text = (root / "docs" / "search.md").read_text()
    for start in STARTS:
        for place in re.findall(r"(?:results|studies|docs)/[\w./-]*\w", start.source):
            assert (root / place).exists(), place
        assert re.search("results/|studies/|docs/|README|arXiv", start.source)
        numbers = f"| {start.lr:g} | {start.weight_decay:g} | {start.warmup:g} |"
        assert any(start.kind in line and numbers in line for line in text.splitlines()), f"docs/search.md: {numbers}"
    space = Space(("wrn_10_2", "resnet18", "mlp_8_8", "vit_ti_p4"))
    points = recommended(space)
    assert len({json.dumps(point) for point in points}) == len(points)
    assert len(points) == 7
    study = optuna.create_study()
    for point in points:
        study.enqueue_trial(point)
        assert suggest(study.ask(), space) == point


def test_a_search_begins_with_them(tmp_path):
    wanted = Wanted(DataConfig(name="digits"), ("resnet_tiny", "vit_tiny_p2"), weights="none")
    digits = data.load(wanted.data)
    search = Search(
        wanted, Budget(600), tmp_path, digits, torch.device("cpu"), None, SearchObserver(), time.monotonic()
    )
    first = recommended(search.space)
    assert [point["model"] for point in first] == [*["resnet_tiny"] * 2, "vit_tiny_p2", "resnet_tiny", "vit_tiny_p2"]
    assert [search._next_trial().params for _ in first] == first
    assert "recommended" not in search._next_trial().user_attrs, "the rest is the sampler's"


@pytest.mark.parametrize(
    ("named", "looked_at", "kept"),
    [
        ((), 3, {"resnet_tiny"}),
        (("resnet_tiny", "wrn_10_2", "vit_tiny_p2", "mixer_tiny_p2"), 4, {"resnet_tiny", "mixer_tiny_p2"}),
    ],
)
def test_models_are_timed_until_two_in_a_row_are_too_slow_unless_named(tmp_path, monkeypatch, named, looked_at, kept):
    seconds = [0.01, 1e9, 1e9, 0.01, 0.01]
    timed = []
    monkeypatch.setattr(space, "_time_epoch", lambda *_: timed.append(seconds[len(timed)]) or timed[-1])
    wanted, cpu = Wanted(DataConfig(name="digits"), named, weights="none"), torch.device("cpu")
    search = Search(
        wanted, Budget(600), tmp_path, data.load(wanted.data), cpu, None, SearchObserver(), time.monotonic()
    )
    assert len(timed) == looked_at
    assert set(search.space.models) == kept


def test_tiny_images_are_not_moved():
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    assert {suggest(study.ask(), Space(("mlp_64_64",)))["augment"] for _ in range(20)} == {"none"}


def test_models_that_fit_are_found_and_others_are_told():
    digits = data.load(DataConfig(name="digits"))
    cpu = torch.device("cpu")
    found = find_models(digits, cpu)
    assert {c.name for c in found} >= {"resnet_tiny", "vit_tiny_p2", "mixer_tiny_p2"}
    assert [c.epoch_s for c in found] == sorted(c.epoch_s for c in found)
    assert [c.name for c in find_models(digits, cpu, names=("vit_s_p16", "resnet_tiny"))] == ["resnet_tiny"]
    with pytest.raises(ConfigError, match="does not fit 8×8"):
        find_models(digits, cpu, names=("vit_s_p16",))
    toys = data.load(DataConfig(name="toy_moons"))
    assert all(c.name.startswith("mlp") for c in find_models(toys, cpu))


def trial(number: int, rung: int, value: float | None, of: int | None = None) -> optuna.trial.FrozenTrial:
    made = optuna.trial.create_trial(
        params={"x": 0.5},
        distributions={"x": FloatDistribution(0, 1)},
        value=value,
        state=TrialState.PRUNED if value is None else TrialState.COMPLETE,
        user_attrs={"rung": rung} | ({} if of is None else {"of": of}),
    )
    made.number = number
    return made


def test_the_best_third_of_a_rung_goes_up_once():
    low = [trial(0, 0, 0.1), trial(1, 0, 0.9), trial(2, 0, 0.5)]
    assert to_promote(low[:2], top=2) is None, "a third of two is none"
    assert to_promote(low, top=2).number == 1
    assert to_promote(low, top=0) is None, "there is no higher rung"
    up = [*low, trial(3, 1, 0.95, of=1)]
    assert to_promote(up, top=2) is None
    pruned = [*up, trial(4, 0, None), trial(5, 0, None), trial(6, 0, None)]
    assert to_promote(pruned, top=2).number == 2, "those given up count as beaten"
    second = [*up, *(trial(n, 1, 0.9, of=-n) for n in (7, 8))]
    assert to_promote(second, top=2).number == 3, "the highest rung first"
    assert to_promote(second, top=1) is None


def test_what_optuna_gives_up_does_not_go_up(tmp_path):
    study, space = open_journal(tmp_path), Space(("mlp_8",))
    for value in (0.2, 0.1):
        study.tell(begin_trial(study, choose(study, space, 0, None), {"rung": 0}), value)
    given_up = begin_trial(study, choose(study, space, 0, None), {"rung": 0})
    given_up.report(0.9, 3)
    study.tell(given_up, state=TrialState.PRUNED)
    assert study.get_trials()[2].value == 0.9, "Optuna makes its last score its value"
    assert to_promote(study.get_trials(), top=1).number == 0


def test_a_trial_is_begun_by_one_line_and_chosen_alike_in_every_session(tmp_path):
    journal, space = tmp_path / "optuna.journal", Space(("mlp_8", "mlp_16"), crop=1)
    study = open_journal(tmp_path)
    points = set()
    for number in range(12):  # the sampler's own choices begin at the ninth
        later = open_journal(tmp_path)
        lines = len(journal.read_bytes().splitlines())
        chosen = choose(study, space, 3, None)
        assert chosen.params == choose(later, space, 3, None).params
        assert len(journal.read_bytes().splitlines()) == lines, "choosing writes nothing"
        trial = begin_trial(study, chosen, {"rung": 0, "run": "a"})
        assert len(journal.read_bytes().splitlines()) == lines + 1, "a kill leaves a trial whole or none of it"
        (again,) = interrupted_trials(open_journal(tmp_path))
        assert (again.number, again.params, again.user_attrs) == (number, chosen.params, {"rung": 0, "run": "a"})
        study.tell(trial, number / 10)
        points.add(json.dumps(chosen.params))
    assert len(points) == 12
    assert choose(study, space, 4, None).params != choose(study, space, 3, None).params


def test_a_mark_told_before_a_kill_is_asked_about_again(tmp_path):
    study, space = open_journal(tmp_path), Space(("mlp_8",))
    for _ in range(4):
        trial = begin_trial(study, choose(study, space, 0, None), {"rung": 0})
        trial.report(0.9, 3)
        study.tell(trial, 0.9)
    trial = begin_trial(study, choose(study, space, 0, None), {"rung": 0})
    settings = TrialSettings(DataConfig(), trial._trial_id)
    assert reporter(study, settings)(0.31, 0.1), "behind the others"
    assert reporter(open_journal(tmp_path), settings)(0.31, 0.1), "killed before that was noted: it is still behind"


def test_a_trial_is_given_up_or_stopped_and_says_why(tmp_path):
    digits = data.load(DataConfig(name="digits"))
    values = {"model": {"name": "resnet_tiny"}, "batch_size": 256, "budget": {"seconds": 30}}
    config = RunConfig.model_validate(values)
    told = []

    def report(share: float, score: float) -> bool:
        told.append((share, score))
        return len(told) == 2

    outcome = run_trial(config, digits, tmp_path / "a", allowed_s=60, report=report)
    assert outcome.state == "pruned"
    assert outcome.score == told[-1][1]
    assert 0 < told[0][0] < told[1][0] < 1
    record = read_record(Run(tmp_path / "a"))
    assert record.status == "unfinished"
    assert "behind the other trials" in record.reason
    assert not Run(tmp_path / "a").checkpoint.exists()
    kept = Run(tmp_path / "a").metrics()
    again = run_trial(config, digits, tmp_path / "a", allowed_s=60, report=report)
    assert (again.state, again.score, again.reason) == (outcome.state, outcome.score, outcome.reason)
    assert Run(tmp_path / "a").metrics() == kept, "a search killed before it could tell Optuna does not train it again"
    began = time.monotonic()
    late = run_trial(config, digits, tmp_path / "b", allowed_s=1.0)
    assert late.state == "late"
    assert time.monotonic() - began < 5
    failed = run_trial(
        config.model_copy(update={"model": config.model.model_copy(update={"name": "no_such"})}),
        digits,
        tmp_path / "c",
        allowed_s=9,
    )
    assert failed.state == "failed"
    assert "unknown model" in failed.reason


def test_a_finished_trial_is_an_ordinary_run_with_its_cost(tmp_path):
    digits = data.load(DataConfig(name="digits"))
    config = RunConfig.model_validate({"model": {"name": "resnet_tiny"}, "budget": {"seconds": 0.3}})
    outcome = run_trial(config, digits, tmp_path / "r", allowed_s=60)
    assert outcome.state == "complete"
    assert outcome.factor >= 1
    assert 0 < outcome.fixed_s < outcome.wall_s
    assert Run(tmp_path / "r").finished
    assert Run(tmp_path / "r").read("cost.json")["parameters"] == 77754


class Sealed:
    """A store that says who looks at it."""

    def __init__(self, split: Split):
        self.shape = split.store.shape

    def fetch(self, rows):
        raise AssertionError("somebody looked")


def test_trials_see_a_share_of_the_validation_images_and_no_test_image(tmp_path):
    digits = data.load(DataConfig(name="digits", val_fraction=0.4))
    count = len(digits.test)
    sealed = replace(digits, test=Split(Sealed(digits.test), digits.test.labels, torch.arange(count)))
    config = RunConfig.model_validate(
        {"model": {"name": "mlp_8"}, "data": {"val_fraction": 0.4}, "budget": {"epochs": 2}}
    )
    assert len(digits.val) < VAL_EXAMPLES, "so many that all are taken"
    whole = train(config, digits, tmp_path / "whole")
    run = train(config, sealed, tmp_path / "r", val_examples=200)
    assert "test" not in run.summary
    assert "train" not in run.summary
    assert 190 <= run.summary["val"]["examples"] <= 210
    assert run.summary["val"]["accuracy"] == run.metrics()[-1]["val_accuracy"]
    assert run.weights.read_bytes() == whole.weights.read_bytes(), "what is looked at does not change what is learned"
    with pytest.raises(AssertionError, match="somebody looked"):
        evaluate_chosen(run, sealed, torch.device("cpu"))
    evaluate_chosen(run, digits, torch.device("cpu"))
    assert run.summary["val"]["examples"] <= 210, "what it was compared by stays"
    for name, other in (("test", "test"), ("val_all", "val")):
        assert run.summary[name] == pytest.approx(whole.summary[other], abs=1e-6), name
    assert run.summary["train"]["examples"] == min(VAL_EXAMPLES, len(digits.train))
    evaluate_chosen(run, sealed, torch.device("cpu"))  # the test images are looked at once


def test_all_trials_are_compared_by_the_same_images_of_every_class():
    digits = data.load(DataConfig(name="digits", val_fraction=0.5))
    shares = [data.take_about(digits.val, 100, 0).labels for _ in range(2)]
    assert torch.equal(*shares)
    assert (torch.bincount(shares[0]) - 10).abs().max() <= 1
    assert data.take_about(digits.val, len(digits.val), 0) is digits.val


def finished_run(folder: Path, name: str, val: float, test: float, time_s: float, flops: int) -> Run:
    config = RunConfig.model_validate({"model": {"name": name}, "budget": {"seconds": time_s}})
    run = create_run(folder / config.run_id, config)
    found = {split: {"accuracy": value, "loss": 0.5} for split, value in (("val", val), ("test", test), ("train", 1.0))}
    counts = {"time_s": time_s, "gradient_evaluations": 10.0}
    run.write("summary.json", {"status": "finished", "config_sha256": run.config_sha256, **counts, **found})
    run.write("cost.json", {"parameters": 5, "flops_per_image": flops})
    run.weights.write_bytes(b"weights")
    return run


def test_fronts_are_of_validation_accuracy_and_each_cost(tmp_path):
    cheap = finished_run(tmp_path, "resnet_tiny", val=0.90, test=0.99, time_s=1, flops=300)
    dear = finished_run(tmp_path, "vit_tiny_p2", val=0.95, test=0.80, time_s=9, flops=200)
    beaten = finished_run(tmp_path, "mixer_tiny_p2", val=0.90, test=0.99, time_s=2, flops=400)
    rows = tabulate([cheap, dear, beaten])
    assert rows[0]["run"] == dear.id, "the test set does not choose"
    on = {cost: {r["run"] for r in rows if r[f"front_{cost}"]} for cost in ("time_s", "flops_per_image")}
    assert on == {"time_s": {cheap.id, dear.id}, "flops_per_image": {dear.id}}
    write_fronts(rows, tmp_path)
    fronts = read_json(tmp_path / "pareto.json")["fronts"]
    assert [row["run"] for row in fronts["time_s"]] == [cheap.id, dear.id]
    with open(tmp_path / "pareto.csv", newline="") as file:
        assert [row["front_time_s"] for row in csv.DictReader(file)] == [str(r["front_time_s"]) for r in rows]
    said = explain(dear, rows, 3, Budget(60))
    assert "vit_tiny_p2 under AdamW" in said
    assert "5.0 points ahead of the best other architecture" in said
    assert "95.0 %" in said
    assert "80.0 %" in said
    page = write_report([cheap, dear], tmp_path / "p.html", study={"name": "f", "answer": said}).read_text()
    assert "95.0\u00a0% on the validation images" in page


def test_a_torn_journal_is_read(tmp_path):
    study = open_journal(tmp_path)
    study.enqueue_trial({"x": 0.25})
    assert study.ask().suggest_float("x", 0, 1) == 0.25
    with open(tmp_path / "optuna.journal", "ab") as file:
        file.write(b'{"op_code": 6, "wor')
    (tmp_path / "optuna.journal.lock").touch()
    again = open_journal(tmp_path)
    assert [t.params for t in again.get_trials()] == [{"x": 0.25}]
    again.ask()
    assert len(open_journal(tmp_path).get_trials()) == 2


@pytest.mark.parametrize("text", ["200epochs", "200 epochs", "200EPOCH"])
def test_epochs_are_read(text):
    assert parse_budget(text) == Budget(200, "epochs")
    assert parse_budget("20m") == Budget(1200)


@pytest.mark.parametrize("text", ["epochs", "0epochs", "-1epochs", "1.2.3epochs", "1e9epochs", "nanepochs"])
def test_what_is_no_number_of_epochs_is_refused(text):
    with pytest.raises(ConfigError, match="is not a time"):
        parse_budget(text)


@pytest.mark.parametrize("line", [b"{\n", b'"text"\n', b"\xff\xfe\n", b'{"op_code": 99}\n', b'{"op_code": 0}\n'])
def test_a_damaged_journal_is_told(tmp_path, line):
    open_journal(tmp_path)
    journal = tmp_path / "optuna.journal"
    journal.write_bytes(line + journal.read_bytes())
    with pytest.raises(RunError, match="journal cannot be read"):
        open_journal(tmp_path)


class Heard(SearchObserver):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def test_a_trial_is_shown_with_its_accuracy_and_not_with_its_score(tmp_path):
    """The score is the accuracy less a thousandth of the loss, to break ties."""
    wanted, heard = Wanted(DataConfig(name="digits"), ("mlp_8",), weights="none"), Heard()
    digits = data.load(wanted.data)
    search = Search(wanted, Budget(600), tmp_path, digits, torch.device("cpu"), None, heard, time.monotonic())
    trial = search._next_trial()
    config = search._config(trial.params, 1.0)
    job = Job(config, tmp_path / config.run_id, make_trial, TrialSettings(DataConfig(**DIGITS), trial._trial_id))
    search._end(trial, job, Outcome("complete", 0.9912, 1.0, val_accuracy=0.993))
    assert "99.3% validation" in heard.lines[-1]
    assert heard.lines[-1].startswith("[1] mlp_8")
