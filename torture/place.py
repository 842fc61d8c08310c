"""Bad places: a full disk, a folder that may not be written, a clock that goes backwards, company, a lost worker."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

from torture import process
from torture.disk import GEOMETRY, TRAIN, disk_full, disk_full_elsewhere, fresh, read_only, same, told
from torture.found import Found
from torture.kills import STUDY, Fingerprint, look_at_run, look_at_study, measured


def torture(found: Found, seed: int, place: Path) -> None:
    """Run steppe where it is bad to be.

    Args:
        found: takes the account.
        seed: of the moments.
        place: an empty folder to work in.
    """
    process.preload()
    whole = place / "whole"
    whole.mkdir()
    done = process.run(TRAIN, whole, whole / "log")
    if not found.check("a run comes to its end when left alone", done.code == 0, done.said):
        return
    expected = look_at_run(whole / "r")
    rng = random.Random(f"{seed} place")
    disk_full(found, expected, rng, place)
    disk_full_elsewhere(found, rng, whole / "r", place)
    read_only(found, expected, place)
    clock_backwards(found, expected, place)
    two_on_a_run(found, expected, rng, place)
    two_on_a_measurement(found, rng, whole / "r", place)
    two_on_a_study(found, place)
    lost_ray_worker(found, place)


def clock_backwards(found: Found, expected: Fingerprint, place: Path) -> None:
    """`time.time` that goes back an hour whenever it is asked, and files from the future.

    Args:
        found: takes the account.
        expected: what the run leaves elsewhere.
        place: a folder to work in.
    """

    def backwards() -> None:
        now = [time.time()]

        def ask() -> float:
            now[0] -= 3600.0
            return now[0]

        time.time = ask

    folder = fresh(place, "clock")
    done = process.run(TRAIN, folder, folder / "log", before=backwards)
    if found.check("a run comes to its end with a clock that goes backwards", done.code == 0, done.said):
        found.check("with a clock that goes backwards the result is identical", look_at_run(folder / "r") == expected)
        text = (folder / "r" / "summary.json").read_text() + (folder / "r" / "metrics.jsonl").read_text()
        found.check("no time is negative", '_s": -' not in text, text)
    begun = fresh(place, "future")
    running = process.start(TRAIN, begun, begun / "log")
    running.wait(0.6)
    running.kill()
    future = time.time() + 10 * 365 * 86_400
    for path in begun.rglob("*"):
        os.utime(path, (future, future))
    same(found, "a run whose files are of the future", begun, expected)
    measure = ("geometry", "r", "--device", "cpu", "--only", "norms", "--quick")
    done = process.run(measure, begun, begun / "log3", before=backwards)
    found.check("it can be measured with a clock that goes backwards", done.code == 0, done.said)
    found.counts["clock going backwards"] = (
        "an hour back at every `time.time()` (replaced in the process; the kernel's clock and `datetime` are not), and "
        "a run whose files are ten years ahead: identical results, no negative time"
    )
    found.say("clock going backwards")


def two_on_a_run(found: Found, expected: Fingerprint, rng: random.Random, place: Path) -> None:
    """Two processes that train the same run: one does, the other is told.

    Args:
        found: takes the account.
        expected: what the run leaves elsewhere.
        rng: draws the moments.
        place: a folder to work in.
    """
    refused, pairs = 0, 12
    for number in range(pairs):
        folder = fresh(place, f"two{number}")
        first = process.start(TRAIN, folder, folder / "log1")
        time.sleep(rng.choice((0.0, 0.0, rng.uniform(0.0, 0.5))))
        second = process.run(TRAIN, folder, folder / "log2")
        first.wait(120)
        codes = sorted((first.code, second.code), key=str)
        refused += 2 in codes
        found.check(f"pair {number}: one is done, the other done or refused", codes in ([0, 0], [0, 2]), str(codes))
        if 2 in codes:
            told(
                found, f"pair {number}", first if first.code == 2 else second, "another process is working on this run"
            )
        found.check(f"pair {number}: the result is identical", look_at_run(folder / "r") == expected)
    found.counts["two processes on one run"] = (
        f"{pairs} pairs, in {refused} of them one was refused; every result identical"
    )
    found.say("two processes on one run")


def two_on_a_measurement(found: Found, rng: random.Random, run: Path, place: Path) -> None:
    """Two processes that measure the same run: each ends or is told, and the file is that of one.

    Args:
        found: takes the account.
        rng: draws the moments.
        run: a finished run.
        place: a folder to work in.
    """
    look, results, refused, pairs = measured("geometry.json"), [], 0, 6
    for number in range(pairs + 1):
        folder = fresh(place, f"measured{number}")
        shutil.copytree(run, folder / "r")
        first = process.start(GEOMETRY, folder, folder / "log1")
        if number:  # before the others, one alone
            time.sleep(rng.choice((0.0, rng.uniform(0.0, 1.0))))
            second = process.run(GEOMETRY, folder, folder / "log2")
            first.wait(120)
            codes = sorted((first.code, second.code), key=str)
            refused += 2 in codes
            what = f"two measurements {number}"
            found.check(f"{what}: one is done, the other done or refused", codes in ([0, 0], [0, 2]), str(codes))
            if 2 in codes:
                told(found, what, first if first.code == 2 else second, "another process is working on this run")
        else:
            first.wait(120)
        results.append(look(folder))
    found.check("two measurements of a run leave what one does", all(one == results[0] for one in results))
    found.counts["two processes on the geometry of one run"] = (
        f"{pairs} pairs, in {refused} of them one was refused; every result identical"
    )
    found.say("two processes on the geometry of one run")


def two_on_a_study(found: Found, place: Path) -> None:
    """Two processes on one study share its runs.

    Args:
        found: takes the account.
        place: a folder to work in.
    """
    command = ("study", "run", "s.toml", "--device", "cpu", "--workers", 2, "-o", "s")
    results = []
    for name, count in (("alone", 1), ("shared", 2)):
        folder = fresh(place, name)
        (folder / "s.toml").write_text(STUDY)
        both = [process.start(command, folder, folder / f"log{n}") for n in range(count)]
        for one in both:
            found.check(f"study {name}: ends", one.wait(300) and one.code == 0, one.said)
        results.append(look_at_study(folder))
    found.check("a study shared by two processes gives the identical result", results[0] == results[1])
    found.counts["two processes on one study"] = "both end, the result is that of one"
    found.say("two processes on one study")


def lost_ray_worker(found: Found, place: Path) -> None:
    """A Ray worker that is killed in the middle of its run.

    Args:
        found: takes the account.
        place: a folder to work in.
    """
    if importlib.util.find_spec("ray") is None:
        found.skip("a lost Ray worker: Ray is not installed")
        return
    folder = fresh(place, "ray")
    done = subprocess.run(
        (sys.executable, "-m", "torture.lost_ray_worker", str(folder)),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    said = (done.stdout + done.stderr)[-1500:]
    if found.check(
        "a study on Ray survives the loss of a worker, with the identical result", done.returncode == 0, said
    ):
        found.counts["a lost Ray worker"] = "1 killed in the middle of its run; the run went on to the identical result"
    found.say("a lost Ray worker")
