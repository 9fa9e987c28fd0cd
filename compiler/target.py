"""Target: what the code is made for, as data.

`KINDS` is the one list of targets and `CPUS` the one list of named processors; passes and cost
models read a `Target`'s fields and never ask which backend will use it.  The processor of this
machine is found by the CPU backend (`detect`), which hands over an `x86_profile`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tcc.errors import UserError

# Instruction sets that code generation may use or must avoid, in LLVM's names and in the order in
# which they are listed anywhere.  A processor without one of them gets code without it.
ISA = (
    "cx16 sse3 ssse3 sse4.1 sse4.2 popcnt avx f16c fma avx2 bmi bmi2 lzcnt movbe "
    "avx512f avx512cd avx512bw avx512dq avx512vl avx512ifma avx512vbmi avx512vbmi2 avx512vnni "
    "avx512bitalg avx512vpopcntdq gfni avxvnni avx512bf16 avx512fp16 amx-tile amx-int8 amx-bf16"
).split()

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
    def llvm_features(self) -> str:
        """LLVM's feature string: each member of `ISA` switched on or off, 512-bit vectors kept."""
        have = frozenset(self.features)
        switches = [f"{'+' if name in have else '-'}{name}" for name in ISA]
        return ",".join([*switches, "-prefer-256-bit"])


def x86_profile(cpu: str, features: Iterable[str], *, l1: int, l2: int, l3: int) -> Profile:
    """The profile of an x86-64 processor with these caches; features outside `ISA` are ignored.

    Raises UserError for processors older than x86-64-v2.
    """
    have = frozenset(features)
    if not have >= _V2:
        missing = " ".join(name for name in ISA if name in _V2 - have)
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
    listed = tuple(name for name in ISA if name in have)
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
