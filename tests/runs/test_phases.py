"""Where the seconds of a command went."""

import time
from pathlib import Path

import pytest

from steppe.config import RunConfig, parse
from steppe.runs.phases import Phases, describe_phases, process_age_s
from steppe.studies import execute

VALUES = {"data": {"name": "digits"}, "model": {"name": "mlp_8"}, "budget": {"epochs": 1}}


def test_phases_of_a_run_stand_in_its_summary(tmp_path):
    began = time.perf_counter()
    run = execute(parse(RunConfig, VALUES, where="test"), tmp_path / "run", device="cpu", before_s=2.0)
    took = time.perf_counter() - began + 2.0
    found = run.summary
    spent = [found[key] for key in ("startup_s", "data_s", "time_s", "evaluate_s", "measure_s")]
    assert min(spent) > 0
    assert found["startup_s"] > 2.0
    assert sum(spent) <= took
    assert describe_phases(found).startswith(f"{sum(spent):.1f} s: starting ")


def test_phases_of_a_finished_run_are_kept(tmp_path):
    config = parse(RunConfig, VALUES, where="test")
    first = execute(config, tmp_path / "run", device="cpu").summary
    assert execute(config, tmp_path / "run", device="cpu", before_s=9.0).summary == first


def test_phases_leave_out_what_is_counted_elsewhere():
    phases = Phases()
    with phases.timed("data_s"):
        time.sleep(0.05)
    phases.start(None, 1.0, 0.0)
    phases.start(None, 1.0, 0.0)  # begun again with less memory
    assert phases.seconds["data_s"] >= 0.05
    assert phases.seconds["startup_s"] < 0.05


def test_description_needs_the_phases_of_a_command():
    assert describe_phases({"time_s": 3.0}) == ""
    assert describe_phases({"startup_s": 1.0, "time_s": 3.0}) == "4.0 s: starting 1.0, training 3.0"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system does not tell when a process began")
def test_process_age_grows():
    before = process_age_s()
    time.sleep(0.05)
    assert process_age_s() >= before + 0.03
