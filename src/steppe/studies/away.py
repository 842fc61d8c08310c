"""A run made on a machine that does not see its study's folder: begun from what lies at home, and brought home.

The run has a folder of its own on this machine for the time being, with the weights it begins from beside it. At every
moment when that folder is at rest, just after a checkpoint or a measure was written, what has changed in it may be
brought home; in the end all is. Its locks are held at home (see `steppe.runs.home`, a Ray actor there), for as long as
this process is heard of. If it dies, the next one begins from what came home.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from steppe.errors import Busy, RunError, SteppeError
from steppe.plain_files import open_plain
from steppe.runs import try_lock
from steppe.runs.files import explain_os_error
from steppe.runs.home import CHUNK, checked_name, files_of
from steppe.studies.pool import BUSY_S
from steppe.studies.stopping import take_stop_requests

BEAT_S = 5.0
"""How often home hears that this process is alive, and looks whether others are."""
LEAST_S = 5.0
"""Files are not brought home more often than this,"""
SHARE = 0.1
"""nor for a larger share of the time."""
SCRATCH = "steppe-away-"
"""How the names of the folders for the time being begin."""

Make = Callable[[dict[str, Any], Callable[[], None]], dict[str, Any]]
"""Makes a job's run, calling the second argument whenever its folder is at rest; gives the event it ended with."""


def make_away(job: dict[str, Any], home: Any, make: Make) -> dict[str, Any]:
    """Make a run here and bring it home; give the event it ended with.

    Args:
        job: as of `steppe.studies.worker`, with `needs`.
        home: a Ray actor of `steppe.runs.home.Home`.
        make: makes the run in a folder on this machine.
    """
    if "mlflow" in job["track"] and not os.environ.get("MLFLOW_TRACKING_URI"):
        return {"event": "failed", "reason": "mlflow: set $MLFLOW_TRACKING_URI, this machine does not see its database"}
    there = Path(job["out"])
    while True:
        with _scratch_folder() as scratch:
            try:
                with AwayRun(home, scratch / there.name) as run:
                    answer = _make(run, job, make)
            except Busy:  # held for dead at home: begin again from what is there, when it is free
                answer = {"event": "busy"}
            except SteppeError as error:
                answer = {"event": "failed", "reason": str(error)}
        if "reason" in answer:
            reason = answer["reason"].replace(str(scratch), str(there.parent))
            answer["reason"] = f"{reason}\n  on:    {socket.gethostname()}, which worked in {scratch.parent}"
        if answer["event"] != "busy":
            return answer
        time.sleep(BUSY_S)


def _make(run: AwayRun, job: dict[str, Any], make: Make) -> dict[str, Any]:
    """Fetch, make and bring a run; a request to stop is met between these."""
    stop = threading.Event()
    with take_stop_requests(stop):
        if job["needs"]:
            run.fetch(job["needs"], only=("weights.safetensors", "data.json"))  # what it learned, and how normalised
        run.fetch()
    if stop.is_set():
        return {"event": "interrupted"}
    answer = make({**job, "out": str(run.path)}, run.saved)
    with take_stop_requests(stop):
        run.bring()
    return answer


class AwayRun:
    """A run's folder on this machine, and what of it is at home already."""

    def __init__(self, home: Any, path: Path) -> None:
        """Prepare; nothing is locked before it is entered.

        Args:
            home: a Ray actor of `steppe.runs.home.Home`.
            path: the folder on this machine, named as at home.
        """
        self.home, self.path = home, path
        self.session = ""
        self.known: dict[str, tuple[int, int, int]] = {}
        self.next_at = time.monotonic() + LEAST_S
        self._left = threading.Event()

    def __enter__(self) -> AwayRun:
        """Take the run at home, when it is free, and be heard of from then on."""
        while (session := self._ask("take", self.path.name)) is None:
            time.sleep(BUSY_S)
        self.session = session
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Let the run go at home."""
        self._left.set()
        with suppress(SteppeError):
            self._ask("release", self.path.name, self.session)

    def fetch(self, run: str | None = None, only: Collection[str] = ()) -> None:
        """Copy what lies at home.

        Args:
            run: another run, to lie beside this one.
            only: the files that are wanted; by default all.
        """
        folder = self.path.parent / (run or self.path.name)
        for name, size in self._ask("files", folder.name).items():
            if not only or name in only:
                with _written(folder / checked_name(name)) as file:
                    for start in range(0, size, CHUNK):
                        file.write(self._ask("read", folder.name, name, start))
        if run is None:
            self.known = self._now()

    def saved(self) -> None:
        """The folder is at rest: bring what has changed, unless that was done a moment ago."""
        if time.monotonic() >= self.next_at:
            self.bring()

    def bring(self) -> None:
        """Bring home what has changed since it was fetched or brought.

        Raises:
            Busy: home holds this process for dead; nothing was changed there.
            RunError: it cannot be written there.
        """
        began, now = time.monotonic(), self._now()
        sizes = {}
        for name in (name for name, about in now.items() if self.known.get(name) != about):
            with suppress(FileNotFoundError):  # a tracker has removed it
                sizes[name] = self._send(name)
        gone = [name for name in self.known if name not in now]
        if sizes or gone:
            self._tell("put", sizes, gone)
        self.known = now
        self.next_at = time.monotonic() + max(LEAST_S, (time.monotonic() - began) / SHARE)

    def _now(self) -> dict[str, tuple[int, int, int]]:
        """What tells a file from what it was before: another place on the disk, time or size."""
        return {name: (s.st_ino, s.st_mtime_ns, s.st_size) for name, s in files_of(self.path).items()}

    def _send(self, name: str) -> int:
        """Send a file, piece by piece; give its size."""
        size = 0
        with open_plain(self.path / name) as file:
            while (piece := file.read(CHUNK)) or not size:
                self._tell("add", name, size, piece)
                size += len(piece)
                if len(piece) < CHUNK:
                    break
        return size

    def _tell(self, method: str, *arguments: Any) -> None:
        if not self._ask(method, self.path.name, self.session, *arguments):
            raise Busy("another process is working on this run", where=self.path.name)

    def _ask(self, method: str, *arguments: Any) -> Any:
        import ray

        try:
            return ray.get(getattr(self.home, method).remote(*arguments))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, SteppeError):
                raise error.cause from None
            raise
        except ray.exceptions.RayActorError as error:
            reason = str(error).strip().split("\n")[0]
            raise RunError(f"the study's folder cannot be reached any more: {reason}") from None

    def _beat(self) -> None:
        while not self._left.wait(BEAT_S):
            self.home.beat.remote(self.path.name, self.session)


@contextmanager
def _written(path: Path) -> Iterator[Any]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            yield file
    except OSError as error:
        raise explain_os_error(error, path) from None


@contextmanager
def _scratch_folder() -> Iterator[Path]:
    """A folder for the time being; those that killed processes left on this machine are removed."""
    for left in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*/.lock"):
        with suppress(OSError, SteppeError):
            if left.stat().st_uid == os.geteuid() and (handle := try_lock(left)) is not None:
                shutil.rmtree(left.parent, ignore_errors=True)
                os.close(handle)
    folder, handle = Path(), None
    while handle is None or not folder.exists():  # another process may have seen it before it was locked
        folder = Path(tempfile.mkdtemp(prefix=SCRATCH))
        handle = try_lock(folder / ".lock")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)
