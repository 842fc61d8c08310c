"""Energy of a GPU, from NVIDIA's management library where it is there.

Newer GPUs count their energy themselves: the count at the end less that at the beginning. Of others the power is read
ten times a second and integrated over the time. Without NVML (no GPU of NVIDIA's, no driver, no `nvidia-ml-py`) there
is no figure, a reason instead, and nothing is done meanwhile.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch

PERIOD_S = 0.1


@dataclass(frozen=True)
class Energy:
    """What was used.

    Args:
        joules: of the whole GPU, whoever used it; None where nobody counts.
        seconds: the time it was measured over.
        how: "counter", the GPU's own; or "power", integrated.
        reason: why there are no joules.
    """

    joules: float | None
    seconds: float
    how: str | None = None
    reason: str | None = None


class Gauge(Protocol):
    """What a meter reads."""

    def millijoules(self) -> int | None:
        """The GPU's own count of its energy; None where it has none."""

    def milliwatts(self) -> int:
        """Its power now."""


class EnergyMeter:
    """Measures the energy of a device while its `with` lasts; `energy` says what it found."""

    def __init__(self, device: torch.device, gauge: Gauge | None = None) -> None:
        """Look for something to read.

        Args:
            device: the one to measure.
            gauge: what to read; NVML by default.
        """
        self.energy = Energy(None, 0.0, reason="nothing was measured yet")
        self._gauge: Gauge | None = gauge
        self._reason: str | None = None
        if gauge is None:
            self._gauge, self._reason = _find_gauge(device)
        self._began, self._count = 0.0, None  # type: float, int | None
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._joules = 0.0

    def __enter__(self) -> Self:
        """Begin."""
        self._began = time.perf_counter()
        if self._gauge is None:
            return self
        try:
            self._count = self._gauge.millijoules()
            if self._count is None:
                power = self._gauge.milliwatts() / 1000
                self._end.clear()
                self._joules = 0.0
                self._thread = threading.Thread(target=self._sample, args=(self._gauge, power), daemon=True)
                self._thread.start()
        except Exception as error:  # NVML's errors have a class of their own each
            self._gauge, self._reason = None, f"the GPU does not tell its energy: {error}"
        return self

    def __exit__(self, *exception: object) -> None:
        """End, and work out what was used."""
        if self._thread:
            self._end.set()
            self._thread.join()
            self._thread = None
        self.energy = self.read()

    def read(self) -> Energy:
        """What was used since the beginning."""
        seconds = time.perf_counter() - self._began
        if self._gauge is None or self._reason:
            return Energy(None, seconds, reason=self._reason)
        if self._count is None:
            return Energy(self._joules, seconds, "power")
        try:
            last = self._gauge.millijoules()
            assert last is not None
            return Energy((last - self._count) / 1000, seconds, "counter")
        except Exception as error:
            return Energy(None, seconds, reason=f"the GPU does not tell its energy: {error}")

    def _sample(self, gauge: Gauge, power: float) -> None:
        """Add up trapezoids between readings, from the first power, in watts, until the end."""
        try:
            then, ended = self._began, False
            while not ended:
                ended = self._end.wait(PERIOD_S)
                now, new_power = time.perf_counter(), gauge.milliwatts() / 1000
                self._joules += (now - then) * (power + new_power) / 2
                then, power = now, new_power
        except Exception as error:
            self._reason = f"the GPU stopped telling its power: {error}"


class _NvmlGauge:
    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml, self.handle = nvml, handle

    def millijoules(self) -> int | None:
        try:
            return int(self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle))
        except self.nvml.NVMLError as error:
            if error.value == self.nvml.NVML_ERROR_NOT_SUPPORTED:
                return None
            raise

    def milliwatts(self) -> int:
        return int(self.nvml.nvmlDeviceGetPowerUsage(self.handle))


def _find_gauge(device: torch.device) -> tuple[Gauge | None, str | None]:
    if device.type != "cuda":
        return None, f"only NVIDIA's GPUs tell their energy, not {device.type}"
    try:
        import pynvml
    except ImportError:
        return None, "nvidia-ml-py is not installed: pip install 'steppe[energy]'"
    try:
        pynvml.nvmlInit()  # counts its users; a library that is left open costs nothing
        uuid = str(torch.cuda.get_device_properties(device).uuid)  # CUDA may number the GPUs otherwise
        name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        return _NvmlGauge(pynvml, pynvml.nvmlDeviceGetHandleByUUID(name)), None
    except Exception as error:
        return None, f"NVML cannot be used: {error}"
