"""The machines that come with tcc: files in the folder `machines`, as `--machine` reads them.

`machine_for` picks a file by the processor's name, or else by the width of its vectors.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

from tcc.errors import InternalError
from tcc.schedule.cpu.machine import Machine
from tcc.schedule.cpu.machine_file import read_machine
from tcc.target import Profile

MACHINES = Path(__file__).with_name("machines")  # a file for each machine, with the machine's name

# LLVM's names of processors without a file, and the machine that describes each.
_ALIKE = MappingProxyType(
    {
        "cascadelake": "skylake-avx512",
        "cooperlake": "skylake-avx512",
        "icelake-client": "icelake-server",
        "tigerlake": "icelake-server",
        "rocketlake": "icelake-server",
        "emeraldrapids": "sapphirerapids",
        "graniterapids": "sapphirerapids",
        "cortex-a76": "neoverse-n1",
        "ampere1": "neoverse-n1",
        "neoverse-v2": "neoverse-v1",
        "neoverse-n2": "neoverse-n1",
        "cortex-a53": "cortex-a72",
        "cortex-a57": "cortex-a72",
    }
)
_BY_VECTOR = MappingProxyType(
    {
        ("x86-64", 512): "x86-64-v4",
        ("x86-64", 256): "x86-64-v3",
        ("x86-64", 128): "x86-64-v2",
        ("aarch64", 128): "generic",
    }
)


def machine_path(name: str) -> Path:
    """Returns the file of a shipped machine."""
    return MACHINES / f"{name}.json"


@cache
def shipped_machine(name: str) -> Machine:
    """Returns a shipped machine; raises UserError where its file is missing or damaged."""
    path = machine_path(name)
    return read_machine(path, str(path))


def machine_for(profile: Profile) -> Machine:
    """Returns the shipped machine for a processor, with the profile's registers and cache sizes.

    Cores share the last cache, so its size is the smaller of the machine's and the profile's. The
    result depends on the profile alone. Raises InternalError for vectors of a width that no machine
    has.
    """
    vectors = profile.arch, profile.vector_bits
    if vectors not in _BY_VECTOR:
        raise InternalError(f"no machine has vectors of {profile.vector_bits} bits")
    name = _ALIKE.get(profile.cpu, profile.cpu)
    # A hypervisor may hide vectors that the processor's name implies.
    if not machine_path(name).is_file() or shipped_machine(name).lanes != profile.lanes(32):
        name = _BY_VECTOR[vectors]
    machine = shipped_machine(name)
    return replace(
        machine,
        registers=profile.vector_registers,
        l1=profile.l1,
        l2=replace(machine.l2, size=profile.l2),
        l3=replace(machine.l3, size=min(machine.l3.size, profile.l3)),
    )
