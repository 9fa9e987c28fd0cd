"""Devices to measure on: a GPU through torch or, in a rehearsal, this CPU."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

Start = Callable[[], Any]


class MeasuredDevice(Protocol):
    """A device to measure on.

    - `name`: torch's name of the device.
    - `cache_bytes`: more bytes than its caches hold, so that data of this size evicts all others.
    - `seconds`: time limit of a measurement.
    - `peak`: number of rows and columns of the matrices in the measurement of the peak rate.
    - `large`: bytes that the measurement of the peak bandwidth copies.
    """

    name: str
    cache_bytes: int
    seconds: float
    peak: int
    large: int

    def synchronize(self) -> None:
        """Waits until all work that was started has ended."""

    def timed(self, start: Start, times: int) -> float:
        """Calls `start` `times` times; returns the seconds that the device needs for their work."""

    def recorded(self, batch: Start) -> Start | None:
        """Records the work that `batch` starts (as a CUDA graph).

        Returns a function that starts the recorded work, or None if it cannot be recorded.
        """

    def compile_options(self, mode: str) -> Mapping[str, Any]:
        """Returns the options of torch.compile for `mode`."""

    def forget(self) -> None:
        """Gives the memory of deleted arrays back to the device."""

    def facts(self) -> dict[str, Any]:
        """Returns the names of the device, its driver and platform, and its bytes of memory."""


class Gpu:
    """The first GPU of torch, from NVIDIA or AMD."""

    name = "cuda"
    cache_bytes = 512 << 20  # more than 256 MiB, the largest cache of the supported GPUs (AMD's)
    seconds = 0.3
    peak = 8192
    large = 1 << 30

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def timed(self, start: Start, times: int) -> float:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        for _ in range(times):
            start()
        last.record()
        torch.cuda.synchronize()
        return float(first.elapsed_time(last)) * 1e-3

    def recorded(self, batch: Start) -> Start | None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                batch()
        except RuntimeError as failure:  # raised if the work waits for the device or allocates
            print(f"not recorded: {failure}", flush=True)
            torch.cuda.synchronize()
            # This raises if the device's context is broken.
            if torch.ones(8, device=self.name).sum().item() != 8:
                raise RuntimeError("the device does not add after a failed recording") from failure
            return None
        return graph.replay

    def compile_options(self, mode: str) -> Mapping[str, Any]:
        return {"mode": mode}

    def forget(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()

    def facts(self) -> dict[str, Any]:
        properties, hip = torch.cuda.get_device_properties(0), torch.version.hip
        return {
            "device": properties.name,
            "driver": _driver(),
            "platform": f"rocm {hip}" if hip else f"cuda {torch.version.cuda}",
            "capability": f"{properties.major}.{properties.minor}",
            "memory_bytes": properties.total_memory,
        }


class Cpu:
    """This CPU, for rehearsals: all sizes are small, and the times say nothing about GPUs."""

    name = "cpu"
    cache_bytes = 1 << 16
    seconds = 0.01
    peak = 64
    large = 1 << 16

    def synchronize(self) -> None:
        """Does nothing, because on a CPU the work has ended when its call returns."""

    def timed(self, start: Start, times: int) -> float:
        start_time = time.perf_counter()
        for _ in range(times):
            start()
        return time.perf_counter() - start_time

    def recorded(self, batch: Start) -> Start | None:
        batch()
        return batch

    def compile_options(self, mode: str) -> Mapping[str, Any]:
        return {"backend": "eager"}  # all other backends of torch.compile need a C++ compiler

    def forget(self) -> None:
        gc.collect()

    def facts(self) -> dict[str, Any]:
        return {
            "device": "CPU (a rehearsal)", "driver": "none", "platform": "cpu", "capability": "",
            "memory_bytes": 0,
        }  # fmt: skip


def _driver() -> str:
    version = Path("/proc/driver/nvidia/version")
    return version.read_text().splitlines()[0] if version.exists() else "unknown"


def device_of(name: str) -> MeasuredDevice:
    """Returns the device "cuda" or "cpu"."""
    devices: dict[str, MeasuredDevice] = {"cuda": Gpu(), "cpu": Cpu()}
    return devices[name]
