"""Ctrl-C and SIGTERM: the one place where handlers are installed and put back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def handle_stops(handle: Callable[[], object], *, once: bool = False) -> Iterator[None]:
    """Call a function at every Ctrl-C and SIGTERM while the context is open; do nothing outside the main thread.

    Args:
        handle: the function.
        once: leave the second signal to the handler that was installed before.
    """
    before: dict[int, Any] = {}

    def receive(number: int, frame: object) -> None:
        if once:
            signal.signal(number, before[number])
        handle()

    if threading.current_thread() is threading.main_thread():
        for kind in map(int, (signal.SIGINT, signal.SIGTERM)):
            before[kind] = signal.signal(kind, receive)
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
