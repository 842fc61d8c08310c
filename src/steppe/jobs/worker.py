"""A worker process: `python -m steppe.jobs.worker CONNECTION THREADS` receives jobs and sends events."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from queue import SimpleQueue

import torch

from steppe.jobs.job import Job, Link, perform_in_worker


def main() -> None:
    """Work until the connection ends."""
    connection = Connection(int(sys.argv[1]))
    torch.set_num_threads(int(sys.argv[2]))
    jobs: SimpleQueue[Job] = SimpleQueue()
    sys.argv = connection.recv()  # what a person would type to make these runs again, for env.json
    threading.Thread(target=_receive, args=(connection, jobs), daemon=True).start()
    while True:
        link = Link(tell=lambda name, details: connection.send((name, details)))
        connection.send(perform_in_worker(jobs.get(), link))


def _receive(connection: Connection, jobs: SimpleQueue[Job]) -> None:
    """Queue jobs. The connection ends with the process that started this one: then stop at once."""
    try:
        while True:
            jobs.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    main()
