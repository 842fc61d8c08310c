"""Jobs on a Ray cluster: a worker is an actor that makes one job after the other.

A worker is given its first job when it is ready, with everything imported and the images read: so the time that Ray
takes to start a process is no part of a job's. A machine that sees the folder of the jobs works in it. Another one
works in a copy; the files that changed travel to this process at checkpoints and at the end, through Ray's object
store, and are written here. If its worker dies, the next one starts from a copy of what has arrived.

Ray is imported when it is used: see the extra `ray`.
"""

from __future__ import annotations

import math
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import torch

from steppe.config import DataConfig
from steppe.data import Keeping
from steppe.errors import ConfigError, Interrupted, RunError, SteppeError
from steppe.jobs.job import ENDS, Job, Link, load_once, perform_in_worker
from steppe.jobs.pool import Lost, Pool
from steppe.jobs.travel import Packer, Parcel, scratch_folder
from steppe.measuring import ignore
from steppe.runs import try_lock
from steppe.runs.files import MARKER, remove_leftovers

RETRIES = 3
"""How often a job is tried again after its worker or node died."""
_BUSY = "another process is working on this run"


@dataclass(frozen=True)
class Setup:
    """What every worker needs to know.

    Args:
        marker: a file in the folder of the jobs; a machine without it does not see that folder.
        threads: to compute with.
        command: of the process that submits the jobs, for `env.json`.
        folder: where that process works.
        images: configuration, root and keeping of a data set to load before the first job.
    """

    marker: Path
    threads: int
    command: list[str]
    folder: str
    images: tuple[DataConfig, str | None, Keeping] | None


class Worker:
    """A process of the cluster; an actor of two threads, so that it can be asked to stop."""

    def __init__(self, setup: Setup) -> None:
        """Prepare."""
        self.setup = setup
        self.messages: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self.folder = Path()
        self.stopping = threading.Event()

    def get_ready(self) -> tuple[str, bool]:
        """Load the images; return this machine's name, and whether it sees the folder of the jobs."""
        with suppress(OSError):  # relative paths mean the same here, where that folder is there
            os.chdir(self.setup.folder)
        sys.argv = self.setup.command
        if self.setup.images:
            load_once(*self.setup.images)
        return socket.gethostname(), self.setup.marker.exists()

    def begin(self, job: Job, copies: dict[str, Parcel] | None) -> list[tuple[str, Any]]:
        """Begin a job; wait for its first messages and return them.

        Args:
            job: the job.
            copies: of its run's folder and of that of the run it needs, by name; None where this machine sees them.
        """
        self.folder, self.stopping = job.folder, threading.Event()
        threading.Thread(target=self._work, args=(job, copies, self.stopping), daemon=True).start()
        return self.poll()

    def poll(self) -> list[tuple[str, Any]]:
        """Wait for messages and return them."""
        messages = [self.messages.get()]
        with suppress(Empty):
            while True:
                messages.append(self.messages.get_nowait())
        return messages

    def stop(self, folder: Path) -> None:
        """Ask for the job of a folder to be stopped and kept, if it is still under way."""
        if folder == self.folder:
            self.stopping.set()

    def _work(self, job: Job, copies: dict[str, Parcel] | None, stop: threading.Event) -> None:
        torch.set_num_threads(self.setup.threads)  # of this thread of Python
        link = Link(lambda name, details: self.messages.put((name, details)), stop=stop)
        try:
            end = perform_in_worker(job, link) if copies is None else self._work_away(job, copies, link)
        except SteppeError as error:  # the copy cannot be written or read
            end = ("failed", str(error))
        self.messages.put(end)

    def _work_away(self, job: Job, copies: dict[str, Parcel], link: Link) -> tuple[str, Any]:
        """Make a job in copies of the folders, and send home what changes."""
        with scratch_folder() as scratch:
            for name, parcel in copies.items():
                parcel.unpack(scratch / name)
            packer = Packer(scratch / job.folder.name)
            packer.known = packer.stamps()

            def send() -> None:
                if time.monotonic() >= packer.next_at and self.messages.empty():
                    self.messages.put(("files", packer.pack()))

            link.away, link.saved = True, send
            name, details = perform_in_worker(replace(job, folder=packer.folder), link)
            self.messages.put(("files", packer.pack()))
            if name == "failed":
                details = str(details).replace(str(scratch), str(job.folder.parent))
                details += f"\n  on:    {socket.gethostname()}, which worked in {scratch.parent}"
            return name, details


class RayWorkers(Pool):
    """Make jobs on a cluster, as many at a time as there is room: a GPU each where there are any, else cores."""

    def __init__(
        self,
        folder: Path,
        threads: int,
        workers: int,
        most: int | None = None,
        *,
        address: str | None = None,
        device: str | None = None,
        images: tuple[DataConfig, str | None, Keeping] | None = None,
        copies: bool = False,
    ) -> None:
        """Prepare; entering the context joins the cluster.

        Args:
            folder: in which the folders of all jobs lie.
            threads: of each job.
            workers: on this machine's own cluster, how many jobs at a time.
            most: workers at a time, however large the cluster is.
            address: of the cluster; by default $RAY_ADDRESS, else one on this machine that ends with the context.
            device: by default a GPU for each job where the cluster has any.
            images: configuration, root and keeping of a data set that workers load before their first job.
            copies: whether machines that do not see the folder may work in copies.

        Raises:
            ConfigError: Ray is not installed, or nothing answers at the address.
        """
        super().__init__(RETRIES)
        self.ray = check_cluster(address)
        self.folder, self.device, self.threads = folder.absolute(), device, threads
        self._address, self._workers, self._most = address, workers, most or math.inf
        self._images, self._copies = images, copies
        self._starting: dict[Any, Any] = {}
        self._idle: list[Any] = []
        self._seen: dict[Any, bool] = {}
        self._polls: dict[Any, Any] = {}
        self._locks: dict[Any, int] = {}
        self._arrived: list[tuple[Any, Any]] = []
        self._killed: set[Any] = set()
        self._dismissed = False
        self._trouble: SteppeError | None = None

    def __enter__(self) -> RayWorkers:
        """Join the cluster, and turn Ctrl-C and SIGTERM into a request to every worker."""
        self._open.enter_context(join_cluster(self.ray, self._address, cpus=self._workers * self.threads))
        gpus = _gpus_of_job(self.ray, self.device)
        self.device = "cuda" if gpus else "cpu"  # Ray shows an actor its own GPU alone
        marker = self._open.enter_context(_marker(self.folder))
        setup = Setup(marker, self.threads, sys.argv, os.getcwd(), self._images)
        kind = self.ray.remote(num_cpus=self.threads, num_gpus=gpus, max_concurrency=2)(Worker)
        self._start = partial(kind.remote, setup)
        super().__enter__()
        return self

    def has_room(self, beat: Callable[[], object] = ignore, wait_s: float = 0.0) -> bool:
        """Return whether a worker is ready; while none is at work, wait for one.

        Raises:
            Interrupted: Ctrl-C or SIGTERM.
            SteppeError: what keeps every worker from getting ready.
        """
        if self.stop.is_set() and not self._busy:
            raise Interrupted("stopped")
        if self._dismissed and self._busy:
            return False
        self._dismissed = False
        until = time.monotonic() + wait_s
        while not self._waiting:
            self._start_workers()
            self._welcome(0.0)
            if self._idle or self._busy or self.stop.is_set() or time.monotonic() > until:
                return bool(self._idle) and not self.stop.is_set()
            beat()
            self._welcome(0.1)
        return False

    def dismiss(self) -> None:
        """Let all workers go that are not at work, unless the job of a lost worker waits for one."""
        if self._waiting:
            return
        self._dismissed = True
        for worker in (*self._idle, *self._starting.values()):
            self.ray.kill(worker)
        self._idle, self._starting = [], {}

    def _start_workers(self) -> None:
        """Start as many workers as the cluster has room for, and one that waits: a cluster may grow."""
        there = self.ray.cluster_resources()
        room = there.get("GPU", 0) if self.device == "cuda" else there.get("CPU", 0) // self.threads
        if self._trouble:
            if not self._idle and not self._busy and len(self._starting) <= 1:
                raise self._trouble
            return
        while len(self._idle) + len(self._busy) + len(self._starting) < min(room + 1, self._most):
            worker = self._start()
            self._starting[worker.get_ready.remote()] = worker

    def _welcome(self, wait_s: float) -> None:
        """Take in workers that are ready, and what keeps others from being so."""
        if not self._starting:
            return
        ready, _ = self.ray.wait(list(self._starting), timeout=wait_s)
        for task in ready:
            worker = self._starting.pop(task)
            try:
                host, self._seen[worker] = self.ray.get(task)
                self._idle.append(worker)
                if not self._seen[worker] and not self._copies:
                    what = f"{host}, a machine of the cluster, does not see the search's folder"
                    fix = "put it where all machines see it under the same path; `steppe study run` can do without"
                    self._trouble = ConfigError(what, where=str(self.folder), fix=fix)
                    raise self._trouble
            except self.ray.exceptions.RayTaskError as error:
                if not isinstance(error.cause, SteppeError):
                    raise
                self._trouble = error.cause
            except self.ray.exceptions.RayError as error:
                self._trouble = RunError(f"the workers of the cluster die: {_first(error)}", where=str(self.folder))

    def _free_worker(self) -> Any:
        if not self._idle:
            self._start_workers()
            self._welcome(0.0)
        return self._idle.pop() if self._idle else None

    def _is_idle(self, worker: Any) -> None:
        self._release(worker)
        if worker not in self._killed:
            self._idle.append(worker)

    def _send(self, worker: Any, job: Job) -> None:
        job, copies = replace(job, device=self.device, folder=job.folder.absolute()), None
        if not self._seen[worker]:
            if job.folder.is_dir() and not self._hold(worker, job.folder):
                self._arrived.append((worker, ("busy", _BUSY)))
                return
            needed = Packer(job.folder.parent / str(job.needs), ("config.toml", "data.json", "weights.safetensors"))
            copies = {job.folder.name: Packer(job.folder).pack()}
            copies |= {needed.folder.name: needed.pack()} if job.needs else {}
        self._polls[worker.begin.remote(job, copies)] = worker

    def _receive(self, wait_s: float) -> list[tuple[Any, Any]]:
        found, self._arrived = self._arrived, []
        if found or not self._polls:
            self.stop.wait(0.0 if found else wait_s)
            return found
        done, _ = self.ray.wait(list(self._polls), timeout=wait_s)
        for poll in done:
            worker = self._polls.pop(poll)
            if worker not in self._busy:
                continue
            try:
                messages = self.ray.get(poll)
                for message in messages:
                    found += self._unpack(worker, *message)
                    if worker in self._killed:
                        break
                else:
                    if messages[-1][0] not in ENDS:
                        self._polls[worker.poll.remote()] = worker
            except self.ray.exceptions.RayError as error:
                self._kill(worker)
                found.append((worker, Lost(_first(error))))
        return found

    def _unpack(self, worker: Any, name: str, details: Any) -> list[tuple[Any, Any]]:
        """Write the files that came with a message; pass on any other message."""
        if name != "files":
            return [(worker, (name, details))]
        folder = self._busy[worker].job.folder.absolute()
        try:
            if not details.files and not details.gone:
                return []
            if self._hold(worker, folder):
                details.unpack(folder)
                return []
            end = ("busy", _BUSY)
        except SteppeError as error:
            end = ("failed", str(error))
        self._kill(worker)
        return [(worker, end)]

    def _hold(self, worker: Any, folder: Path) -> bool:
        """Hold a run's folder for the worker that makes it elsewhere."""
        if worker not in self._locks:
            if (handle := try_lock(folder / ".lock")) is None:
                return False
            self._locks[worker] = handle
            remove_leftovers(folder)
        return True

    def _release(self, worker: Any) -> None:
        if (handle := self._locks.pop(worker, None)) is not None:
            os.close(handle)

    def _ask_to_stop(self, worker: Any) -> None:
        worker.stop.remote(self._busy[worker].job.folder.absolute())

    def _kill(self, worker: Any) -> None:
        self._killed.add(worker)
        self.ray.kill(worker)
        self._release(worker)


@contextmanager
def _marker(folder: Path) -> Iterator[Path]:
    """Leave a marker in a folder for the time being; remove those of killed processes."""
    for stale in folder.glob(f"{MARKER}*"):
        if (handle := try_lock(stale)) is not None:
            stale.unlink(missing_ok=True)
            os.close(handle)
    marker = folder / f"{MARKER}{secrets.token_hex(16)}"
    handle = try_lock(marker)
    try:
        yield marker
    finally:
        marker.unlink(missing_ok=True)
        if handle is not None:
            os.close(handle)


@contextmanager
def join_cluster(ray: Any, address: str | None, cpus: int) -> Iterator[None]:
    """Join a cluster, or make one on this machine for the time being. One that is joined already is used."""
    if ray.is_initialized():
        yield
        return
    where = address or os.environ.get("RAY_ADDRESS") or "local"
    check_cluster(where)
    options: dict[str, Any] = {"num_cpus": cpus, "include_dashboard": False} if where == "local" else {}
    try:
        ray.init(address=where, log_to_driver=False, logging_level="error", **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _no_answer(where, _first(error), there=where != "local") from None
    try:
        yield
    finally:
        ray.shutdown()


def check_cluster(address: str | None) -> Any:
    """Import Ray and try to connect: Ray itself would wait there for minutes.

    Args:
        address: of the cluster; None for one on this machine.

    Raises:
        ConfigError: Ray is not installed, or nothing answers.
    """
    try:
        import ray
    except ImportError:
        fix = "pip install 'steppe[ray]'"
        raise ConfigError("--on ray needs the package ray, which is not installed", where="--on", fix=fix) from None
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if port.isdigit():  # and not none, "auto" or "local"
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        except (OSError, OverflowError) as error:
            raise _no_answer(str(address), str(error)) from None
    return ray


def _no_answer(address: str, reason: str, there: bool = False) -> ConfigError:
    """The error of a cluster that cannot be joined; `there`: something listens at its address."""
    fix = "start one with `ray start --head`, or leave --address away to have one on this machine"
    if there and "RAY_AUTH_MODE" not in os.environ:
        fix = "set RAY_AUTH_MODE=token: the cluster may ask for a token, which Ray sends to an --address only then"
    return ConfigError(f"the Ray cluster does not answer: {reason}", where=f"--address {address}", fix=fix)


def _gpus_of_job(ray: Any, device: str | None) -> int:
    """Return one GPU for a job, where it is requested or the cluster has any."""
    there = int(ray.cluster_resources().get("GPU", 0))
    if device and not device.startswith("cpu") and not there:
        raise ConfigError(f"the cluster has no GPU for --device {device}", where="--device", fix="leave it away")
    return 1 if there and not (device or "").startswith("cpu") else 0


def _first(error: BaseException) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")
