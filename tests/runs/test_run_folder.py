from __future__ import annotations

import errno
import json
import multiprocessing
import os

import pytest

from steppe.config import RunConfig
from steppe.errors import RunError
from steppe.runs import Run, create_run, find_runs, holds_others, write_atomically, write_json


def record(epoch: int, **more: float) -> dict:
    return {"epoch": epoch, "step": epoch * 10, **more}


def test_create_and_read(tmp_path):
    config = RunConfig(seed=4)
    run = create_run(tmp_path / "r", config)
    assert run.config == config
    assert run.summary == {}
    assert not run.finished
    assert run.metrics() == []
    run.write("summary.json", {"status": "finished"})
    assert not run.finished
    run.weights.write_bytes(b"weights")
    assert create_run(tmp_path / "r", config).finished


def test_a_folder_of_another_config_is_refused(tmp_path):
    create_run(tmp_path / "r", RunConfig(seed=1))
    with pytest.raises(RunError, match="seed is 1 there, 2 here"):
        create_run(tmp_path / "r", RunConfig(seed=2))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match="not empty"):
        create_run(tmp_path / "full", RunConfig())
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"


def test_metrics_tolerate_a_torn_last_line_and_go_on_after_it(tmp_path):
    run = create_run(tmp_path / "r", RunConfig())
    run.append_metrics(record(1, x=0.1))
    run.append_metrics(record(2, x=0.2))
    whole = (run.path / "metrics.jsonl").read_bytes()
    for cut in range(1, len(json.dumps(record(2, x=0.2))) + 1):
        (run.path / "metrics.jsonl").write_bytes(whole[:-cut])
        assert [r["epoch"] for r in run.metrics()] in ([1], [1, 2])
        run.append_metrics(record(3))
        assert [r["epoch"] for r in run.metrics()][-1] == 3
        assert all(json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines())


def test_metrics_after_a_resumption_count_once(tmp_path):
    run = create_run(tmp_path / "r", RunConfig())
    for epoch, x in ((1, 1.0), (2, 2.0), (2, 2.5), (3, 3.0)):
        run.append_metrics(record(epoch, x=x))
    assert [(r["epoch"], r["x"]) for r in run.metrics()] == [(1, 1.0), (2, 2.5), (3, 3.0)]


def test_damage_in_the_middle_is_told(tmp_path):
    run = create_run(tmp_path / "r", RunConfig())
    (run.path / "metrics.jsonl").write_text('{"epoch": 1}\n{"epo\n{"epoch": 3}\n')
    with pytest.raises(RunError, match="line 2"):
        run.metrics()
    (run.path / "summary.json").write_text("[1")
    with pytest.raises(RunError, match="not valid JSON"):
        _ = run.summary
    (run.path / "config.toml").write_text("seed = -1")
    with pytest.raises(RunError, match="damaged"):
        _ = run.config


def test_an_atomic_write_that_fails_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "f.json"
    write_json(path, {"a": 1})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="disk is full"):
        write_atomically(path, "new")
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["f.json"]


def test_nan_is_refused_rather_than_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "f.json", {"a": float("nan")})
    assert not (tmp_path / "f.json").exists()


def _hold(path, ready, done):
    with Run(path).lock():
        ready.set()
        done.wait(30)


def test_two_processes_cannot_hold_one_run(tmp_path):
    run = create_run(tmp_path / "r", RunConfig())
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(str(run.path), ready, done))
    other.start()
    assert ready.wait(30)
    with pytest.raises(RunError, match="another process"), run.lock():
        pass
    other.kill()
    other.join()
    with run.lock():
        pass


def test_a_config_changed_after_training_is_noticed(tmp_path):
    run = create_run(tmp_path / "r", RunConfig())
    run.write("summary.json", {"status": "finished", "config_sha256": run.config_sha256})
    assert run.config == RunConfig()
    (run.path / "config.toml").write_text("")
    with pytest.raises(RunError, match="changed after training"):
        _ = run.config


def test_only_plain_files_are_replaced(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RunError, match="not a plain file"):
        write_atomically(tmp_path / "pipe", "x")
    with pytest.raises(RunError, match="file, not a folder"):
        create_run(tmp_path / "real", RunConfig())


def test_records_that_are_a_folder_are_told(tmp_path):
    run = create_run(tmp_path / "r", RunConfig())
    (run.path / "metrics.jsonl").mkdir()
    with pytest.raises(RunError, match="records cannot be read"):
        run.metrics()


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "1e999"])
def test_what_could_not_be_written_again_is_damage(tmp_path, text):
    run = create_run(tmp_path / "r", RunConfig())
    (run.path / "cost.json").write_text(f'{{"parameters": {text}}}')
    with pytest.raises(RunError, match="not a finite number"):
        run.read("cost.json")
    assert run.read_or_empty("cost.json") == {}


def test_a_link_to_itself_is_told(tmp_path):
    (tmp_path / "f.json").symlink_to("f.json")
    with pytest.raises(RunError, match="leads to itself"):
        write_json(tmp_path / "f.json", {})


def test_find_runs(tmp_path):
    a = create_run(tmp_path / "x" / "a", RunConfig(seed=1))
    b = create_run(tmp_path / "x" / "y" / "b", RunConfig(seed=2))
    (tmp_path / "x" / "foreign").mkdir()
    (tmp_path / "x" / "foreign" / "config.toml").write_text("[theirs]")
    skipped: list[str] = []
    assert [r.path for r in find_runs([tmp_path, a.path], skipped)] == [a.path, b.path]
    assert "foreign" in skipped[0]
    for folder, expected in ((tmp_path / "none", "no such folder"), (tmp_path / "x" / "empty", "no runs here")):
        (tmp_path / "x" / "empty").mkdir(exist_ok=True)
        with pytest.raises(RunError, match=expected):
            find_runs([folder])
    with pytest.raises(RunError, match="not a run folder"):
        Run(tmp_path / "x" / "empty")


def test_records_of_time_that_was_lost_do_not_count(tmp_path):
    run = create_run(tmp_path / "run", RunConfig())
    for epoch in (1, 2, 3, 2):
        run.append_metrics({"epoch": epoch, "order": len(run.metrics())})
    assert [(r["epoch"], r["order"]) for r in run.metrics()] == [(1, 0), (2, 3)]


def test_a_number_of_thousands_of_digits_is_told(tmp_path):
    run = create_run(tmp_path / "r", RunConfig())
    (run.path / "summary.json").write_text("1" * 5000)
    with pytest.raises(RunError, match="not valid JSON"):
        _ = run.summary


@pytest.mark.parametrize(
    "record", ['{"loss": 1}', '{"epoch": 1, "time_s": NaN}', '{"epoch": 1, "steps": "x"}', "[]", '{"epoch": 1e999}']
)
def test_records_that_cannot_be_counted_with_are_damage(tmp_path, record):
    run = create_run(tmp_path / "r", RunConfig())
    (run.path / "metrics.jsonl").write_text(f'{record}\n{{"epoch": 2}}\n')
    with pytest.raises(RunError, match="line 1"):
        run.metrics()


def test_a_run_that_another_process_made_meanwhile_is_opened(tmp_path, monkeypatch):
    """The other held the lock already, and cleared our unfinished file away as a leftover."""
    config, link = RunConfig(), os.link

    def too_late(source, target):
        monkeypatch.setattr(os, "link", link)
        create_run(tmp_path / "r", config)
        os.unlink(source)
        link(source, target)

    monkeypatch.setattr(os, "link", too_late)
    assert create_run(tmp_path / "r", config).config == config


def _create(path, seed, start, told):
    start.wait(30)
    try:
        told.put((seed, create_run(path, RunConfig(seed=seed)).config.seed, ""))
    except RunError as error:
        told.put((seed, None, error.what))


def test_of_two_processes_with_different_configs_one_wins_and_the_other_is_told(tmp_path):
    context = multiprocessing.get_context("fork")
    for attempt in range(20):
        start, told = context.Barrier(2), context.Queue()
        path = tmp_path / f"r{attempt}"
        pair = [context.Process(target=_create, args=(path, seed, start, told)) for seed in (1, 2)]
        for process in pair:
            process.start()
        found = [told.get(timeout=30) for _ in pair]
        for process in pair:
            process.join()
        (winner,) = [seed for seed, got, _ in found if got is not None]
        (reason,) = [what for _, got, what in found if got is None]
        assert f"seed is {winner} there, {3 - winner} here" in reason
        assert Run(path).config.seed == winner
        assert [p.name for p in path.iterdir()] == ["config.toml"]


def test_without_links_a_run_is_made_all_the_same(tmp_path, monkeypatch):
    def refuse(source, target):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert create_run(tmp_path / "r", RunConfig(seed=1)).config.seed == 1
    with pytest.raises(RunError, match="another configuration"):
        create_run(tmp_path / "r", RunConfig(seed=2))
    assert [p.name for p in (tmp_path / "r").iterdir()] == ["config.toml"]


def test_what_is_in_the_way_of_a_folder_is_named(tmp_path):
    (tmp_path / "away").symlink_to("gone")
    for out in (tmp_path / "away", tmp_path / "away" / "run"):
        with pytest.raises(RunError, match=r"a link to .*gone, which is not there") as caught:
            create_run(out, RunConfig())
        assert caught.value.where == str(tmp_path / "away")
        assert "make that folder" in caught.value.fix
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match="a file, not a folder"):
        create_run(tmp_path / "file" / "run", RunConfig())
    (tmp_path / "gone").mkdir()
    assert create_run(tmp_path / "away" / "run", RunConfig()).path.is_dir()


@pytest.mark.parametrize("left", [".lock", "locks", ".seen-1f", ".fit.json.k3x.tmp"])
def test_what_a_process_killed_at_once_leaves_is_not_somebody_elses(left, tmp_path):
    """`steppe fit` refused its own folder after a SIGKILL between opening and naming its first file."""
    folder = tmp_path / "f"
    assert not holds_others(folder)
    folder.mkdir()
    (folder / left).touch()
    assert not holds_others(folder)
    (folder / "thesis.tmp").touch()
    assert holds_others(folder)
    assert holds_others(folder / "thesis.tmp"), "a file in its place"
