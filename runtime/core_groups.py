"""Groups of CPUs that share caches, and how a process stays on one of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from tcc.runtime.reports import RuntimeFailure

_TOPOLOGY = Path("/sys/devices/system/cpu")


def cpu_place(cpu: int) -> tuple[int, int, int]:
    """Returns the package, the core and the number of a CPU, as Linux numbers them."""
    names = ("physical_package_id", "core_id")
    package, core = (_number(_TOPOLOGY / f"cpu{cpu}" / "topology" / name) for name in names)
    return package, core, cpu


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # a container may hide the topology: then numbers decide
        return 0


def core_groups(
    cpus: Iterable[int],
    size: int,
    place: Callable[[int], tuple[int, int, int]] = cpu_place,
) -> list[tuple[int, ...]]:
    """Returns disjoint groups of `size` CPUs, neighbours by package and core.

    CPUs that fill no group are left out. Raises RuntimeFailure if `size` exceeds the CPUs.
    """
    ordered = sorted(cpus, key=place)
    if not 1 <= size <= len(ordered):
        raise RuntimeFailure(
            f"no group of {size} CPUs exists",
            why=f"this process may use {len(ordered)}",
            hint=f"ask for 1 to {len(ordered)} cores for each replica",
        )
    ends = range(size, len(ordered) + 1, size)
    return [tuple(ordered[end - size : end]) for end in ends]


def pin_process(cpus: Iterable[int]) -> None:
    """Keeps all threads of this process, and those that they start, on `cpus`."""
    allowed = set(cpus)
    os.sched_setaffinity(0, allowed)  # the caller's new threads inherit it
    for task in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # a thread that ended meanwhile
            os.sched_setaffinity(int(task), allowed)
