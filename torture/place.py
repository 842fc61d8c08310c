"""Bad places: a full disk, a folder that may not be written, a clock that goes backwards, company, a lost worker."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from torture import process
from torture.found import Found
from torture.kills import STUDY, Fingerprint, look_at_export, look_at_run, look_at_study, measured

TRAIN = (
    "train",
    "--device",
    "cpu",
    "--model",
    "mlp_32",
    "--batch-size",
    128,
    "--epochs",
    6,
    "--minimizer",
    "sam",
    "-o",
    "r",
)


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


def _fresh(place: Path, name: str) -> Path:
    folder = place / name
    folder.mkdir()
    return folder


def _told(found: Found, what: str, done: process.Process, words: str) -> None:
    """The command was refused with one message, without a traceback."""
    said = done.said
    found.check(f"{what}: exit code 2", done.code == 2, f"code {done.code}: {said}")
    found.check(f"{what}: it is told in words", words in said, said)
    found.check(f"{what}: no traceback", "Traceback" not in said, said)


def _same(found: Found, what: str, folder: Path, expected: Fingerprint) -> None:
    """Run again where it is good to be: it goes on to the identical result."""
    done = process.run(TRAIN, folder, folder / "log2")
    if found.check(f"{what}: afterwards it goes on", done.code == 0, done.said):
        left = look_at_run(folder / "r")
        different = [name for name in expected if left[name] != expected[name]]
        found.check(f"{what}: the result is identical", not different, ", ".join(different))


def disk_full(found: Found, expected: Fingerprint, rng: random.Random, place: Path) -> None:
    """Files that may not grow beyond some size, and a small file system that is filled up.

    Args:
        found: takes the account.
        expected: what the run leaves elsewhere.
        rng: draws the sizes.
        place: a folder to work in.
    """
    sizes = [0, 100, 1000, *(rng.randrange(2000, 40_000) for _ in range(5))]
    refused = 0
    for size in sizes:
        folder = _fresh(place, f"limit{size}")
        (folder / "log").touch()

        def limit(size: int = size) -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

        pipe = folder / "log"
        done = process.run(TRAIN, folder, Path("/dev/null"), before=limit)
        pipe.unlink()
        refused += done.code == 2
        found.check(f"files of at most {size} bytes: refused or done", done.code in (0, 2), f"code {done.code}")
        _same(found, f"files of at most {size} bytes", folder, expected)
    found.check("some of the limits were felt", refused >= 3, str(refused))
    found.counts["disk full, by a limit on file sizes"] = (
        f"{len(sizes)} sizes, {refused} refused; all went on to the identical result"
    )
    with _mounted(place / "small", "size=256k") as small:
        if small is None:
            found.skip("a small file system that is full: it takes root and the right to mount")
            return
        for fill in (256, 240, 200, 120):
            room = small / "fill"
            room.write_bytes(b"")
            with contextlib.suppress(OSError):
                room.write_bytes(bytes(fill * 1024))
            folder = _fresh(place, f"full{fill}")
            (small / "r").mkdir()
            (folder / "r").symlink_to(small / "r")
            done = process.run(TRAIN, folder, folder / "log")
            if done.code != 0:
                _told(found, f"a file system with {256 - fill} KiB left", done, "the disk is full")
            room.unlink()
            _same(found, f"a file system with {256 - fill} KiB left", folder, expected)
            shutil.rmtree(small / "r")
    found.counts["disk full, on a small tmpfs"] = "4 amounts of room; all went on to the identical result"
    found.say("disk full")


GEOMETRY = ("geometry", "r", "--device", "cpu", "--quick", "--only", "lambda_max,trace,line,noise")
Starved = tuple[tuple[object, ...], Callable[[Path], None], Callable[[Path], Fingerprint], tuple[int, ...]]


def _look_at_page(folder: Path) -> Fingerprint:
    text = (folder / "page.html").read_text()
    return {"whole": text.rstrip().endswith("</html>") and len(text) > 10_000}


def _starved(run: Path) -> dict[str, Starved]:
    """Command -> its arguments, what its folder needs, what it leaves, and sizes of files that are too small for it."""

    def bring_run(folder: Path) -> None:
        shutil.copytree(run, folder / "r")

    def bring_study(folder: Path) -> None:
        (folder / "s.toml").write_text(STUDY)

    export = ("export", "r", "-o", "out", "--device", "cpu", "--replace", "--format", "safetensors")
    study = ("study", "run", "s.toml", "--device", "cpu", "--workers", 2, "-o", "s")
    return {
        "geometry": (GEOMETRY, bring_run, measured("geometry.json"), (0, 500, 3000)),
        "report": (("report", "r", "-o", "page.html"), bring_run, _look_at_page, (0, 5000, 100_000)),
        "export": (export, bring_run, look_at_export, (0, 600, 5000)),
        "study": (study, bring_study, look_at_study, (0, 4000)),
    }


def disk_full_elsewhere(found: Found, rng: random.Random, run: Path, place: Path) -> None:
    """The same for the commands that do not train: refused or done, and done rightly once there is room.

    Args:
        found: takes the account.
        rng: draws one more size for each.
        run: a finished run.
        place: a folder to work in.
    """
    tried, refused = 0, 0
    for name, (arguments, prepare, look, sizes) in _starved(run).items():
        alone = _fresh(place, f"room_{name}")
        prepare(alone)
        done = process.run(arguments, alone, alone / "log")
        if not found.check(f"{name} comes to its end when left alone", done.code == 0, done.said):
            continue
        expected = look(alone)
        for size in (*sizes, rng.randrange(1, 20_000)):
            tried += 1
            what = f"{name} with files of at most {size} bytes"
            folder = _fresh(place, f"starved_{name}_{tried}")
            prepare(folder)

            def limit(size: int = size) -> None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

            done = process.run(arguments, folder, Path("/dev/null"), before=limit)
            refused += done.code != 0
            found.check(f"{what}: refused or done", done.code in (0, 1, 2), f"code {done.code}")
            if name in ("report", "export") and done.code:
                made = [path.name for path in folder.iterdir() if path.name in ("page.html", "out")]
                found.check(f"{what}: nothing half made", not made, ", ".join(made))
            done = process.run(arguments, folder, folder / "log")
            if found.check(f"{what}: afterwards it is done", done.code == 0, done.said):
                found.check(f"{what}: the result is identical", look(folder) == expected)
    found.check("some of the limits were felt by the others", refused >= 6, str(refused))
    found.counts["disk full, under geometry, report, export and study"] = (
        f"{tried} sizes of files, {refused} felt; all were done afterwards, with the identical result"
    )
    with _mounted(place / "narrow", "size=16m") as narrow:
        if narrow is None:
            found.skip("a small file system that is full, for the other commands: it takes root and the right to mount")
            return
        for name, (arguments, prepare, look, _) in _starved(run).items():
            if name == "study":
                continue  # its workers' places are many; the limit above reaches them all
            for left in (4, 24):
                folder = narrow / f"{name}{left}"
                folder.mkdir()
                prepare(folder)
                room = narrow / "fill"
                free = shutil.disk_usage(narrow).free
                room.write_bytes(bytes(max(0, free - left * 1024)))
                what = f"{name} on a file system with {left} KiB left"
                done = process.run(arguments, folder, place / f"narrow_{name}{left}.log")
                if done.code != 0:
                    _told(found, what, done, "the disk is full")
                room.unlink()
                done = process.run(arguments, folder, place / f"narrow_{name}{left}_again.log")
                if found.check(f"{what}: afterwards it is done", done.code == 0, done.said):
                    found.check(f"{what}: the result is identical", look(folder) == look(place / f"room_{name}"))
                shutil.rmtree(folder)
    found.counts["the same on a small tmpfs"] = (
        "geometry, report and export with 4 and 24 KiB left; all done afterwards"
    )
    found.say("disk full elsewhere")


@contextlib.contextmanager
def _mounted(folder: Path, options: str) -> Iterator[Path | None]:
    """A file system in memory, for those who may mount one."""
    folder.mkdir()
    done = subprocess.run(
        ("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)), capture_output=True, check=False
    )
    if done.returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(("umount", "-l", str(folder)), check=False)


def read_only(found: Found, expected: Fingerprint, place: Path) -> None:
    """A place that may not be written: empty, or with a run in it.

    Args:
        found: takes the account.
        expected: what the run leaves elsewhere.
        place: a folder to work in.
    """
    root = os.geteuid() == 0
    with _mounted(place / "ro", "size=8m") if root else contextlib.nullcontext(_fresh(place, "ro")) as folder:
        if folder is None:
            found.skip("a read-only folder: root may write anywhere, and may not mount here")
            return
        inside = folder / "in"
        inside.mkdir()
        done = process.run((*TRAIN[:-1], inside / "r"), place, place / "ro.log")
        found.check("a run is made before its place becomes read-only", done.code == 0, done.said)

        def lock(locked: bool) -> None:
            if root:
                mode = "ro" if locked else "rw"
                subprocess.run(("mount", "-o", f"remount,{mode}", str(folder)), check=True)
            else:
                for path in (inside, *inside.rglob("*")):
                    path.chmod((0o555 if path.is_dir() else 0o444) if locked else (0o755 if path.is_dir() else 0o644))

        lock(True)
        try:
            for name, arguments in {
                "train": (*TRAIN[:-1], inside / "new"),
                "geometry": ("geometry", inside / "r", "--device", "cpu", "--only", "norms", "--quick"),
                "report": ("report", inside / "r", "-o", inside / "page.html"),
                "study run": ("study", "run", "quickstart", "--device", "cpu", "-o", inside / "study"),
                "fit": ("fit", "digits", "--device", "cpu", "--budget", "20s", "-o", inside / "fit"),
            }.items():
                log = place / f"ro_{name.replace(' ', '_')}.log"
                done = process.run(arguments, place, log)
                _told(found, f"{name} in a read-only folder", done, "may not be written")
            done = process.run(("report", inside / "r", "-o", place / "page.html"), place, place / "ro_read.log")
            found.check("a run in a read-only folder can be reported elsewhere", done.code == 0, done.said)
        finally:
            lock(False)
        left = look_at_run(inside / "r")
        found.check("a run in a read-only folder stays as it was", left == expected)
    found.counts["read-only folder"] = "5 commands refused in words; reading goes on" + (
        " (tmpfs mounted ro)" if root else " (modes)"
    )
    found.say("read-only folder")


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

    folder = _fresh(place, "clock")
    done = process.run(TRAIN, folder, folder / "log", before=backwards)
    if found.check("a run comes to its end with a clock that goes backwards", done.code == 0, done.said):
        found.check("with a clock that goes backwards the result is identical", look_at_run(folder / "r") == expected)
        text = (folder / "r" / "summary.json").read_text() + (folder / "r" / "metrics.jsonl").read_text()
        found.check("no time is negative", '_s": -' not in text, text)
    begun = _fresh(place, "future")
    running = process.start(TRAIN, begun, begun / "log")
    running.wait(0.6)
    running.kill()
    future = time.time() + 10 * 365 * 86_400
    for path in begun.rglob("*"):
        os.utime(path, (future, future))
    _same(found, "a run whose files are of the future", begun, expected)
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
        folder = _fresh(place, f"two{number}")
        first = process.start(TRAIN, folder, folder / "log1")
        time.sleep(rng.choice((0.0, 0.0, rng.uniform(0.0, 0.5))))
        second = process.run(TRAIN, folder, folder / "log2")
        first.wait(120)
        codes = sorted((first.code, second.code), key=str)
        refused += 2 in codes
        found.check(f"pair {number}: one is done, the other done or refused", codes in ([0, 0], [0, 2]), str(codes))
        if 2 in codes:
            _told(
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
        folder = _fresh(place, f"measured{number}")
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
                _told(found, what, first if first.code == 2 else second, "another process is working on this run")
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
        folder = _fresh(place, name)
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
    folder = _fresh(place, "ray")
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
