"""A run folder that travels as bytes: only what changed, in an order that survives a kill, and nowhere else."""

from __future__ import annotations

import os

import pytest

from steppe.config import RunConfig
from steppe.errors import RunError
from steppe.jobs import Job, Link
from steppe.jobs import travel as module
from steppe.jobs.travel import SCRATCH, Packer, Parcel, scratch_folder
from steppe.studies.execution import RunSettings, make_run


def fill(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def test_only_changed_files_travel_and_removed_ones_go(tmp_path):
    there, home = tmp_path / "there", tmp_path / "home"
    fill(there, {"config.toml": b"c", "deep/small": b"", "large": os.urandom(3 * 2**20)})
    packer = Packer(there)
    packer.pack().unpack(home)
    assert (home / "large").read_bytes() == (there / "large").read_bytes()
    assert (home / "deep/small").read_bytes() == b""
    stamp = (home / "large").stat().st_mtime_ns
    (there / "deep/small").unlink()
    fill(there, {"metrics.jsonl": b"one"})
    parcel = packer.pack()
    assert parcel == Parcel({"metrics.jsonl": b"one"}, ("deep/small",))
    parcel.unpack(home)
    assert (home / "large").stat().st_mtime_ns == stamp
    assert not (home / "deep/small").exists()
    assert packer.pack() == Parcel()


def test_locks_and_unfinished_files_do_not_travel(tmp_path):
    fill(tmp_path / "r", dict.fromkeys((".lock", ".x.tmp", "x", "deep/.lock", "deep/y"), b"x"))
    assert set(Packer(tmp_path / "r").pack().files) == {"x", "deep/y"}
    assert set(Packer(tmp_path / "r", only=("x",)).pack().files) == {"x"}
    assert Packer(tmp_path / "none").pack() == Parcel()


def test_files_are_written_in_the_order_of_a_run(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(module, "write_atomically", lambda path, content: written.append(path.name))
    names = ("summary.json", "geometry.json", "weights.safetensors", "metrics.jsonl", "config.toml")
    Parcel(dict.fromkeys(names, b"")).unpack(tmp_path)
    assert written == ["config.toml", "metrics.jsonl", "weights.safetensors", "summary.json", "geometry.json"]


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "deep/../../x", "link/x"])
def test_names_that_lead_outside_are_refused(tmp_path, name):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="outside the run's folder"):
        Parcel({name: b"x"}).unpack(tmp_path / "r")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_scratch_of_killed_processes_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
    fill(tmp_path, {f"{SCRATCH}left/.lock": b"", f"{SCRATCH}left/r": b""})
    with scratch_folder() as first, scratch_folder() as second:
        assert {first, second} == set(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


def test_tracker_that_would_lose_its_records_is_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    settings = RunSettings(measure=None, track=("mlflow",), recorded=None)
    with pytest.raises(RunError, match="MLFLOW_TRACKING_URI"):
        make_run(Job(RunConfig(), tmp_path / "r", make_run, settings), Link(away=True))
