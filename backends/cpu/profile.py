"""What code generation must know of a CPU, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from tcc.target import Target


@dataclass(frozen=True, slots=True)
class CpuProfile:
    """A CPU to generate code for.

    `cpu` and `features` are LLVM's names (`features` as "+avx2,-avx512f"), `triple` the platform,
    `vector_bits` the widest vector to use and `vector_registers` how many of them there are.
    """

    triple: str
    cpu: str
    features: str
    vector_bits: int
    vector_registers: int

    @property
    def lanes(self) -> int:
        """Lanes of a vector, for every element type: as many as 32-bit elements fit."""
        return self.vector_bits // 32

    @property
    def scales_by_exponent(self) -> bool:
        """Whether `ldexp` is one instruction (AVX-512's vscalef)."""
        return self.triple.startswith("x86_64") and self.vector_bits == 512


LINUX_X86_64 = "x86_64-unknown-linux-gnu"

X86_64_V3 = CpuProfile(LINUX_X86_64, "x86-64-v3", "", 256, 16)
X86_64_V4 = CpuProfile(LINUX_X86_64, "x86-64-v4", "", 512, 32)


def cpu_profile(target: Target) -> CpuProfile:
    """What code generation must know of `target`."""
    profile = target.profile
    return CpuProfile(
        target.triple,
        profile.cpu,
        profile.llvm_features,
        profile.vector_bits,
        profile.vector_registers,
    )
