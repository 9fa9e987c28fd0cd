"""Target: what the code is made for, as data.

`KINDS` is the one list of targets and `CPUS` the one list of named processors; passes and cost
models read a `Target`'s fields and never ask which backend will use it.  The processor of this
machine is found by the CPU backend (`detect`), which hands over an `x86_profile`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tcc.errors import InternalError, UserError


@dataclass(frozen=True, slots=True)
class Feature:
    """One instruction set: LLVM's `name`, and where CPUID reports it.

    It is there if bit `bit` of register `reg` (0 eax, 1 ebx, 2 ecx, 3 edx) of leaf `leaf`,
    `subleaf` is set and the operating system saves all register states in the mask `xcr0`.
    """

    name: str
    leaf: int
    subleaf: int
    reg: int
    bit: int
    xcr0: int = 0


_YMM, _ZMM, _TILES = 0x6, 0xE6, 0x60000

# Instruction sets that code generation may use or must avoid, in the order in which they are
# listed anywhere.  A processor without one of them gets code without it.
ISA = (
    Feature("cx16", 1, 0, 2, 13),
    Feature("sse3", 1, 0, 2, 0),
    Feature("ssse3", 1, 0, 2, 9),
    Feature("sse4.1", 1, 0, 2, 19),
    Feature("sse4.2", 1, 0, 2, 20),
    Feature("popcnt", 1, 0, 2, 23),
    Feature("avx", 1, 0, 2, 28, _YMM),
    Feature("f16c", 1, 0, 2, 29, _YMM),
    Feature("fma", 1, 0, 2, 12, _YMM),
    Feature("avx2", 7, 0, 1, 5, _YMM),
    Feature("bmi", 7, 0, 1, 3),
    Feature("bmi2", 7, 0, 1, 8),
    Feature("lzcnt", 0x80000001, 0, 2, 5),
    Feature("movbe", 1, 0, 2, 22),
    Feature("avx512f", 7, 0, 1, 16, _ZMM),
    Feature("avx512cd", 7, 0, 1, 28, _ZMM),
    Feature("avx512bw", 7, 0, 1, 30, _ZMM),
    Feature("avx512dq", 7, 0, 1, 17, _ZMM),
    Feature("avx512vl", 7, 0, 1, 31, _ZMM),
    Feature("avx512ifma", 7, 0, 1, 21, _ZMM),
    Feature("avx512vbmi", 7, 0, 2, 1, _ZMM),
    Feature("avx512vbmi2", 7, 0, 2, 6, _ZMM),
    Feature("avx512vnni", 7, 0, 2, 11, _ZMM),
    Feature("avx512bitalg", 7, 0, 2, 12, _ZMM),
    Feature("avx512vpopcntdq", 7, 0, 2, 14, _ZMM),
    Feature("gfni", 7, 0, 2, 8),
    Feature("avxvnni", 7, 1, 0, 4, _YMM),
    Feature("avx512bf16", 7, 1, 0, 5, _ZMM),
    Feature("avx512fp16", 7, 0, 3, 23, _ZMM),
    Feature("amx-tile", 7, 0, 3, 24, _TILES),
    Feature("amx-int8", 7, 0, 3, 25, _TILES),
    Feature("amx-bf16", 7, 0, 3, 22, _TILES),
)

_ISA_ROWS = MappingProxyType({feature.name: feature for feature in ISA})


def isa_feature(name: str) -> Feature:
    """The row of `ISA` called `name`; raises InternalError for one that no check is known for."""
    if name not in _ISA_ROWS:
        raise InternalError(f"no load-time check for the CPU feature {name!r}")
    return _ISA_ROWS[name]


_V2 = frozenset("cx16 sse3 ssse3 sse4.1 sse4.2 popcnt".split())
_V3 = _V2 | frozenset("avx f16c fma avx2 bmi bmi2 lzcnt movbe".split())
_V4 = _V3 | frozenset("avx512f avx512cd avx512bw avx512dq avx512vl".split())
_ICELAKE = _V4 | frozenset(
    "avx512ifma avx512vbmi avx512vbmi2 avx512vnni avx512bitalg avx512vpopcntdq gfni".split()
)


@dataclass(frozen=True, slots=True)
class Profile:
    """One processor.

    `cpu` is LLVM's name for it and `features` the members of `ISA` it has, in that order: what the
    artifact requires at load.  Caches are in bytes, per core (`l3` is shared).  `tile` is the
    contraction microkernel's accumulator block: rows, and vectors of `vector_bits` per row.
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

    def lanes(self, bits: int) -> int:
        """Elements of `bits` width in one vector."""
        return self.vector_bits // bits

    @property
    def scales_by_exponent(self) -> bool:
        """Whether `ldexp` of a vector is one instruction (AVX-512's vscalef)."""
        return self.vector_bits == 512

    @property
    def converts_half(self) -> bool:
        """Whether there are instructions between f16 and f32."""
        return "f16c" in self.features

    @property
    def multiplies_pairs(self) -> bool:
        """Whether there is an instruction that multiplies and adds pairs of bf16."""
        return "avx512bf16" in self.features

    @property
    def llvm_features(self) -> str:
        """LLVM's feature string: each member of `ISA` switched on or off, 512-bit vectors kept."""
        have = frozenset(self.features)
        switches = [f"{'+' if f.name in have else '-'}{f.name}" for f in ISA]
        return ",".join([*switches, "-prefer-256-bit"])


def x86_profile(cpu: str, features: Iterable[str], *, l1: int, l2: int, l3: int) -> Profile:
    """The profile of an x86-64 processor with these caches; features outside `ISA` are ignored.

    Raises UserError for processors older than x86-64-v2.
    """
    have = frozenset(features)
    if not have >= _V2:
        missing = " ".join(f.name for f in ISA if f.name in _V2 - have)
        raise UserError(
            f"the processor {cpu} is too old",
            why=f"it lacks {missing}; tcc needs x86-64-v2",
            hint="compile for another processor with --cpu",
        )
    if have >= _V4:
        bits, registers, tile = 512, 32, (6, 4)
    elif have >= _V3:
        bits, registers, tile = 256, 16, (6, 2)
    else:
        bits, registers, tile = 128, 16, (6, 2)
    listed = tuple(f.name for f in ISA if f.name in have)
    return Profile(cpu, listed, bits, registers, "fma" in have, l1, l2, l3, tile)


def _row(cpu: str, features: frozenset[str], l1: int, l2: int, l3: int) -> tuple[str, Profile]:
    """Caches in KiB."""
    return cpu, x86_profile(cpu, features, l1=l1 << 10, l2=l2 << 10, l3=l3 << 10)


CPUS = MappingProxyType(
    dict(
        (
            _row("x86-64-v2", _V2, 32, 256, 8192),
            _row("x86-64-v3", _V3, 32, 256, 8192),
            _row("x86-64-v4", _V4, 32, 1024, 16384),
            _row("skylake-avx512", _V4, 32, 1024, 16384),
            _row("icelake-server", _ICELAKE, 48, 1280, 32768),
            _row(
                "sapphirerapids",
                _ICELAKE
                | frozenset("avxvnni avx512bf16 avx512fp16 amx-tile amx-int8 amx-bf16".split()),
                48,
                2048,
                49152,
            ),
            _row("znver4", _ICELAKE | frozenset({"avx512bf16"}), 32, 1024, 32768),
        )
    )
)

# kind, architecture -> LLVM triple; the first architecture of a kind is its default.
_NO_ARCHS: Mapping[str, str] = MappingProxyType({})
KINDS = MappingProxyType({"cpu": MappingProxyType({"x86-64": "x86_64-unknown-linux-gnu"})})


@dataclass(frozen=True, slots=True)
class Target:
    """What one artifact is compiled for; `text` is how a command line would say it."""

    kind: str
    arch: str
    triple: str
    profile: Profile

    @property
    def text(self) -> str:
        return f"{self.kind}:{self.arch} ({self.profile.cpu})"


def known_targets() -> tuple[str, ...]:
    """Every spelling that `parse_target` takes."""
    full = (f"{kind}:{arch}" for kind, archs in KINDS.items() for arch in archs)
    return (*KINDS, *full)


def parse_target(text: str, cpu: str, detect: Callable[[], Profile]) -> Target:
    """The target that `--target text --cpu cpu` names; `detect` is called for `--cpu host` only.

    Raises UserError, listing what there is, for a target or a processor that is not known.
    """
    kind, _, arch = text.partition(":")
    archs = KINDS.get(kind, _NO_ARCHS)
    arch = arch or next(iter(archs), "")
    if arch not in archs or text.endswith(":"):
        raise UserError(
            f"unknown target {text!r}",
            where="--target",
            hint=f"known targets: {', '.join(known_targets())}",
        )
    if cpu != "host" and cpu not in CPUS:
        raise UserError(
            f"unknown processor {cpu!r}",
            where="--cpu",
            hint=f"known processors: host, {', '.join(CPUS)}",
        )
    profile = detect() if cpu == "host" else CPUS[cpu]
    return Target(kind, arch, archs[arch], profile)
