"""Exponentials of f32 vectors.

exp(x) = 2**n * exp(r), with n the integer nearest to x/ln2 and r = x - n ln2, so |r| < 0.35. ln2 is
subtracted in two parts. The polynomials are minimax fits of (exp(r) - 1 - r) / r**2.
"""

import math

from tcc.backends.cpu.llvm.text import int_const
from tcc.backends.cpu.llvm.values import LlvmValue
from tcc.backends.cpu.math.code import clamp, polynomial, shared

# ln2 in two parts; the first has few bits, so that its product with n is exact.
_LN2_HIGH = 0.693359375
_LN2_LOW = math.log(2) - _LN2_HIGH
# Adding this to |x| < 2**22 leaves the nearest integer in the last bits of the sum.
_ROUNDING = 1.5 * 2.0**23
# The fits are exact to a twentieth of an ULP of exp(r), and of expm1(r) for small r.
_EXP = (0.49999994, 0.16666521, 0.04166839, 0.0083687315, 0.0013814569)
_EXPM1 = (0.5, 0.16666667, 0.041666254, 0.0083332621, 0.0013947199, 0.00019919904)


def _reduced(x: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """Returns `n` and `r` with `x = n ln2 + r`, for |x| below 2**21."""
    n = x.fma(1 / math.log(2), _ROUNDING) - _ROUNDING
    return n, n.fma(-_LN2_LOW, n.fma(-_LN2_HIGH, x))


def scale(x: LlvmValue, exponent: LlvmValue) -> LlvmValue:
    """Returns `x * 2**exponent` for an i32 exponent in [-252, 254], rounded once."""
    if x.profile.scales_by_exponent and x.reg.width > 1:
        return x.intrinsic("ldexp", exponent)
    # 2**exponent is applied as two factors, because it can overflow although the result does not.
    half = exponent >> 1
    other_half = exponent - half
    return x * _power_of_two(half) * _power_of_two(other_half)


def _scale_by(x: LlvmValue, n: LlvmValue) -> LlvmValue:
    """Returns `x * 2**n` for a float n with an integer value in [-252, 254], rounded once."""
    width = x.reg.width
    suffix = {4: "128", 8: "256", 16: "512"}.get(width)
    if suffix is None or not x.profile.scales_by_exponent:
        return scale(x, _integer(n))
    # x86's own intrinsic takes a float as exponent. LLVM's generic one takes an integer, to which n
    # would have to be converted.
    all_lanes = int_const(-1, "i16" if width == 16 else "i8")
    rounding = [int_const(4, "i32")] if width == 16 else []
    name = f"llvm.x86.avx512.mask.scalef.ps.{suffix}"
    return x.call(name, n.reg, x.reg, all_lanes, *rounding)


def _power_of_two(exponent: LlvmValue) -> LlvmValue:
    return ((exponent + 127) << 23).bitcast("float")


def _integer(n: LlvmValue) -> LlvmValue:
    # A NaN gives an arbitrary integer. This does no harm, because the polynomial that it scales is
    # then NaN too.
    return n.to_integer("i32")


@shared
def exp(x: LlvmValue) -> LlvmValue:
    """Returns exp(x) with an error of at most 1 ULP (measured: 0.98).

    Denormal results, overflow and NaN are right. Lanes whose result rounds to 0, such as masked
    scores, are not computed: CPUs take ten times as long for a vector with denormal results.
    """
    is_nonzero = x.compare("fcmp uge", -104.0)
    # On a CPU with an instruction that scales by an exponent, the select below becomes the mask of
    # the instruction. On other CPUs, the arguments of the lanes whose result rounds to 0 are
    # replaced by 0, so that no denormal occurs.
    if not x.profile.scales_by_exponent:
        x = is_nonzero.select(x, 0.0)
    return is_nonzero.select(exp_between(clamp(x, None, 89.0)), 0.0)


def exp_between(x: LlvmValue) -> LlvmValue:
    """Returns `exp(x)` for x that is NaN or in [-104, 89]."""
    n, r = _reduced(x)
    return _scale_by(polynomial(r, (1.0, 1.0, *_EXP)), n)


@shared
def expm1(x: LlvmValue) -> LlvmValue:
    """Returns exp(x) - 1 with an error of at most 2 ULP (measured: 1.37).

    This holds for small arguments and signed zeros too.
    """
    n, r = _reduced(clamp(x, -30.0, 89.0))
    small = polynomial(r, _EXPM1).fma(r * r, r)
    # `small` is exp(r) - 1, so the result is 2**n small + (2**n - 1). Half of it is computed and
    # then doubled, because 2**128 exceeds the range of f32.
    half = _power_of_two(_integer(n) - 1)
    value = half.fma(small, half - 0.5) * 2.0
    return (abs(x) < 1e-8).select(x, value)


@shared
def tanh(x: LlvmValue) -> LlvmValue:
    """Returns tanh(x) with an error of at most 3 ULP (measured: 2.35).

    It is t / (t + 2) with t = expm1(2 |x|), which loses no digits by cancellation.
    """
    size = clamp(abs(x), None, 10.0)
    t = expm1(size + size)
    return (t / (t + 2.0)).copysign(x)
