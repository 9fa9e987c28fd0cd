"""LLVM's names of instruction sets and of the instructions that sum products."""

from types import MappingProxyType

from tcc.target import ARCHITECTURES, Profile

# What LLVM is told beside the features: 512-bit vectors of x86-64 stay whole, and 64-bit Arm does
# without vectors of scalable length, which have other registers.
_BESIDE = MappingProxyType(
    {
        "x86-64": ("-prefer-256-bit",),
        "aarch64": tuple(
            f"-{name}" for name in "sve sve2 sme flagm altnzcv fptoint rcpc-immo mops cssc".split()
        ),
    }
)


def llvm_features(profile: Profile) -> str:
    """LLVM's feature string: each instruction set switched on or off."""
    have, isa = frozenset(profile.features), ARCHITECTURES[profile.arch].isa
    switches = (f"{'+' if f.name in have else '-'}{f.name}" for f in isa)
    return ",".join([*switches, *_BESIDE.get(profile.arch, ())])


def bf16_product(profile: Profile, width: int) -> str:
    """The intrinsic that multiplies and adds `width` words of pairs of bf16."""
    if profile.arch == "aarch64":
        return f"llvm.aarch64.neon.bfdot.v{width}f32.v{2 * width}bf16"
    return f"llvm.x86.avx512bf16.dpbf16ps.{32 * width}"


def byte_product(profile: Profile, first_unsigned: bool, second_unsigned: bool, width: int) -> str:
    """The intrinsic that adds to `width` words products of four bytes, of two operands of which
    the first is the unsigned one if they differ; empty where there is none."""
    if not profile.multiplies_bytes or width < 4:
        return ""
    if profile.arch == "aarch64":
        kind = {(False, False): "sdot", (True, True): "udot"}.get(
            (first_unsigned, second_unsigned), "usdot" if "i8mm" in profile.features else ""
        )
        return kind and f"llvm.aarch64.neon.{kind}.v{width}i32.v{4 * width}i8"
    mixed = first_unsigned and not second_unsigned
    return f"llvm.x86.avx512.vpdpbusd.{32 * width}" if mixed else ""


def pair_product(profile: Profile, width: int) -> str:
    """The intrinsic that sums products of two neighbours of 16 bits into `width` words; empty
    where there is none."""
    names = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}
    fits = profile.arch == "x86-64" and 32 * width <= profile.vector_bits
    return f"llvm.x86.{names[width]}" if fits and width in names else ""
