"""What the suite found, as text: printed, and kept in dev/reliability.md."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from torture.found import Found

ABOUT = {
    "kills": "SIGKILL at random moments over commands under way, of a study also on its workers, alone or all at once; "
    "each is run again, perhaps killed again, and must end in what an undisturbed run leaves: weights and answers to "
    "the bit, figures without their times; so must a search with a budget of epochs, with its trials in their order. "
    "One with a budget of seconds must keep it, and every trial that had ended. Commands are forked from a process "
    "that has imported steppe, so that a kill falls into the work and not into an import; a study's workers are "
    "processes of their own, imports and all.",
    "fuzz": "Every input must end in a result or in an error meant for the user, within 30 s, with what was there "
    "untouched. Inputs come from seeded random mutation: the same seed gives the same inputs.",
    "hostile": "Files that would run a program if they were unpickled carelessly (the payload makes a folder, and does "
    "so when unpickled by hand), hostile image folders, hostile names in figures and in the report, pipes and "
    "devices in the place of files, rewritten weights, files that -o may not replace, images that have changed.",
    "place": "A full disk, a read-only folder, a clock that goes backwards, two processes on one run or study, a lost "
    "Ray worker.",
}


def write_account(accounts: Sequence[Found], out: Path | None, arguments: Sequence[str]) -> str:
    """Give the account as Markdown; where `out` is named, write it there too.

    Args:
        accounts: of the parts that were run.
        out: the file.
        arguments: of the command line.
    """
    failures = sum(len(found.failures) for found in accounts)
    lines = ["# Reliability", ""]
    lines += ["Written by `make torture` (`python -m torture`); not by hand.", ""]
    lines += ["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in _circumstances(arguments).items()), ""]
    lines += [f"**{failures} failure{'' if failures == 1 else 's'}.**", ""]
    for found in accounts:
        lines += [f"## {found.part.capitalize()}", "", ABOUT[found.part], "", "| what | |", "|---|---|"]
        lines += [f"| {what} | {count} |" for what, count in found.counts.items()]
        lines += [f"| time | {found.took_s:.0f} s |", ""]
        lines += [f"- Not tried here: {text}" for text in found.skipped]
        lines += [f"- **Failed**: {_one_line(text)}" for text in found.failures]
        lines += [""] if found.skipped or found.failures else []
    text = "\n".join(lines).rstrip() + "\n"
    if out is not None:
        history = Path(__file__).with_name("history.md")
        out.write_text(text + ("\n" + history.read_text() if history.is_file() else ""))
    return text


def _circumstances(arguments: Sequence[str]) -> dict[str, str]:
    versions = {name: _version(name) for name in ("steppe", "torch", "numpy", "pillow", "safetensors", "optuna", "ray")}
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} cores"
        + (", as root" if os.geteuid() == 0 else ""),
        "versions": f"Python {platform.python_version()}, " + ", ".join(f"{k} {v}" for k, v in versions.items() if v),
        "commit": _commit(),
        "command": f"`python -m torture {shlex.join(arguments)}`",
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(("git", *words), capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
        return done.stdout.strip()

    changed = ", with changes" if git("status", "--porcelain", "--", "../src", ".") else ""
    return (git("rev-parse", "--short", "HEAD") or "unknown") + changed


def _one_line(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())[:600]
