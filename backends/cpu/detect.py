"""The processor of this machine as a `Profile`."""

from __future__ import annotations

import platform
from pathlib import Path

from llvmlite import binding
from tcc.errors import UserError
from tcc.target import CPUS, Profile, x86_profile

_SYSFS = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 10, "M": 20, "G": 30}


def detect() -> Profile:
    """This machine's processor: LLVM's name and features, and the kernel's cache sizes.

    Cache sizes that the kernel does not tell are those of the table's row, else of x86-64-v3.
    Raises UserError where the machine is not x86-64, or is older than x86-64-v2.
    """
    machine = platform.machine()
    if machine not in ("x86_64", "AMD64"):
        raise UserError(
            f"no code for this machine's processor ({machine})",
            where="--cpu host",
            hint=f"name the processor to compile for: --cpu {'|'.join(CPUS)}",
        )
    cpu = binding.get_host_cpu_name()
    features = [name for name, present in binding.get_host_cpu_features().items() if present]
    known = CPUS.get(cpu, CPUS["x86-64-v3"])
    sizes = {1: known.l1, 2: known.l2, 3: known.l3} | _cache_sizes(_SYSFS)
    return x86_profile(cpu, features, l1=sizes[1], l2=sizes[2], l3=sizes[3])


def _cache_sizes(folder: Path) -> dict[int, int]:
    """Level -> bytes, of data and unified caches, as far as `folder` (Linux's sysfs) tells."""
    found = {}
    for index in sorted(folder.glob("index*")):
        kind = (index / "type").read_text().strip()
        size = (index / "size").read_text().strip()
        if kind in ("Data", "Unified") and size[-1:] in _UNITS:
            found[int((index / "level").read_text())] = int(size[:-1]) << _UNITS[size[-1]]
    return found
