"""`steppe report`: one page about runs, written to a file or served while training goes on."""

from __future__ import annotations

import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from steppe.cli.show import ForceOption, JsonOption, console, errors, print_json
from steppe.errors import ConfigError, RunError
from steppe.signals import handle_stops


def report(
    runs: Annotated[list[Path], typer.Argument(help="run folders, or folders that hold some")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="the page to write  \\[default: report.html]", show_default=False)
    ] = None,
    force: ForceOption = False,
    title: Annotated[str | None, typer.Option(help="the page's title")] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="serve the page to this machine's browser and renew it as runs go on")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="with --serve; 0 takes a free one")] = 0,
    open_: Annotated[bool, typer.Option("--open", help="with --serve: open it in the browser")] = False,
    json: JsonOption = False,
) -> None:
    """Write one self-contained HTML page about runs; it works offline."""
    for folder in runs:
        if not folder.is_dir():
            raise RunError("there is no such folder", where=str(folder), fix="check the path")
    from steppe.report import print_table, row_values
    from steppe.report.page import PAGE, write_page
    from steppe.report.studies import read_studies, summarise_studies
    from steppe.runs import find_runs

    if serve:
        if out is not None:
            raise ConfigError("a served page is not written", fix="leave out -o, or --serve")
        if json:
            raise ConfigError("a served page has no table to print", fix="leave out --json, or --serve")
        _serve(runs, title, port, open_)
        return
    if port or open_:
        raise ConfigError("--port and --open are for a page that is served", fix="add --serve")
    skipped: list[str] = []
    found = find_runs(runs, skipped)
    for name in skipped:
        _pass_over(name)
    parts = read_studies(found, runs, _pass_over)
    out = out or Path("report.html")
    if out.is_dir():
        raise RunError("this is a folder, not a page", where=str(out), fix=f"say -o {out / 'report.html'}")
    PAGE.check(out, force=force)
    rows = summarise_studies(parts)
    if not json:
        print_table(rows, console)
    page = write_page(parts, out, title=title, force=force)
    if json:
        print_json({"report": str(page), "rows": [row_values(row) for row in rows]})
    else:
        console.print(f"report: {page}", markup=False, soft_wrap=True)


def _pass_over(what: str) -> None:
    errors.print(f"passed over {what}", markup=False, soft_wrap=True)


def _serve(folders: Sequence[Path], title: str | None, port: int, open_browser: bool) -> None:
    from steppe.report.serve import address_of, open_server

    server = open_server(folders, lambda version, bare: _render(folders, title, version, bare), port)
    stop = threading.Event()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    with handle_stops(stop.set):
        thread.start()
        try:
            where = ", ".join(map(str, folders))
            console.print(
                f"serving {address_of(server)}  (watching {where}; Ctrl-C ends it)", markup=False, soft_wrap=True
            )
            if open_browser:
                webbrowser.open(address_of(server))
            while not stop.wait(0.2):
                pass
        finally:
            server.shutdown()
            server.server_close()
            thread.join(5)
    console.print("stopped serving; nothing was written")


def _render(folders: Sequence[Path], title: str | None, version: str, bare: bool) -> str:
    from steppe.report.page import render
    from steppe.report.studies import read_studies
    from steppe.runs import find_runs

    try:
        found = find_runs(list(folders), [])
    except RunError:
        found = []  # training may not have begun
    return render(read_studies(found, folders), title=title, version=version, bare=bare)
