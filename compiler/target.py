"""Target: the machine that code is compiled for, as data.

`KINDS` lists the kinds of targets, `ARCHITECTURES` the processors' architectures, `CPUS` the named
processors (`cpus.json`), `GPUS` the GPUs (`gpus.json`), and `PORTABLE` the kinds of files for every
machine.  Passes and cost models read a `Target`'s fields and never ask which backend will use it.
The CPU backend (`detect`) returns the `Profile` of this machine's processor.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tcc.errors import InternalError, UserError
from tcc.frozen import frozen
from tcc.zipped import zip_equal


@frozen
class Feature:
    """An instruction set: LLVM's `name` for it, and the bit in which the processor or the system
    reports it.

    On x86-64 it is there if bit `bit` of CPUID's register `reg` (0 eax, 1 ebx, 2 ecx, 3 edx) of
    leaf `leaf`, `subleaf` is set and the operating system saves all register states in the mask
    `xcr0`: 6 for ymm, 230 for zmm, 393216 for tiles. On aarch64 it is there if bit `bit` of the
    auxiliary vector's entry `leaf` is set.
    """

    name: str
    leaf: int
    bit: int
    subleaf: int = 0
    reg: int = 0
    xcr0: int = 0


# `isa` of an architecture has the instruction sets that code generation may use or must avoid;
# every list of features has this order.  Code for a processor that lacks an instruction set does
# not use it.  Scalable vectors of Arm (SVE) have no row: no code here is for them, and the CPU
# backend switches them off by name.  `cpus` are the named processors; their caches are in bytes.
_PROCESSORS = json.loads(Path(__file__).with_name("cpus.json").read_bytes())
ISA, ARM_ISA = (
    tuple(Feature(name, **row) for name, row in rows["isa"].items())
    for rows in _PROCESSORS.values()
)
_V2, _V3, _V4 = (
    frozenset(_PROCESSORS["x86-64"]["cpus"][cpu]["features"])
    for cpu in ("x86-64-v2", "x86-64-v3", "x86-64-v4")
)
_NEON = frozenset({"neon"})


@frozen
class Vectors:
    """The vectors of processors with the features `needs`.

    A vector has `bits` bits, and there are `registers` of them. `tile` is the accumulator block of
    contractions: the number of rows, and of vectors in a row.
    """

    needs: frozenset[str]
    bits: int
    registers: int
    tile: tuple[int, int]


@frozen
class Architecture:
    """The common properties of one architecture's processors.

    `systems` are the operating systems' names for it, the compilers' name first; `triple` is LLVM's
    name. `isa` are its features. A processor that lacks a feature in `least` is too old, and
    `oldest` is the common name of the oldest one that is supported.

    `vectors` are its kinds of vectors, widest first. Processors with the feature `fused` have fused
    multiply-adds. `plainest` is the processor that hosts GPUs, and that `--target cpu:ARCH` means
    on another machine. `usual` is the processor whose cache sizes replace unknown ones. `c_library`
    is the first glibc for the architecture, if that is newer than 2.2.5.
    """

    systems: tuple[str, ...]
    triple: str
    isa: tuple[Feature, ...]
    least: frozenset[str]
    oldest: str
    vectors: tuple[Vectors, ...]
    fused: str
    plainest: str
    usual: str
    c_library: str = ""


# Architectures by the name that follows `cpu:`.  The first is the default, also for the hosts of
# GPUs.
ARCHITECTURES = MappingProxyType(
    {
        "x86-64": Architecture(
            ("x86_64", "AMD64"), "x86_64-unknown-linux-gnu", ISA, _V2, "x86-64-v2",
            (
                Vectors(_V4, 512, 32, (6, 4)),
                Vectors(_V3, 256, 16, (6, 2)),
                Vectors(_V2, 128, 16, (6, 2)),
            ),
            "fma", "x86-64-v2", "x86-64-v3",
        ),
        "aarch64": Architecture(
            ("aarch64", "arm64"), "aarch64-unknown-linux-gnu", ARM_ISA, _NEON, "NEON",
            (Vectors(_NEON, 128, 32, (8, 3)),),
            "neon", "generic", "generic", "2.17",
        ),
    }
)  # fmt: skip
CPU_TRIPLES = MappingProxyType({name: row.triple for name, row in ARCHITECTURES.items()})
_ISA_ROWS = MappingProxyType({f.name: f for row in ARCHITECTURES.values() for f in row.isa})


def isa_feature(name: str) -> Feature:
    """Returns the feature called `name`, of any architecture; raises InternalError for an unknown
    name."""
    if name not in _ISA_ROWS:
        raise InternalError(f"no load-time check for the CPU feature {name!r}")
    return _ISA_ROWS[name]


@frozen
class Profile:
    """A processor of the architecture `arch`.

    `cpu` is LLVM's name for it. `features` are its features in the order of its architecture's
    `isa`; an artifact requires them at load. Caches are in bytes: `l1` and `l2` of one core, `l3`
    of all cores together. `tile` is the accumulator block of contractions: the number of rows, and
    of vectors of `vector_bits` in a row.
    """

    cpu: str
    features: tuple[str, ...]
    vector_bits: int
    vector_registers: int
    fma: bool
    l1: int
    l2: int
    l3: int
    tile: tuple[int, int]
    arch: str = "x86-64"

    def lanes(self, bits: int) -> int:
        """Returns the number of elements of `bits` bits in one vector."""
        return self.vector_bits // bits

    @property
    def scales_by_exponent(self) -> bool:
        """True where `ldexp` of a vector is one instruction (AVX-512's vscalef)."""
        return self.vector_bits == 512

    @property
    def masks_lanes(self) -> bool:
        """True where masked loads and stores exist for every element type."""
        return {"avx512bw", "avx512vl"} <= {*self.features}

    @property
    def converts_half(self) -> bool:
        """True where instructions convert between f16 and f32."""
        return "f16c" in self.features or "neon" in self.features

    @property
    def multiplies_pairs(self) -> bool:
        """True where an instruction multiplies and adds pairs of bf16."""
        return "avx512bf16" in self.features or "bf16" in self.features

    @property
    def multiplies_bytes(self) -> bool:
        """True where an instruction computes dot products of four bytes."""
        return not {"dotprod", "avx512vnni", "avxvnni"}.isdisjoint(self.features)


def cpu_profile(
    arch: str, cpu: str, features: Iterable[str], *, l1: int, l2: int, l3: int
) -> Profile:
    """Returns the profile of a processor; caches are in bytes.

    Features outside of the architecture's list are ignored.  Raises UserError for a processor that
    lacks a feature which its architecture requires.
    """
    available, row = frozenset(features), ARCHITECTURES[arch]
    if not available >= row.least:
        missing = " ".join(f.name for f in row.isa if f.name in row.least - available)
        raise UserError(
            f"the processor {cpu} is too old",
            why=f"it lacks {missing}; tcc needs {row.oldest}",
            hint="compile for another processor with --cpu",
        )
    kind = next(vectors for vectors in row.vectors if available >= vectors.needs)
    listed = tuple(f.name for f in row.isa if f.name in available)
    fused = row.fused in available
    return Profile(cpu, listed, kind.bits, kind.registers, fused, l1, l2, l3, kind.tile, arch)


CPUS = MappingProxyType(
    {
        cpu: cpu_profile(arch, cpu, **row)
        for arch, rows in _PROCESSORS.items()
        for cpu, row in rows["cpus"].items()
    }
)


# ---- GPUs ---------------------------------------------------------------------------------------


@frozen
class GpuProfile:
    """A GPU architecture, represented by the product `part`.

    A multiprocessor is NVIDIA's SM or AMD's CU; `warp` counts the lanes that run together.
    `registers` counts the 32-bit registers of a multiprocessor; a lane has at most
    `lane_registers`.  A CTA may use `shared` bytes of shared memory, the CTAs of a multiprocessor
    share `shared_all` bytes, and a multiprocessor holds `threads` lanes.  `clock` is in cycles per
    second.  `cache` is the bytes of the last-level cache of all multiprocessors.  One matrix
    instruction takes `matrix_warps` warps.  `bandwidth` is that of memory, in bytes per second.
    `peaks` are dense flops per second (a multiply-add is two) by the operands' type, on matrix
    units where there are any.

    The figures are the vendors' own: `source`, the CUDA programming guide's table of compute
    capabilities, and AMD's architecture papers.  `clock` is the clock of the `f32` peak.  The peaks
    of gfx1101, gfx1102, gfx1103 and gfx1201 are those of gfx1100 and gfx1200, in proportion to the
    number of multiprocessors.
    """

    kind: str
    arch: str
    part: str
    source: str
    warp: int
    multiprocessors: int
    registers: int
    lane_registers: int
    shared: int
    shared_all: int
    threads: int
    cache: int
    matrix_warps: int
    clock: float
    bandwidth: float
    peaks: tuple[tuple[str, float], ...]

    def peak(self, dtype: str) -> float | None:
        """Returns the peak flops per second for operands of `dtype`; None without such a unit."""
        return dict(self.peaks).get(dtype)

    @property
    def float8(self) -> str:
        """Returns the 8-bit float formats of its matrix units: "ocp", "fnuz", or "" for none."""
        if self.peak("f8") is None:
            return ""
        return "fnuz" if self.arch == "gfx942" else "ocp"

    @property
    def text(self) -> str:
        """Returns the target's spelling on a command line, as in `cuda:sm_90`."""
        return f"{self.kind}:{self.arch}"


def _gpu(text: str, row: Mapping[str, Any]) -> GpuProfile:
    """Returns the profile of a row of `gpus.json`; `text` is the target's spelling."""
    kind, arch = text.split(":")
    return GpuProfile(kind, arch, **{**row, "peaks": tuple(row["peaks"].items())})


# The GPUs by their target's spelling.  `gpus.json` beside this file has the fields of each.
GPUS = MappingProxyType(
    {
        text: _gpu(text, row)
        for text, row in json.loads(Path(__file__).with_name("gpus.json").read_bytes()).items()
    }
)

# The architectures that `--target cuda` and `--target rocm` stand for, whatever GPU this machine
# has.
GPU_DEFAULTS = MappingProxyType(
    {
        "cuda": ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"),
        "rocm": ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1200"),
    }
)


# ---- targets ------------------------------------------------------------------------------------

# Targets whose files run on every machine, and the processor that each target's kernels are planned
# for.  The processor of C has no vectors, and small caches.
PORTABLE = MappingProxyType(
    {"c": Profile("portable", (), 32, 16, False, 16 << 10, 64 << 10, 64 << 10, (1, 1), "c")}
)
KINDS = ("cpu", *PORTABLE, *GPU_DEFAULTS)


@frozen
class Target:
    """The machine that one program is compiled for; an artifact may have several programs.

    Without `gpus` kernels run on the processor `profile`.  With `gpus` the program has kernels for
    each of them, and its host is the processor `profile`.
    """

    kind: str
    archs: tuple[str, ...]
    triple: str
    profile: Profile
    gpus: tuple[GpuProfile, ...] = ()

    @property
    def text(self) -> str:
        """Returns the target's spelling on a command line, with its processor."""
        if not self.archs:
            return self.kind
        archs = f"{self.kind}:{','.join(self.archs)}"
        return archs if self.gpus else f"{archs} ({self.profile.cpu})"


def parse_targets(text: str, cpu: str, detect: Callable[[], Profile]) -> tuple[Target, ...]:
    """Parses `--target text --cpu cpu`, where `+` separates targets, as in `cuda:sm_90+cpu`.

    `cpu` is the processor of the target for the CPU.  Raises UserError for a target that
    `parse_target` refuses, and where a kind occurs twice.
    """
    parts = text.split("+")
    kinds = [part.partition(":")[0] for part in parts]
    for kind in KINDS:
        if kinds.count(kind) > 1:
            raise UserError(
                f"the target {text!r} names {kind} twice",
                where="--target",
                hint=f"list its architectures behind one {kind}, with commas",
            )
    on_cpu = "cpu" in kinds
    targets = tuple(
        parse_target(part, cpu if kind == "cpu" or not on_cpu else "host", detect)
        for part, kind in zip_equal(parts, kinds)
    )
    arch = next((t.archs[0] for t in targets if t.archs and not t.gpus), None)
    return tuple(_beside(t, arch) if t.gpus and arch else t for t in targets)


def _beside(target: Target, arch: str = next(iter(CPU_TRIPLES))) -> Target:
    """Returns a target of GPUs with the plainest processor of `arch` as its host.

    The programs of a file have hosts of one architecture.
    """
    return replace(target, triple=CPU_TRIPLES[arch], profile=CPUS[ARCHITECTURES[arch].plainest])


def targets_text(targets: Iterable[Target]) -> str:
    """Returns the targets' spelling on a command line."""
    return "+".join(target.text for target in targets)


def parse_target(text: str, cpu: str, detect: Callable[[], Profile]) -> Target:
    """Parses one target of `--target text --cpu cpu`.

    Examples of `text`: `cpu`, `cpu:x86-64`, `cpu:aarch64`, `cuda`, `cuda:sm_90`,
    `cuda:sm_80,sm_90`, `rocm`.  `detect` is called for a CPU target with `--cpu host` only.  For
    another architecture than this machine's, `host` means its plainest processor.

    Raises UserError for an unknown target or processor (its hint lists the known ones), for a
    processor of another architecture, and for a named processor of a GPU target.
    """
    kind, colon, listed = text.partition(":")
    if cpu != "host" and cpu not in CPUS:
        raise UserError(
            f"unknown processor {cpu!r}",
            where="--cpu",
            hint=f"known processors: host, {', '.join(CPUS)}",
        )
    if kind in GPU_DEFAULTS:
        archs = dict.fromkeys(listed.split(",")) if colon else GPU_DEFAULTS[kind]
        names = [f"{kind}:{arch}" for arch in archs]
        if not all(name in GPUS for name in names):
            raise _unknown(text)
        if cpu != "host":
            raise UserError(
                f"code for {kind} is not made for a processor",
                where="--cpu",
                hint="add +cpu to the target",
            )
        gpus = tuple(GPUS[name] for name in names)
        return _beside(Target(kind, tuple(archs), "", CPUS["generic"], gpus))
    if text in PORTABLE:
        if cpu != "host":
            raise UserError(
                f"a file of the target {kind} is not made for a processor",
                where="--cpu",
                hint="leave out --cpu",
            )
        return Target(kind, (), "", PORTABLE[kind])
    if kind != "cpu" or (colon and listed not in CPU_TRIPLES):
        raise _unknown(text)
    profile = detect() if cpu == "host" else CPUS[cpu]
    arch = listed if colon else profile.arch
    if cpu == "host" and arch != profile.arch:
        profile = CPUS[ARCHITECTURES[arch].plainest]
    if arch != profile.arch:
        fitting = ", ".join(name for name, profile_row in CPUS.items() if profile_row.arch == arch)
        raise UserError(
            f"the processor {cpu} is of the architecture {profile.arch}",
            where=f"--target {text} --cpu {cpu}",
            hint=f"processors of {arch}: {fitting}",
        )
    return Target(kind, (arch,), CPU_TRIPLES[arch], profile)


def _unknown(text: str) -> UserError:
    names = ("cpu", *(f"cpu:{arch}" for arch in CPU_TRIPLES), *PORTABLE, *GPU_DEFAULTS, *GPUS)
    return UserError(
        f"unknown target {text!r}",
        where="--target",
        hint=f"known targets: {', '.join(names)}; + joins several, as in cuda:sm_90+cpu",
    )
