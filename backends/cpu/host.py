"""The CPU of this machine as a profile."""

from __future__ import annotations

import llvmlite.binding as llvm
from tcc.backends.cpu.profile import CpuProfile


def host_profile() -> CpuProfile:
    """The machine's own CPU, with the widest vectors it has."""
    features = llvm.get_host_cpu_features()
    wide = bool(features.get("avx512f")) and bool(features.get("avx512vl"))
    vector = 512 if wide else 256 if features.get("avx2") else 128
    listed = ",".join(("+" if on else "-") + name for name, on in sorted(features.items()))
    triple = llvm.get_process_triple()
    registers = 32 if wide or triple.startswith("aarch64") else 16
    return CpuProfile(triple, llvm.get_host_cpu_name(), listed, vector, registers)
