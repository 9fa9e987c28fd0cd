"""LLVM's names of instruction sets and of dot-product instructions."""

from types import MappingProxyType

from tcc.target import ARCHITECTURES, Profile

# LLVM features that tcc sets besides those of the profile. On x86-64, LLVM must not split 512-bit
# vectors. On 64-bit Arm, it must not use scalable vectors, which have other registers.
_TUNING = MappingProxyType(
    {
        "x86-64": ("-prefer-256-bit",),
        "aarch64": tuple(
            f"-{name}" for name in "sve sve2 sme flagm altnzcv fptoint rcpc-immo mops cssc".split()
        ),
    }
)


def llvm_features(profile: Profile) -> str:
    """Returns LLVM's feature string, which switches each instruction set on or off."""
    have, isa = frozenset(profile.features), ARCHITECTURES[profile.arch].isa
    switches = (f"{'+' if f.name in have else '-'}{f.name}" for f in isa)
    return ",".join([*switches, *_TUNING.get(profile.arch, ())])


def bf16_dot(profile: Profile, width: int) -> str:
    """Returns the intrinsic that adds the products of two bf16 to each of `width` f32 sums."""
    if profile.arch == "aarch64":
        return f"llvm.aarch64.neon.bfdot.v{width}f32.v{2 * width}bf16"
    return f"llvm.x86.avx512bf16.dpbf16ps.{32 * width}"


def bf16_rounding(profile: Profile, width: int) -> str:
    """Returns the intrinsic that rounds `width` f32 to bf16, denormals to zeros; "" if there is
    none."""
    fits = profile.arch == "x86-64" and profile.multiplies_pairs and width in (8, 16)
    return f"llvm.x86.avx512bf16.cvtneps2bf16.{32 * width}" if fits else ""


def byte_dot(profile: Profile, first_unsigned: bool, second_unsigned: bool, width: int) -> str:
    """Returns the intrinsic that adds the products of four bytes to each of `width` i32 sums.

    Returns "" if there is none. If only one operand is unsigned, it is the first.
    """
    if not profile.multiplies_bytes or width < 4:
        return ""
    if profile.arch == "aarch64":
        kind = {(False, False): "sdot", (True, True): "udot"}.get(
            (first_unsigned, second_unsigned), "usdot" if "i8mm" in profile.features else ""
        )
        return kind and f"llvm.aarch64.neon.{kind}.v{width}i32.v{4 * width}i8"
    mixed = first_unsigned and not second_unsigned
    return f"llvm.x86.avx512.vpdpbusd.{32 * width}" if mixed else ""


def pair_dot(profile: Profile, width: int) -> str:
    """Returns the intrinsic that multiplies vectors of 16-bit integers and adds neighbours.

    Its result has `width` sums of 32 bits. Returns "" if there is none.
    """
    names = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}
    fits = profile.arch == "x86-64" and 32 * width <= profile.vector_bits
    return f"llvm.x86.{names[width]}" if fits and width in names else ""
