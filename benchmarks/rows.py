"""What every benchmark writes: rows of a CSV file with the machine, the versions and the commit they were made with."""

from __future__ import annotations

import csv
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from steppe.train import describe_environment


def provenance(device: str) -> dict[str, Any]:
    """Machine, threads, versions, commit and date, as the last columns of a row.

    Args:
        device: that the figures were made on, "cuda" or "cpu".
    """
    environment = describe_environment(torch.device(device))
    return {
        "machine": environment["device_name"],
        "threads": environment["threads"],
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": environment["commit"],
        "date": datetime.now(UTC).date().isoformat(),
    }


def save(rows: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Write all rows; called after each, so that a run that is cut off leaves those it had.

    Args:
        rows: with the same keys.
        out: the CSV file.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
