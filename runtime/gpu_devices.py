"""Says whether this machine has a GPU that artifacts can run on, before anything is compiled."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from types import MappingProxyType

# For each kind of target: the libraries of its driver, the functions that start it and that count
# devices, and what to install. The names are those of runtime/src/gpu/driver.c.
_DRIVERS: Mapping[str, tuple[tuple[str, ...], str, str, str]] = MappingProxyType(
    {
        "cuda": (
            ("libcuda.so.1", "libcuda.so"),
            "cuInit",
            "cuDeviceGetCount",
            "NVIDIA's driver, version 525 or newer",
        ),
        "rocm": (
            ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so", "libamdhip64.so.5"),
            "hipInit",
            "hipGetDeviceCount",
            "ROCm 6 or newer",
        ),
    }
)


def missing_device(kind: str) -> str:
    """Returns what this machine lacks to run artifacts for `kind`, in a sentence.

    Returns "" if it has a GPU of this kind, and for kinds that are no GPUs.
    """
    if kind not in _DRIVERS:
        return ""
    libraries, start, count_devices, remedy = _DRIVERS[kind]
    driver = _opened(libraries)
    if driver is None:
        return f"no driver was found ({libraries[0]}): install {remedy}"
    count = ctypes.c_int(0)
    try:
        failed = driver[start](0) or driver[count_devices](ctypes.byref(count))
    except AttributeError as error:
        return f"the driver is too old ({error}): install {remedy}"
    return "" if not failed and count.value > 0 else "the driver finds no GPU"


def _opened(libraries: tuple[str, ...]) -> ctypes.CDLL | None:
    for name in libraries:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
