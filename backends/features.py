"""CPU features that an artifact can demand: how the runtime asks the CPU for each.

Names are LLVM's.  On x86-64 a row is a bit of CPUID and the XCR0 bits (register state that the
operating system saves) the feature needs; on aarch64 a bit of the auxiliary vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from tcc.errors import InternalError


@dataclass(frozen=True, slots=True)
class CpuFeature:
    """One row; `leaf`, `subleaf`, `reg`, `bit`, `xcr0` as in tcc_feature of runtime.h."""

    name: str
    leaf: int
    subleaf: int
    reg: int
    bit: int
    xcr0: int = 0


_EAX, _EBX, _ECX, _EDX = range(4)
_YMM, _ZMM, _TILE = 0x6, 0xE6, 0x60000
_HWCAP, _HWCAP2 = 16, 26

_X86 = (
    CpuFeature("sse3", 1, 0, _ECX, 0),
    CpuFeature("ssse3", 1, 0, _ECX, 9),
    CpuFeature("sse4.1", 1, 0, _ECX, 19),
    CpuFeature("sse4.2", 1, 0, _ECX, 20),
    CpuFeature("popcnt", 1, 0, _ECX, 23),
    CpuFeature("cx16", 1, 0, _ECX, 13),
    CpuFeature("movbe", 1, 0, _ECX, 22),
    CpuFeature("f16c", 1, 0, _ECX, 29, _YMM),
    CpuFeature("fma", 1, 0, _ECX, 12, _YMM),
    CpuFeature("avx", 1, 0, _ECX, 28, _YMM),
    CpuFeature("avx2", 7, 0, _EBX, 5, _YMM),
    CpuFeature("bmi", 7, 0, _EBX, 3),
    CpuFeature("bmi2", 7, 0, _EBX, 8),
    CpuFeature("lzcnt", 0x80000001, 0, _ECX, 5),
    CpuFeature("avx512f", 7, 0, _EBX, 16, _ZMM),
    CpuFeature("avx512dq", 7, 0, _EBX, 17, _ZMM),
    CpuFeature("avx512ifma", 7, 0, _EBX, 21, _ZMM),
    CpuFeature("avx512cd", 7, 0, _EBX, 28, _ZMM),
    CpuFeature("avx512bw", 7, 0, _EBX, 30, _ZMM),
    CpuFeature("avx512vl", 7, 0, _EBX, 31, _ZMM),
    CpuFeature("avx512vbmi", 7, 0, _ECX, 1, _ZMM),
    CpuFeature("avx512vbmi2", 7, 0, _ECX, 6, _ZMM),
    CpuFeature("gfni", 7, 0, _ECX, 8),
    CpuFeature("vaes", 7, 0, _ECX, 9, _YMM),
    CpuFeature("vpclmulqdq", 7, 0, _ECX, 10, _YMM),
    CpuFeature("avx512vnni", 7, 0, _ECX, 11, _ZMM),
    CpuFeature("avx512bitalg", 7, 0, _ECX, 12, _ZMM),
    CpuFeature("avx512vpopcntdq", 7, 0, _ECX, 14, _ZMM),
    CpuFeature("avx512vp2intersect", 7, 0, _EDX, 8, _ZMM),
    CpuFeature("amx-bf16", 7, 0, _EDX, 22, _TILE),
    CpuFeature("avx512fp16", 7, 0, _EDX, 23, _ZMM),
    CpuFeature("amx-tile", 7, 0, _EDX, 24, _TILE),
    CpuFeature("amx-int8", 7, 0, _EDX, 25, _TILE),
    CpuFeature("avxvnni", 7, 1, _EAX, 4, _YMM),
    CpuFeature("avx512bf16", 7, 1, _EAX, 5, _ZMM),
)

_AARCH64 = (
    CpuFeature("neon", _HWCAP, 0, 0, 1),
    CpuFeature("lse", _HWCAP, 0, 0, 8),
    CpuFeature("fullfp16", _HWCAP, 0, 0, 10),
    CpuFeature("dotprod", _HWCAP, 0, 0, 20),
    CpuFeature("sve", _HWCAP, 0, 0, 22),
    CpuFeature("sve2", _HWCAP2, 0, 0, 1),
    CpuFeature("i8mm", _HWCAP2, 0, 0, 13),
    CpuFeature("bf16", _HWCAP2, 0, 0, 14),
)

CPU_FEATURES = MappingProxyType({row.name: row for row in (*_X86, *_AARCH64)})


def cpu_feature(name: str) -> CpuFeature:
    """The row called `name`; raises InternalError for a feature that no check is known for."""
    if name not in CPU_FEATURES:
        raise InternalError(f"no load-time check for the CPU feature '{name}'", where="link")
    return CPU_FEATURES[name]
