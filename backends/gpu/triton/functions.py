"""Scalar functions for devices, in Triton.

`library.py` reads this file as text. It copies the functions that a kernel calls, from the
decorator to the last line, into the kernel's module; only the workers import Triton. No function of
a vendor's library is called, so one text serves all devices and Triton's interpreter. If a variable
is renamed or a docstring is reworded, the texts of kernels change.

f32 results are at most 4 ULP off. NaN, infinities, signed zeros and denormals are preserved. The
only approximate instruction is `exp2`: devices compute it with an error of at most 2 ULP, and those
with `FLUSHES` give 0 for denormal results. Polynomials are minimax fits.
"""

import triton
import triton.language as tl

FLUSHES = tl.constexpr(False)


@triton.jit
def bits_of(x):
    return x.to(tl.uint32, bitcast=True)


@triton.jit
def float_of(bits):
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def with_sign(size, x):
    """The sign of `x` on `size`, which has none."""
    sign = bits_of(x) & 0x80000000
    return float_of(bits_of(size) | sign)


@triton.jit
def above(x, low):
    """`x`, but at least `low`; NaN stays."""
    return tl.where(x < low, low, x)


@triton.jit
def below(x, high):
    """`x`, but at most `high`; NaN stays."""
    return tl.where(x > high, high, x)


@triton.jit
def power_of_two(n):
    """2**n for n in [-126, 127]."""
    return float_of((n + 127) << 23)


@triton.jit
def polynomial(x, coefficients):
    """By Horner's scheme; the highest power's coefficient is the first."""
    value = tl.fma(x, coefficients[0], coefficients[1])
    for n in tl.static_range(2, len(coefficients)):
        value = tl.fma(x, value, coefficients[n])
    return value


@triton.jit
def unfused_polynomial(x, coefficients):
    """The same, with products that are rounded."""
    value = x * coefficients[0] + coefficients[1]
    for n in tl.static_range(2, len(coefficients)):
        value = x * value + coefficients[n]
    return value


# ---- rounding ---------------------------------------------------------------------------------


@triton.jit
def round(x):
    """To the nearest integer, to the even one of two."""
    shift = tl.where(x < 0.0, -8388608.0, 8388608.0)  # 2**23: no bits are left for a fraction
    near = tl.where(tl.abs(x) < 8388608.0, (x + shift) - shift, x)
    return with_sign(tl.abs(near), x)


@triton.jit
def trunc(x):
    return tl.where(x < 0.0, tl.ceil(x), tl.floor(x))


@triton.jit
def sign(x):
    """-1 or 1; zeros and NaN give themselves."""
    return tl.where(x > 0.0, 1.0, tl.where(x < 0.0, -1.0, x))


# ---- exponentials -----------------------------------------------------------------------------


@triton.jit
def exp(x):
    """2**t * (1 + e) with t the float nearest to x / ln2, and e = x - t ln2 what it lacks, ln2 in
    two parts.  Where 2**t leaves the range there is no e."""
    t = x * 1.44269502162933349609375
    e = tl.fma(t, 1.904654323148236017e-09, tl.fma(t, -0.693147182464599609375, x))
    tiny = t < -125.0
    power = tl.exp2(tl.where(tiny, t + 64.0, t) if FLUSHES else t)
    value = tl.where((t < 128.0) & (t > -160.0), tl.fma(power, e, power), power)
    return tl.where(tiny, value * 5.421010862427522e-20, value) if FLUSHES else value


@triton.jit
def exp_rounded(x):
    """For results that are rounded to halves: what x / ln2 lacks is left out, at most 2**-17 of
    the result."""
    return tl.exp2(x * 1.44269502162933349609375)


@triton.jit
def expm1(x):
    """2**n (exp(r) - 1) + (2**n - 1) with r = x - n ln2, by halves: 2**128 is no float."""
    bounded = below(above(x, -30.0), 89.0)
    shifted = tl.fma(bounded, 1.4426950408889634, 12582912.0)
    n = shifted - 12582912.0
    r = tl.fma(n, 0.00021219444005469057, tl.fma(n, -0.693359375, bounded))
    p = polynomial(r, (0.00019919904, 0.0013947199, 0.0083332621, 0.041666254, 0.16666667, 0.5))
    small = tl.fma(p, r * r, r)
    half = power_of_two(shifted.to(tl.int32, bitcast=True) - 0x4B400001)
    value = tl.fma(half, small, half - 0.5) * 2.0
    return tl.where(tl.abs(x) < 1e-8, x, value)


@triton.jit
def tanh(x):
    """t / (t + 2) with t = expm1(2 |x|), which cancels nowhere."""
    size = below(tl.abs(x), 10.0)
    t = expm1(size + size)
    return with_sign(tl.div_rn(t, t + 2.0), x)


@triton.jit
def half_exp(size):
    """exp(size) / 2, which may be in range where exp(size) is not."""
    root = exp(size * 0.5)
    return (root * 0.5) * root


@triton.jit
def sinh(x):
    """(t + t / (t + 1)) / 2 with t = expm1(|x|); exp(|x|) / 2 where the rest does not count."""
    size = tl.abs(x)
    t = expm1(below(size, 12.0))
    small = (t + tl.div_rn(t, t + 1.0)) * 0.5
    return with_sign(tl.where(size > 12.0, half_exp(size), small), x)


@triton.jit
def cosh(x):
    size = tl.abs(x)
    half = half_exp(size)
    return half + tl.div_rn(0.25, half)


# ---- logarithms -------------------------------------------------------------------------------


@triton.jit
def log(x):
    """e ln2 + log(1 + f) where x = 2**e (1 + f) and 1 + f lies in [sqrt(1/2), sqrt(2))."""
    tiny = x < 1.1754943508222875e-38
    bits = tl.where(tiny, x * 8388608.0, x).to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F3504F3) >> 23
    f = float_of(bits - (exponent << 23)) - 1.0
    e = tl.where(tiny, exponent - 23, exponent).to(tl.float32)
    p = polynomial(f, (
        0.067466408, -0.11675652, 0.11888162, -0.12405589, 0.14219552, -0.16667996, 0.20002119,
        -0.25000009, 0.33333313
    ))  # fmt: skip
    square = f * f
    tail = tl.fma(e, -0.00021219444005469057, p * (square * f))
    tail = tl.fma(square, -0.5, tail)
    value = tl.fma(e, 0.693359375, f + tail)
    value = tl.where(x == float("inf"), x, value)
    value = tl.where(x == 0.0, float("-inf"), value)
    return tl.where(x >= 0.0, value, float("nan"))


@triton.jit
def log1p(x):
    """log(u) for u = 1 + x, less what rounding u added."""
    u = x + 1.0
    lost = (u - 1.0) - x
    value = log(u) - tl.div_rn(lost, u)
    value = tl.where(x == float("inf"), x, value)
    value = tl.where(x == -1.0, float("-inf"), value)
    return tl.where(x == 0.0, x, value)


@triton.jit
def asinh(x):
    """log1p(a + a**2 / (1 + sqrt(a**2 + 1))) with a = |x|; log(2 a) where a**2 + 1 is a**2."""
    size = tl.abs(x)
    large = size > 1e8
    a = tl.where(large, 1.0, size)
    square = a * a
    rest = tl.div_rn(square, tl.sqrt_rn(square + 1.0) + 1.0)
    value = tl.where(large, log(size) + 0.693147180559945309, log1p(a + rest))
    return with_sign(value, x)


@triton.jit
def acosh(x):
    """log1p(t + sqrt(2 t + t**2)) with t = x - 1; log(2 x) where x**2 - 1 is x**2."""
    large = x > 1e8
    t = tl.where(large, 1.0, x - 1.0)
    value = log1p(t + tl.sqrt_rn(tl.fma(t, t, t + t)))
    value = tl.where(large, log(x) + 0.693147180559945309, value)
    return tl.where(x >= 1.0, value, float("nan"))


@triton.jit
def atanh(x):
    """log1p(2 a / (1 - a)) / 2 with a = |x|."""
    size = tl.abs(x)
    value = log1p(tl.div_rn(size + size, 1.0 - size)) * 0.5
    nan = value != value
    return tl.where(nan, value, with_sign(tl.abs(value), x))


# ---- the error function -----------------------------------------------------------------------


@triton.jit
def erf(x):
    """x + x P(x**2) for small x, else 1 - exp(-g(|x|)) with g(t) = t + t Q(t)."""
    size = tl.abs(x)
    s = x * x
    p = polynomial(s, (
        8.382403e-05, -0.0008145601, 0.0052012866, -0.0268594995, 0.11283697, -0.37612635,
        0.12837917
    ))  # fmt: skip
    small = tl.fma(p, x, x)
    t = below(size, 4.0)
    q = polynomial(t, (
        -0.00021398495, 0.0032149556, -0.022889964, 0.10526184, 0.63571829, 0.12851436
    ))  # fmt: skip
    large = with_sign(tl.abs(1.0 - exp(tl.fma(q, -t, -t))), x)
    return tl.where(size < 0.92, small, large)


# ---- trigonometry -----------------------------------------------------------------------------


@triton.jit
def turn_part(x, chunk: tl.constexpr):
    """`x * chunk` less a multiple of 4.  Exact: the product has 53 bits at most."""
    product = x * chunk
    return product - 4.0 * tl.floor(product * 0.25 + 0.5)


@triton.jit
def quarter_turns(x):
    """The integer nearest to x / (pi/2), modulo 4, and what is left of x.

    2/pi is cut into chunks of 29 bits or fewer, so that every product with an f32 is exact in f64
    and loses its multiples of 4 exactly: good for every f32 there is.
    """
    wide = x.to(tl.float64)
    a = turn_part(wide, 0.636619770899415)
    b = turn_part(wide, 1.4681663246252086e-09)
    c = turn_part(wide, 2.2760100671971816e-18)
    d = turn_part(wide, 5.8812147387730434e-27)
    e = turn_part(wide, 1.0346868700836215e-35)
    f = turn_part(wide, 3.7832563824127804e-45)
    g = turn_part(wide, 5.883287377678318e-54)
    total = a + (b + (c + (d + (e + (f + g)))))
    n = tl.floor(total + 0.5)
    left = ((((((a - n) + b) + c) + d) + e) + f) + g
    finite = tl.abs(x) < float("inf")
    quarter = tl.where(finite, n, 0.0).to(tl.int32)
    return quarter, tl.where(finite, left * 1.5707963267948966, float("nan")).to(tl.float32)


@triton.jit
def sin_kernel(r):
    s = r * r
    p = polynomial(s, (2.7180258e-06, -0.00019839303, 0.0083333291, -0.16666667))
    return tl.fma(p, s * r, r)


@triton.jit
def cos_kernel(r):
    s = r * r
    p = polynomial(s, (2.4437534e-05, -0.001388736, 0.041666646))
    return tl.fma(p, s * s, tl.fma(s, -0.5, 1.0))


@triton.jit
def sin(x):
    quarter, r = quarter_turns(x)
    value = tl.where((quarter & 1) != 0, cos_kernel(r), sin_kernel(r))
    return tl.where(x == 0.0, x, tl.where((quarter & 2) != 0, -value, value))


@triton.jit
def cos(x):
    quarter, r = quarter_turns(x)
    value = tl.where((quarter & 1) != 0, sin_kernel(r), cos_kernel(r))
    return tl.where(((quarter + 1) & 2) != 0, -value, value)


@triton.jit
def tan(x):
    quarter, r = quarter_turns(x)
    sine, cosine = sin_kernel(r), cos_kernel(r)
    odd = (quarter & 1) != 0
    value = tl.div_rn(tl.where(odd, -cosine, sine), tl.where(odd, sine, cosine))
    return tl.where(x == 0.0, x, value)


@triton.jit
def asin_part(size):
    """asin of `size` up to 1/2, of sqrt((1 - size) / 2) beyond, and whether it is beyond."""
    outer = size > 0.5
    rest = tl.fma(size, -0.5, 0.5)
    square = tl.where(outer, rest, size * size)
    root = tl.where(outer, tl.sqrt_rn(rest), size)
    p = polynomial(square, (
        0.0375652127, 0.0144025972, 0.031817615, 0.0445157215, 0.0750051066, 0.166666597
    ))  # fmt: skip
    return tl.fma(p * square, root, root), outer


@triton.jit
def asin(x):
    """pi/2 - 2 asin(sqrt((1 - x) / 2)) beyond 1/2; NaN beyond 1."""
    arc, outer = asin_part(tl.abs(x))
    beyond = tl.fma(arc, -2.0, -4.371139e-08) + 1.57079637050628662109375
    value = tl.where(outer, beyond, arc)
    return tl.where(value != value, value, with_sign(tl.abs(value), x))


@triton.jit
def acos(x):
    arc, outer = asin_part(tl.abs(x))
    negative = x < 0.0
    inner = (tl.where(negative, arc, -arc) - 4.371139e-08) + 1.57079637050628662109375
    twice = arc + arc
    opposite = (-8.742278e-08 - twice) + 3.1415927410125732421875
    return tl.where(outer, tl.where(negative, opposite, twice), inner)


@triton.jit
def atan_part(t):
    """atan up to 1."""
    s = t * t
    p = polynomial(s, (
        0.00113489607, -0.00742272567, 0.0227605272, -0.0449466631, 0.0675958693, -0.0881885514,
        0.110602461, -0.142801315, 0.199996933, -0.333333284
    ))  # fmt: skip
    return tl.fma(p * s, t, t)


@triton.jit
def atan(x):
    """pi/2 - atan(1 / x) beyond 1."""
    size = tl.abs(x)
    outer = size > 1.0
    arc = atan_part(tl.where(outer, tl.div_rn(1.0, size), size))
    value = tl.where(outer, (-arc - 4.371139e-08) + 1.57079637050628662109375, arc)
    return tl.where(x != x, x, with_sign(tl.abs(value), x))


@triton.jit
def atan2(y, x):
    """The angle of (x, y), from that of the smaller over the larger; IEEE 754's special cases."""
    a, b = tl.abs(y), tl.abs(x)
    steep = a > b
    large, small = tl.where(steep, a, b), tl.where(steep, b, a)
    # Both are scaled out of the denormals, and a pair of zeros or infinities has its own slope.
    scale = tl.where(large < 1e-30, 1.2676506002282294e30, 1.0)
    slope = tl.div_rn(small * scale, tl.where(large == 0.0, 1.0, large * scale))
    slope = tl.where((large == float("inf")) & (small == large), 1.0, slope)
    arc = atan_part(slope)
    arc = tl.where(steep, (-arc - 4.371139e-08) + 1.57079637050628662109375, arc)
    left = x.to(tl.int32, bitcast=True) < 0
    arc = tl.where(left, (-8.742278e-08 - arc) + 3.1415927410125732421875, arc)
    return tl.where((x != x) | (y != y), x + y, with_sign(tl.abs(arc), y))


# ---- powers -----------------------------------------------------------------------------------


@triton.jit
def wide_log2(x):
    """log2 of positive normal doubles; -inf at zero, infinity and NaN as they are."""
    bits = x.to(tl.int64, bitcast=True)
    exponent = (bits - 0x3FE6A09E667F3BCD) >> 52
    m = (bits - (exponent << 52)).to(tl.float64, bitcast=True)
    s = (m - 1.0) / (m + 1.0)
    t = s * s
    p = unfused_polynomial(t, (
        0.19235933878519512, 0.22195308321368667, 0.2623081892525388, 0.3205988979753252,
        0.4121985831111324, 0.5770780163555853, 0.9617966939259756, 2.8853900817779268
    ))  # fmt: skip
    value = s * p + exponent.to(tl.int32).to(tl.float64)
    value = tl.where(x == 0.0, float("-inf"), value)
    return tl.where(x < float("inf"), value, x)


@triton.jit
def wide_exp2(x):
    """2**x for x in [-300, 300]."""
    n = tl.floor(x + 0.5)
    r = (x - n) * 0.6931471805599453
    p = unfused_polynomial(r, (
        2.505210838544172e-08, 2.755731922398589e-07, 2.7557319223985893e-06,
        2.48015873015873e-05, 0.0001984126984126984, 0.001388888888888889, 0.008333333333333333,
        0.041666666666666664, 0.16666666666666666, 0.5, 1.0, 1.0
    ))  # fmt: skip
    integer = tl.where(n == n, n, 0.0).to(tl.int64)
    return p * ((integer + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def pow(x, y):
    """|x|**y through f64, so that the one rounding to f32 decides; IEEE 754's special cases."""
    size = tl.abs(x)
    product = wide_log2(size.to(tl.float64)) * y.to(tl.float64)
    product = tl.where(product < -300.0, -300.0, tl.where(product > 300.0, 300.0, product))
    value = wide_exp2(product).to(tl.float32)
    whole = trunc(y) == y
    odd = whole & (trunc(y * 0.5) != y * 0.5)
    value = tl.where(odd & (value == value), with_sign(tl.abs(value), x), value)
    value = tl.where((x < 0.0) & (size < float("inf")) & (trunc(y) != y), float("nan"), value)
    unit = (size == 1.0) & (tl.abs(y) == float("inf"))
    return tl.where((x == 1.0) | (y == 0.0) | unit, 1.0, value)


# ---- remainders -------------------------------------------------------------------------------


@triton.jit
def rem(x, y):
    """What truncated division leaves, exactly: long division by steps of 28 bits in f64."""
    rest = tl.abs(x).to(tl.float64)
    divisor = tl.abs(y).to(tl.float64)
    scaled = divisor * 7.237005577332262e75  # 2**252
    for _ in tl.static_range(10):
        rest = tl.fma(-tl.floor(rest / scaled), scaled, rest)
        rest = tl.where(rest < 0.0, rest + scaled, rest)
        rest = tl.where(rest >= scaled, rest - scaled, rest)
        scaled = scaled * 3.725290298461914e-09
    value = with_sign(rest.to(tl.float32), x)
    value = tl.where(tl.abs(y) == float("inf"), x, value)
    valid = (tl.abs(x) < float("inf")) & (tl.abs(y) > 0.0)
    return tl.where(valid, value, float("nan"))


@triton.jit
def mod(x, y):
    """What floored division leaves; it has the divisor's sign."""
    rest = rem(x, y)
    other = (rest < 0.0) != (y < 0.0)
    zero = with_sign(tl.abs(y * 0.0), y)
    value = tl.where(rest == 0.0, zero, tl.where(other, rest + y, rest))
    value = tl.where((rest == 0.0) & (tl.abs(y) == float("inf")), with_sign(tl.abs(rest), y), value)
    return tl.where(rest != rest, rest, value)


# ---- integers ---------------------------------------------------------------------------------


@triton.jit
def int_div(a, b):
    """The truncated quotient; 0 for a divisor of zero, and the least integer over -1 wraps."""
    safe = tl.where((b == 0) | (b == -1), 1, b)
    return tl.where(b == 0, 0, tl.where(b == -1, -a, a // safe))


@triton.jit
def int_rem(a, b):
    """A divisor of 1 leaves 0, as -1 does and as 0 must."""
    return a % tl.where((b == 0) | (b == -1), 1, b)


@triton.jit
def int_mod(a, b):
    rest = int_rem(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def uint_div(a, b):
    return tl.where(b == 0, 0, a // tl.where(b == 0, 1, b))


@triton.jit
def uint_rem(a, b):
    return a % tl.where(b == 0, 1, b)


@triton.jit
def int_sign(a):
    return tl.where(a > 0, 1, tl.where(a < 0, -1, 0))


@triton.jit
def int_power(a, b, bits: tl.constexpr):
    """`a ** b` by squaring, wrapping, for b that is not negative."""
    result = a * 0 + 1
    for _ in tl.static_range(bits):
        result = tl.where((b & 1) != 0, result * a, result)
        a = a * a
        b = b >> 1
    return result


@triton.jit
def int_pow(a, b, bits: tl.constexpr):
    """A negative exponent gives the truncated real power."""
    value = int_power(a, tl.where(b < 0, -b, b), bits)
    return tl.where((b >= 0) | (a == 1) | (a == -1), value, 0)


@triton.jit
def shift_left(a, b, bits: tl.constexpr):
    """Counts of the width or more, and negative ones, shift everything out."""
    inside = (b >= 0) & (b < bits)
    return tl.where(inside, a << tl.where(inside, b, 0), 0)


@triton.jit
def shift_right(a, b, bits: tl.constexpr):
    return a >> tl.where((b >= 0) & (b < bits), b, bits - 1)


@triton.jit
def uint_shift_right(a, b, bits: tl.constexpr):
    inside = b < bits
    return tl.where(inside, a >> tl.where(inside, b, 0), 0)


@triton.jit
def to_integer(x, dtype: tl.constexpr, low: tl.constexpr, high: tl.constexpr):
    """Truncates to `dtype`, whose range is low to high; NaN gives 0.

    The first float above the range is a power of two, so exact; below it lies `low` or less.
    """
    over, under = x >= high + 1.0, x <= low + 0.0
    value = tl.where(over | under | (x != x), 0.0, x).to(dtype)
    return tl.where(over, high, tl.where(under, low, value)).to(dtype)


@triton.jit
def floor_div(a, b):
    """Of a positive divisor."""
    return tl.where(a < 0, -((b - 1 - a) // b), a // b)


@triton.jit
def floor_mod(a, b):
    return a - floor_div(a, b) * b


# ---- comparisons ------------------------------------------------------------------------------


@triton.jit
def is_nan(x):
    return x != x


@triton.jit
def is_inf(x):
    return tl.abs(x) == float("inf")


@triton.jit
def maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
