"""Where a run happens: the device, and what a bug report or a reader of the results needs to know."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from steppe.config.lookup import check_device_name
from steppe.errors import ConfigError

PACKAGES = ("steppe", "torch", "torchvision", "timm", "numpy", "pydantic", "safetensors", "scikit-learn")


def pick_device(name: str | None = None) -> torch.device:
    """Return the device asked for, or the GPU where there is one, else the CPU."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(check_device_name(name))
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).strip().split("\n")[0]
        fix = "use --device cpu, or leave it away"
        raise ConfigError(f"device {name!r} cannot be used here: {reason}", where="--device", fix=fix) from None
    return device


def available_cores() -> int:
    """The cores this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Collect versions, machine, device, threads, commit and command."""
    return {
        "command": [*_program(), *sys.argv[1:]],
        "commit": _commit(),
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "threads": torch.get_num_threads(),
        "cores": available_cores(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def _program() -> list[str]:
    """What a person types before the arguments: `python -m steppe` has the name of a file, torchrun is not told."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    machines = max(1, int(os.environ.get("WORLD_SIZE", "1")) // ranks)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        several = [f"--nnodes={machines}"] if machines > 1 else []
        return ["torchrun", *several, f"--nproc-per-node={ranks}", "-m", "steppe"]
    path = Path(sys.argv[0])
    return ["steppe"] if path.parts[-2:] == ("steppe", "__main__.py") else [path.name]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of a source checkout, with a plus sign where files differ from it; None when installed.

    $STEPPE_COMMIT names it where the sources were copied without their history, as to a GPU machine.
    """
    if named := os.environ.get("STEPPE_COMMIT"):
        return named
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True, timeout=5).stdout

    try:
        head = git("rev-parse", "--short=12", "HEAD").strip()
        changed = git("status", "--porcelain", "-uno").strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+" if changed else "")


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
