"""How a machine is shared: jobs at a time, threads of each, and the GPU of each."""

from __future__ import annotations

import os

import torch

from steppe.train import available_cores


def default_workers(device: str | None) -> int:
    """Return the jobs at a time: one on each GPU, one on each core of the CPU.

    Args:
        device: as requested; by default the GPU where there is one.
    """
    on_gpu = torch.cuda.is_available() if device is None else not device.startswith("cpu")
    if not on_gpu:
        return available_cores()
    return max(1, torch.cuda.device_count()) if device in (None, "cuda") else 1


def threads_for(workers: int) -> int:
    """Return the threads of each of so many workers: its share of the cores, at most $OMP_NUM_THREADS."""
    share, limit = max(1, available_cores() // workers), os.environ.get("OMP_NUM_THREADS", "")
    return min(share, max(1, int(limit))) if limit.isdecimal() else share


def device_of_worker(device: str | None, number: int, gpus: int) -> str | None:
    """Return the device of a worker: of several GPUs, unless one is named, workers take them in turn.

    Args:
        device: as requested.
        number: of the worker, from 0.
        gpus: how many there are.
    """
    return f"cuda:{number % gpus}" if device in (None, "cuda") and gpus > 1 else device


def count_gpus() -> int:
    """Return the number of GPUs of this machine."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
