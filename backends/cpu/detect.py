"""Detects this machine's CPU as a `Profile`."""

import platform
from pathlib import Path
from typing import TYPE_CHECKING

from tcc.errors import UserError
from tcc.later import later
from tcc.target import ARCHITECTURES, CPUS, Profile, cpu_profile

if TYPE_CHECKING:
    from llvmlite import binding
else:
    binding = later("llvmlite.binding")

_SYSFS = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 10, "M": 20, "G": 30}
_ARCHS = {system: name for name, row in ARCHITECTURES.items() for system in row.systems}


def detect() -> Profile:
    """Returns this machine's CPU: LLVM's name and features, and the cache sizes that Linux reports.

    Missing cache sizes are taken from the CPU's row of `CPUS`, else from the row of the
    architecture's usual CPU. Raises UserError if the machine has none of the `ARCHITECTURES`, or is
    older than the oldest supported CPU.
    """
    machine = platform.machine()
    if machine not in _ARCHS:
        raise UserError(
            f"no code for this machine's processor ({machine})",
            where="--cpu host",
            hint=f"name the processor to compile for: --cpu {'|'.join(CPUS)}",
        )
    cpu = binding.get_host_cpu_name()
    features = [name for name, present in binding.get_host_cpu_features().items() if present]
    arch = _ARCHS[machine]
    row = CPUS.get(cpu, CPUS[ARCHITECTURES[arch].usual])
    sizes = {1: row.l1, 2: row.l2, 3: row.l3} | _cache_sizes(_SYSFS)
    return cpu_profile(arch, cpu, features, l1=sizes[1], l2=sizes[2], l3=sizes[3])


def _cache_sizes(folder: Path) -> dict[int, int]:
    """Maps cache level to bytes of data and unified caches, as `folder` (Linux's sysfs) reports
    them."""
    sizes = {}
    for index in sorted(folder.glob("index*")):
        kind = (index / "type").read_text().strip()
        size = (index / "size").read_text().strip()
        if kind in ("Data", "Unified") and size[-1:] in _UNITS:
            sizes[int((index / "level").read_text())] = int(size[:-1]) << _UNITS[size[-1]]
    return sizes
