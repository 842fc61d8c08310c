"""Ctrl-C and SIGTERM as requests that are met when nothing is lost by it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def take_stop_requests(stop: threading.Event) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into a request.

    Args:
        stop: set by them.
    """
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for kind in map(int, (signal.SIGINT, signal.SIGTERM)):
            before[kind] = signal.signal(kind, lambda number, frame: stop.set())
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
