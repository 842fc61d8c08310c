"""Two commands on one folder at the same moment."""

from __future__ import annotations

import pytest
from commands import launch

from steppe.runs import Run

QUICK = ("train", "--model", "mlp_8_8", "--batch-size", 256, "--epochs", 1)


@pytest.mark.long
def test_of_two_runs_that_want_one_folder_one_is_made_and_the_other_refused(tmp_path):
    for attempt in range(3):
        out = tmp_path / f"r{attempt}"
        pair = {seed: launch(*QUICK, "--seed", seed, "-o", out) for seed in (1, 2)}
        said = {seed: process.communicate(timeout=120)[0] for seed, process in pair.items()}
        codes = {seed: process.returncode for seed, process in pair.items()}
        assert sorted(codes.values()) == [0, 2], said
        winner, loser = sorted(codes, key=codes.get)
        assert f"belongs to another configuration: seed is {winner} there, {loser} here" in said[loser]
        assert Run(out).config.seed == winner
        assert Run(out).finished
        assert not list(out.glob(".*.tmp"))
