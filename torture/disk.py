"""Bad disks: full, or not to be written."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
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


def fresh(place: Path, name: str) -> Path:
    """A new folder."""
    folder = place / name
    folder.mkdir()
    return folder


def told(found: Found, what: str, done: process.Process, words: str) -> None:
    """The command was refused with one message, without a traceback."""
    said = done.said
    found.check(f"{what}: exit code 2", done.code == 2, f"code {done.code}: {said}")
    found.check(f"{what}: it is told in words", words in said, said)
    found.check(f"{what}: no traceback", "Traceback" not in said, said)


def same(found: Found, what: str, folder: Path, expected: Fingerprint) -> None:
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
        folder = fresh(place, f"limit{size}")
        (folder / "log").touch()

        def limit(size: int = size) -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

        pipe = folder / "log"
        done = process.run(TRAIN, folder, Path("/dev/null"), before=limit)
        pipe.unlink()
        refused += done.code == 2
        found.check(f"files of at most {size} bytes: refused or done", done.code in (0, 2), f"code {done.code}")
        same(found, f"files of at most {size} bytes", folder, expected)
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
            folder = fresh(place, f"full{fill}")
            (small / "r").mkdir()
            (folder / "r").symlink_to(small / "r")
            done = process.run(TRAIN, folder, folder / "log")
            if done.code != 0:
                told(found, f"a file system with {256 - fill} KiB left", done, "the disk is full")
            room.unlink()
            same(found, f"a file system with {256 - fill} KiB left", folder, expected)
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
        alone = fresh(place, f"room_{name}")
        prepare(alone)
        done = process.run(arguments, alone, alone / "log")
        if not found.check(f"{name} comes to its end when left alone", done.code == 0, done.said):
            continue
        expected = look(alone)
        for size in (*sizes, rng.randrange(1, 20_000)):
            tried += 1
            what = f"{name} with files of at most {size} bytes"
            folder = fresh(place, f"starved_{name}_{tried}")
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
                    told(found, what, done, "the disk is full")
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
    with _mounted(place / "ro", "size=8m") if root else contextlib.nullcontext(fresh(place, "ro")) as folder:
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
        scratch = ("--weights", "none")
        try:
            for name, arguments in {
                "train": (*TRAIN[:-1], inside / "new"),
                "geometry": ("geometry", inside / "r", "--device", "cpu", "--only", "norms", "--quick"),
                "cost": ("cost", inside / "r", "--device", "cpu"),
                "report": ("report", inside / "r", "-o", inside / "page.html"),
                "study run": ("study", "run", "quickstart", "--device", "cpu", "-o", inside / "study"),
                "fit": ("fit", "digits", *scratch, "--device", "cpu", "--budget", "20s", "-o", inside / "fit"),
            }.items():
                log = place / f"ro_{name.replace(' ', '_')}.log"
                done = process.run(arguments, place, log)
                told(found, f"{name} in a read-only folder", done, "may not be written")
            done = process.run(("report", inside / "r", "-o", place / "page.html"), place, place / "ro_read.log")
            found.check("a run in a read-only folder can be reported elsewhere", done.code == 0, done.said)
        finally:
            lock(False)
        left = look_at_run(inside / "r")
        found.check("a run in a read-only folder stays as it was", left == expected)
    found.counts["read-only folder"] = "6 commands refused in words; reading goes on" + (
        " (tmpfs mounted ro)" if root else " (modes)"
    )
    found.say("read-only folder")
