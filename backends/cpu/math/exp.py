"""Exponentials of f32 vectors.

exp(x) = 2**n * exp(r), with n the integer nearest to x/ln2 and r = x - n ln2, so |r| < 0.35. ln2 is
subtracted in two parts. The polynomials are minimax fits of (exp(r) - 1 - r) / r**2.
"""

import math

from tcc.backends.cpu.llvm.text import Code, Reg, int_const
from tcc.backends.cpu.math.code import clamp, magnitude, polynomial, shared

# ln2 in two parts; the first has few bits, so that its product with n is exact.
_LN2_HIGH = 0.693359375
_LN2_LOW = math.log(2) - _LN2_HIGH
# Adding this to |x| < 2**22 leaves the nearest integer in the last bits of the sum.
_ROUNDING = 1.5 * 2.0**23
# The fits are exact to a twentieth of an ULP of exp(r), and of expm1(r) for small r.
_EXP = (0.49999994, 0.16666521, 0.04166839, 0.0083687315, 0.0013814569)
_EXPM1 = (0.5, 0.16666667, 0.041666254, 0.0083332621, 0.0013947199, 0.00019919904)


def _reduced(code: Code, x: Reg) -> tuple[Reg, Reg]:
    """Returns `n` and `r` with `x = n ln2 + r`, for |x| below 2**21."""
    shifted = code.fma(x, 1 / math.log(2), _ROUNDING)
    n = code.op("fsub", shifted, _ROUNDING)
    r = code.fma(n, -_LN2_HIGH, x)
    return n, code.fma(n, -_LN2_LOW, r)


def scale(code: Code, x: Reg, exponent: Reg) -> Reg:
    """Returns `x * 2**exponent` for an i32 exponent in [-252, 254], rounded once."""
    if code.module.profile.scales_by_exponent and x.width > 1:
        return code.intrinsic("ldexp", x, exponent)
    # 2**exponent is applied as two factors, because it can overflow although the result does not.
    half = code.op("ashr", exponent, 1)
    other_half = code.op("sub", exponent, half)
    return code.op(
        "fmul", code.op("fmul", x, _power_of_two(code, half)), _power_of_two(code, other_half)
    )


def _scale_by(code: Code, x: Reg, n: Reg) -> Reg:
    """Returns `x * 2**n` for a float n with an integer value in [-252, 254], rounded once."""
    suffix = {4: "128", 8: "256", 16: "512"}.get(x.width)
    if suffix is None or not code.module.profile.scales_by_exponent:
        return scale(code, x, _integer(code, n))
    # x86's own intrinsic takes a float as exponent. LLVM's generic one takes an integer, to which n
    # would have to be converted.
    all_lanes = [int_const(-1, "i16" if x.width == 16 else "i8")]
    rounding = [int_const(4, "i32")] if x.width == 16 else []
    name = f"llvm.x86.avx512.mask.scalef.ps.{suffix}"
    return code.call(name, x.elem, x.width, x, n, x, *all_lanes, *rounding)


def _power_of_two(code: Code, exponent: Reg) -> Reg:
    bits = code.op("shl", code.op("add", exponent, 127), 23)
    return code.bitcast(bits, "float")


def _integer(code: Code, n: Reg) -> Reg:
    # A NaN gives an arbitrary integer. This does no harm, because the polynomial that it scales is
    # then NaN too.
    return code.to_integer(n, "i32")


@shared
def exp(code: Code, x: Reg) -> Reg:
    """Returns exp(x) with an error of at most 1 ULP (measured: 0.98).

    Denormal results, overflow and NaN are right. Lanes whose result rounds to 0, such as masked
    scores, are not computed: CPUs take ten times as long for a vector with denormal results.
    """
    is_nonzero = code.compare("fcmp uge", x, -104.0)
    # On a CPU with an instruction that scales by an exponent, the select below becomes the mask of
    # the instruction. On other CPUs, the arguments of the lanes whose result rounds to 0 are
    # replaced by 0, so that no denormal occurs.
    if not code.module.profile.scales_by_exponent:
        x = code.select(is_nonzero, x, 0.0)
    return code.select(is_nonzero, exp_between(code, clamp(code, x, None, 89.0)), 0.0)


def exp_between(code: Code, x: Reg) -> Reg:
    """Returns `exp(x)` for x that is NaN or in [-104, 89]."""
    n, r = _reduced(code, x)
    return _scale_by(code, polynomial(code, r, (1.0, 1.0, *_EXP)), n)


@shared
def expm1(code: Code, x: Reg) -> Reg:
    """Returns exp(x) - 1 with an error of at most 2 ULP (measured: 1.37).

    This holds for small arguments and signed zeros too.
    """
    bounded = clamp(code, x, -30.0, 89.0)
    n, r = _reduced(code, bounded)
    small = code.fma(polynomial(code, r, _EXPM1), code.op("fmul", r, r), r)
    # `small` is exp(r) - 1, so the result is 2**n small + (2**n - 1). Half of it is computed and
    # then doubled, because 2**128 exceeds the range of f32.
    half = _power_of_two(code, code.op("sub", _integer(code, n), 1))
    offset = code.op("fsub", half, 0.5)
    value = code.op("fmul", code.fma(half, small, offset), 2.0)
    tiny = code.compare("fcmp olt", magnitude(code, x), 1e-8)
    return code.select(tiny, x, value)


@shared
def tanh(code: Code, x: Reg) -> Reg:
    """Returns tanh(x) with an error of at most 3 ULP (measured: 2.35).

    It is t / (t + 2) with t = expm1(2 |x|), which loses no digits by cancellation.
    """
    size = clamp(code, magnitude(code, x), None, 10.0)
    t = expm1(code, code.op("fadd", size, size))
    ratio = code.op("fdiv", t, code.op("fadd", t, 2.0))
    return code.intrinsic("copysign", ratio, x)
