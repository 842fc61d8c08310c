"""A study's folder, served to machines that do not see it: what comes is put in place whole, or refused."""

from __future__ import annotations

import os

import pytest

from steppe.errors import RunError
from steppe.runs import home as module
from steppe.runs import try_lock
from steppe.runs.home import PATIENCE, Home, Marker, files_of, left_marker, sees


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "study"
    folder.mkdir()
    with left_marker(folder) as marker:
        yield Home(str(folder), marker, ["a", "b"])


def is_free(lock) -> bool:
    handle = try_lock(lock)
    if handle is not None:
        os.close(handle)
    return handle is not None


def bring(home: Home, session: str, **contents: bytes) -> bool:
    names = {name.replace("__", "."): content for name, content in contents.items()}
    for name, content in names.items():
        home.add("a", session, name, 0, content)
    return home.put("a", session, {name: len(content) for name, content in names.items()}, [])


def test_a_marker_is_seen_while_it_is_there(tmp_path):
    with left_marker(tmp_path) as marker:
        assert sees(marker)
        assert not sees(Marker(marker.path, "another"))
        with left_marker(tmp_path) as second:
            assert sees(marker), "another study's process leaves it alone"
            assert sees(second)
    assert not sees(marker)
    (tmp_path / f"{module.MARKER}old").write_text("of a killed process")
    with left_marker(tmp_path):
        assert len(list(tmp_path.iterdir())) == 1
    assert not list(tmp_path.iterdir())


def test_nothing_is_served_where_the_folder_is_not_seen(tmp_path):
    with pytest.raises(RunError, match="does not see"):
        Home(str(tmp_path), Marker(str(tmp_path / "none"), "x"), ["a"]).take("a")


def test_files_come_in_pieces_and_are_there_when_all_are(home):
    session = home.take("a")
    assert not (home.folder / "a").exists(), "a run that never begins leaves no folder"
    home.add("a", session, "deep/weights.bin", 0, b"12345")
    home.add("a", session, "deep/weights.bin", 5, b"678")
    home.add("a", session, "empty", 0, b"")
    assert home.files("a") == {}
    with pytest.raises(RunError, match="whole"):
        home.put("a", session, {"deep/weights.bin": 9, "empty": 0}, [])
    assert home.files("a") == {}
    assert home.put("a", session, {"deep/weights.bin": 8, "empty": 0}, [])
    assert home.put("a", session, {"deep/weights.bin": 8, "empty": 0}, []), "asked again after a lost answer"
    assert home.files("a") == {"deep/weights.bin": 8, "empty": 0}
    assert home.read("a", "deep/weights.bin", 0) == b"12345678"
    assert home.put("a", session, {}, ["empty"])
    home.release("a", session)
    assert {p.name for p in (home.folder / "a").rglob("*")} == {".lock", "deep", "weights.bin"}


def test_files_are_put_in_place_in_the_order_of_a_run(home, monkeypatch):
    order = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda old, new: (order.append(new.name), replace(old, new)))
    names = ("geometry__json", "summary__json", "checkpoint__safetensors", "metrics__jsonl", "config__toml")
    assert bring(home, home.take("a"), **dict.fromkeys(names, b"x"))
    assert order == ["config.toml", "metrics.jsonl", "checkpoint.safetensors", "summary.json", "geometry.json"]


@pytest.mark.parametrize(
    "name",
    ["../b/x", "/etc/x", "x/../../y", "", ".", "..", "x//y", "x/", ".lock", "deep/.lock", ".x.tmp", "x\0y", "a\nb"],
)
def test_a_hostile_name_is_refused(home, tmp_path, name):
    session = home.take("a")
    for ask in (
        lambda: home.add("a", session, name, 0, b"hostile"),
        lambda: home.put("a", session, {name: 7}, []),
        lambda: home.put("a", session, {}, [name]),
        lambda: home.read("a", name, 0),
    ):
        with pytest.raises(RunError, match="not the name of a file"):
            ask()
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and b"hostile" in p.read_bytes()]


def test_a_run_that_is_not_the_studys_is_refused(home):
    for run in ("../study", "c", "/etc", ""):
        for ask in (lambda run=run: home.take(run), lambda run=run: home.files(run), lambda: home.read("..", "x", 0)):
            with pytest.raises(RunError, match="has no run"):
                ask()
        assert not home.add(run, "", "x", 0, b"")
    assert not home.add("a", "", "x", 0, b""), "nobody has taken it"


def test_a_link_out_of_the_folder_is_not_followed(home, tmp_path):
    (home.folder / "a").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (home.folder / "a" / "figures").symlink_to(tmp_path / "elsewhere")
    session = home.take("a")
    home.add("a", session, "figures/x", 0, b"x")
    with pytest.raises(RunError, match="out of the run's folder"):
        home.put("a", session, {"figures/x": 1}, [])
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_run_is_locked_for_everybody_else(home):
    locks = home.folder / "locks"
    first = home.take("a")
    assert not is_free(locks / "a")
    assert is_free(locks / "b")
    bring(home, first, config__toml=b"x")
    assert not is_free(home.folder / "a" / ".lock")
    home.release("a", "another")
    assert not is_free(locks / "a")
    home.release("a", first)
    assert is_free(locks / "a")
    assert is_free(home.folder / "a" / ".lock")
    for lock in (locks / "a", home.folder / "a" / ".lock"):
        handle = try_lock(lock)
        assert home.take("a") is None
        os.close(handle)
    assert is_free(locks / "a"), "what could not be taken whole is not held"
    assert home.take("a")


def test_the_one_held_for_dead_is_refused(home):
    first = home.take("a")
    bring(home, first, config__toml=b"first")
    home.add("a", first, "late", 0, b"x")
    second = home.take("a")
    assert second != first, "Ray has begun the task again"
    assert not home.add("a", first, "late", 0, b"x")
    assert not home.put("a", first, {"late": 1}, ["config.toml"])
    home.release("a", first)
    assert not is_free(home.folder / "locks" / "a")
    assert bring(home, second, config__toml=b"second")
    assert home.files("a") == {"config.toml": 6}


def test_a_dead_workers_lock_does_not_stay(home):
    silent, alive = home.take("a"), home.take("b")
    for _ in range(PATIENCE + 1):
        home.beat("b", alive)
        home.look()
    assert is_free(home.folder / "locks" / "a")
    assert not is_free(home.folder / "locks" / "b")
    assert not home.add("a", silent, "x", 0, b"x")


def test_a_full_disk_is_told_and_costs_nothing(home, monkeypatch):
    session = home.take("a")
    bring(home, session, metrics__jsonl=b"one")
    home.add("a", session, "metrics.jsonl", 0, b"two")

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(RunError, match="the disk is full"):
        home.put("a", session, {"metrics.jsonl": 3}, [])
    assert home.read("a", "metrics.jsonl", 0) == b"one"


def test_locks_and_unfinished_files_do_not_travel(tmp_path):
    for name in (".lock", ".x.tmp", "x", "deep/.lock", "deep/y"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "x")
    assert set(files_of(tmp_path)) == {"x", "deep/y"}
    assert set(files_of(tmp_path, links=True)) == {"x", "link", "deep/y"}
    assert files_of(tmp_path / "none") == {}
