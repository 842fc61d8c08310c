"""A server for the report during training: for this machine alone, renewed when run folders change.

    /           the page
    /version    what it was made from; changes when a file of the runs does
    /update     the page without its scripts, for a page that takes in what is new

The folder is looked at when a browser asks, at most once in `_LOOK_S` seconds; nothing runs in between, and nothing is
written. Only this machine is answered, and only under its own name: a page from elsewhere cannot read along.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from steppe.errors import RunError
from steppe.runs import is_locked

HOST = "127.0.0.1"
_LOOK_S = 0.5
_WATCHED = (".json", ".jsonl", ".toml", ".png")

Render = Callable[[str, bool], str]
"""Makes the page: of a version, and with scripts or without."""


class Pages:
    """The page as the folders are now, made again only when they have changed."""

    def __init__(self, folders: Sequence[Path], render: Render) -> None:
        self._folders, self._render = folders, render
        self._lock = threading.Lock()
        self._looked, self._version = -_LOOK_S, ""
        self._made: dict[bool, tuple[str, bytes]] = {}

    def version(self) -> str:
        """Return the fingerprint of the folders as they are now."""
        with self._lock:
            if time.monotonic() - self._looked >= _LOOK_S:
                self._version, self._looked = fingerprint(self._folders), time.monotonic()
            return self._version

    def page(self, bare: bool = False) -> bytes:
        """Return the page; a `bare` one has no scripts."""
        version = self.version()
        with self._lock:
            if bare not in self._made or self._made[bare][0] != version:
                self._made[bare] = (version, self._render(version, bare).encode("utf-8", "replace"))
            return self._made[bare][1]


def fingerprint(folders: Sequence[Path]) -> str:
    """Digest the names, sizes and times of all files that make a report, and which runs are under way."""
    digest = hashlib.sha256()
    for folder in folders:
        for place, inner, names in os.walk(folder):
            inner[:] = sorted(name for name in inner if not name.startswith("."))
            if ".lock" in names:
                digest.update(f"{place} {is_locked(Path(place))}\n".encode("utf-8", "replace"))
            for name in sorted(names):
                if name.endswith(_WATCHED) and not name.startswith("."):
                    path = os.path.join(place, name)
                    try:
                        about = os.stat(path)
                    except OSError:
                        continue  # it went while we looked; the next look sees what is there then
                    digest.update(f"{path}\0{about.st_size}\0{about.st_mtime_ns}\n".encode("utf-8", "replace"))
    return digest.hexdigest()[:16]


def open_server(folders: Sequence[Path], render: Render, port: int = 0) -> ThreadingHTTPServer:
    """Begin to listen; the returned server answers in `serve_forever`.

    Args:
        folders: what to watch.
        render: makes the page.
        port: 0 takes one that is free.

    Raises:
        RunError: the port is taken, or may not be used.
    """
    pages = Pages(folders, render)
    try:
        server = ThreadingHTTPServer((HOST, port), type("Handler", (_Handler,), {"pages": pages}))
    except (OSError, OverflowError) as error:
        what = f"port {port} cannot be used: {getattr(error, 'strerror', None) or error}"
        raise RunError(what, fix="choose another with --port, or leave it away: a free one is taken") from None
    server.daemon_threads = True
    return server


def address_of(server: ThreadingHTTPServer) -> str:
    """Return the address to open in a browser."""
    return f"http://{HOST}:{server.server_address[1]}/"


class _Handler(BaseHTTPRequestHandler):
    """Answers for three paths; everything else is not there."""

    pages: Pages
    server_version = "steppe"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer."""
        self._answer(body=True)

    def do_HEAD(self) -> None:
        """Answer without the content."""
        self._answer(body=False)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet: every look at the version would be a line."""

    def _answer(self, body: bool) -> None:
        port = self.server.server_address[1]  # type: ignore[index]
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"only this machine is served\n", body)
            return
        path = self.path.split("?")[0]
        try:
            if path == "/version":
                self._send(HTTPStatus.OK, "text/plain", self.pages.version().encode(), body)
            elif path in ("/", "/update"):
                self._send(HTTPStatus.OK, "text/html", self.pages.page(bare=path == "/update"), body)
            else:
                self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there is nothing here\n", body)
        except RunError as error:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{error}\n".encode("utf-8", "replace"), body)

    def _send(self, status: HTTPStatus, kind: str, content: bytes, body: bool) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            if body:
                self.wfile.write(content)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the browser has left
