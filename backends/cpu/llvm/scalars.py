"""Scalar functions and casts on registers of any width.

Functions of f16 and bf16 are computed in f32, and each result is rounded once.
"""

import operator
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tcc.backends.cpu.llvm import integers
from tcc.backends.cpu.llvm.blocks import register_element
from tcc.backends.cpu.llvm.narrow import wrapped
from tcc.backends.cpu.llvm.storage import literal, round_to
from tcc.backends.cpu.llvm.text import Code, Reg, int_const
from tcc.backends.cpu.llvm.values import LlvmValue
from tcc.backends.cpu.math.code import MathFunction, lane_by_lane
from tcc.backends.cpu.math.erf import one_plus_erf
from tcc.backends.cpu.math.table import MATH
from tcc.errors import InternalError
from tcc.ir.expr.scalar import COMPARISONS, EXACT, OF_BOOLS, Apply, Cast, Const, Scalar
from tcc.ir.types import BF16, BOOL, F16, F32, DType, DTypeKind, integer_limits


def emit_scalar(code: Code, node: Scalar, args: Sequence[Reg], width: int) -> Reg:
    """Returns the value of `node`; `args` are the values of its operands, of `width` lanes each."""
    values = [LlvmValue(code, arg) for arg in args]
    match node:
        case Const():
            return literal(node.value, node.dtype, width)
        case Cast():
            return convert(values[0], node.arg.dtype, node.dtype).reg
        case Apply():
            return _applied(node, values).reg
        case _:
            raise InternalError(f"a {type(node).__name__} inside a tile body", where="backends/cpu")


def _applied(node: Apply, args: Sequence[LlvmValue]) -> LlvmValue:
    kind = node.args[-1].dtype
    name = node.function
    if name == "select":
        condition, yes, no = args
        return condition.select(yes, no)
    if name in COMPARISONS:
        return _compare(name, kind, *args)
    if node.dtype is BOOL or kind is BOOL:
        return _boolean(name, args, kind)
    if kind.is_float:
        result = _float(node, args)
        return result if name in EXACT else round_to(result, node.dtype)
    return _integer(name, args, kind)


def joint_function(node: Apply) -> tuple[MathFunction, Scalar] | None:
    """Returns (function, operand) if a single function computes `node` together with its argument.

    Example: the function is 1 + erf(x) and the operand x. Returns None for any other scalar.
    """
    if node.function != "add" or node.dtype is not F32:
        return None
    for inner, other in (node.args, node.args[::-1]):
        one = isinstance(other, Const) and other.value == 1
        if one and isinstance(inner, Apply) and inner.function == "erf":
            return one_plus_erf, inner.args[0]
    return None


def _compare(what: str, dtype: DType, a: LlvmValue, b: LlvmValue) -> LlvmValue:
    if dtype.is_float:
        return a.compare(f"fcmp {'une' if what == 'ne' else 'o' + what}", b)
    if what in ("eq", "ne"):
        return a.compare(f"icmp {what}", b)
    return a.compare(f"icmp {'s' if dtype.kind is DTypeKind.INT else 'u'}{what}", b)


def _boolean(name: str, args: Sequence[LlvmValue], kind: DType) -> LlvmValue:
    a = args[0]
    if name == "is_nan":
        return a.compare("fcmp uno", a)
    if name == "is_inf":
        return abs(a).eq(float("inf"))
    truth = [arg if arg.reg.elem == "i1" else arg.ne(0) for arg in args]
    if name in ("not", "bit_not"):
        return truth[0] ^ 1
    if name not in OF_BOOLS:
        raise InternalError(f"no function {name} of {kind.name}", where="backends/cpu/scalars")
    return truth[0].op(OF_BOOLS[name], truth[1])


def _integer(name: str, args: Sequence[LlvmValue], dtype: DType) -> LlvmValue:
    signed, a = dtype.kind is DTypeKind.INT, args[0]
    if len(args) == 2 and name in integers.BINARY:
        return integers.BINARY[name](a, args[1], signed)
    match name:
        case "neg":
            return 0 - a
        case "abs":
            return (a < 0).select(0 - a, a) if signed else a
        case "sign":
            return integers.sign(a, signed)
        case "bit_not":
            return a ^ -1
        case "floor" | "ceil" | "round" | "trunc":
            return a
    raise InternalError(f"no function {name} of {dtype.name}", where="backends/cpu/scalars")


# ---- floats -------------------------------------------------------------------------------------

_ARITHMETIC = MappingProxyType(
    {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "rem": "frem"}
)
_INTRINSIC = MappingProxyType(
    {
        "abs": "fabs",
        "floor": "floor",
        "ceil": "ceil",
        "round": "roundeven",
        "trunc": "trunc",
        "sqrt": "sqrt",
    }
)


def _float(node: Apply, args: Sequence[LlvmValue]) -> LlvmValue:
    name, a = node.function, args[0]
    if name == "rem":
        return per_lane("fmod", args)
    if name in _ARITHMETIC:
        return a.op(_ARITHMETIC[name], args[1])
    if name in _INTRINSIC:
        return a.intrinsic(_INTRINSIC[name])
    if name in ("max", "min"):
        return _float_extremum(name, node.args, *args)
    if name in _FLOAT:
        return _FLOAT[name](*args)
    if a.reg.elem == "float" and name in MATH:
        return MATH[name](*args)
    return per_lane(name, args)


def _float_extremum(name: str, nodes: Sequence[Scalar], a: LlvmValue, b: LlvmValue) -> LlvmValue:
    # x86-64 has no instruction that returns NaN if an operand is NaN
    if a.profile.arch != "x86-64":
        return a.intrinsic("maximum" if name == "max" else "minimum", b)
    predicate = "fcmp ogt" if name == "max" else "fcmp olt"
    # `x > y ? x : y` gives y if either is NaN. This is right if x cannot be NaN.
    for first, x, y in ((nodes[0], a, b), (nodes[1], b, a)):
        if isinstance(first, Const) and first.value == first.value:
            return x.compare(predicate, y).select(x, y)
    # Reductions carry `a` from iteration to iteration. The NaN test is on `b`, so that it does not
    # lengthen this chain of dependent instructions.
    extremum = _extremum_instruction(name, b, a)
    if extremum is None:
        extremum = b.compare(predicate, a).select(b, a)
    return b.compare("fcmp ord", b).select(extremum, b)


def _extremum_instruction(name: str, x: LlvmValue, y: LlvmValue) -> LlvmValue | None:
    """Returns `x > y ? x : y` (or with `<`) as one instruction of x86-64, or None if there is none.

    LLVM selects the instruction for a compare and a select, but not after it has merged them with a
    test for NaN.
    """
    bits, single = 8 * x.reg.bytes, x.reg.elem == "float"
    sets = {128: "sse" if single else "sse2", 256: "avx", 512: "avx512"}
    if bits not in sets or bits > x.profile.vector_bits:
        return None
    tail = "" if bits == 128 else f".{bits}"
    rounding = [int_const(4, "i32")] if bits == 512 else []
    kind = "ps" if single else "pd"
    return x.call(f"llvm.x86.{sets[bits]}.{name}.{kind}{tail}", y.reg, *rounding)


def _float_sign(a: LlvmValue) -> LlvmValue:
    signed_one = a.constant(1.0).copysign(a)
    # For a zero or NaN, the result is the argument itself.
    return a.compare("fcmp one", 0.0).select(signed_one, a)


def _float_mod(a: LlvmValue, b: LlvmValue) -> LlvmValue:
    leftover = per_lane("fmod", (a, b))
    is_zero = leftover.eq(0.0)
    signed_zero = b.constant(0.0).copysign(b)
    other_sign = (leftover < 0.0) ^ (b < 0.0)
    shifted = other_sign.select(leftover + b, leftover)
    finite_divisor = b.compare("fcmp one", 0.0)
    signed = (is_zero & finite_divisor).select(signed_zero, shifted)
    return leftover.compare("fcmp uno", leftover).select(leftover, signed)


_FLOAT: Mapping[str, MathFunction] = MappingProxyType(
    {"neg": operator.neg, "sign": _float_sign, "mod": _float_mod}
)


def per_lane(name: str, args: Sequence[LlvmValue]) -> LlvmValue:
    """Calls the C library's function `name` (of f32 or f64) for each lane."""
    return lane_by_lane(name + ("f" if args[0].reg.elem == "float" else ""), args)


# ---- casts --------------------------------------------------------------------------------------


def convert(a: LlvmValue, source: DType, target: DType) -> LlvmValue:
    """Returns values of `source` converted to `target`.

    Floats are truncated to integers and saturated; NaN gives 0.
    """
    if source is target:
        return a
    if target is BOOL:
        return a.ne(0)  # NaN is not zero
    if target.is_float:
        return _to_float(a, source, target)
    elem = register_element(target)
    if source.is_float:
        return _to_integer(a, elem, target)
    if target.is_packed and source is not BOOL:
        return wrapped(a if source.bytes == 1 else a.convert("trunc", elem), target)
    if source.bytes > target.bytes:
        return a.convert("trunc", elem)
    if a.reg.elem == elem:
        return a
    return a.convert("sext" if source.kind is DTypeKind.INT else "zext", elem)


def _to_integer(a: LlvmValue, elem: str, target: DType) -> LlvmValue:
    """Returns floats truncated to an integer type.

    A value outside the type's range gives the nearest limit; NaN gives 0.
    """
    low, high = integer_limits(target)
    if target.bits <= 16:
        return _to_narrow_integer(a, elem, low, high)
    truncated = a.to_integer(elem, "fptosi" if target.kind is DTypeKind.INT else "fptoui")
    # `high` + 1 is a power of two and so exact as a float. Any smaller float truncates to at most
    # `high`.
    over, under = a >= high + 1, a <= low
    value = under.select(low, over.select(high, truncated))
    return a.compare("fcmp uno", a).select(0, value)


def _to_narrow_integer(a: LlvmValue, elem: str, low: int, high: int) -> LlvmValue:
    """Returns floats truncated to an integer type whose limits `low` and `high` are exact floats.

    The float is clamped before it is truncated.
    """
    nan = None if low == 0 else a.compare("fcmp uno", a)
    a = (a > low).select(a, low)  # NaN becomes `low`
    a = (a < high).select(a, high)
    result = a.convert("fptosi", "i32").convert("trunc", elem)
    return result if nan is None else nan.select(0, result)


def _to_float(a: LlvmValue, source: DType, target: DType) -> LlvmValue:
    elem = register_element(target)
    if not source.is_float:
        opcode = "sitofp" if source.kind is DTypeKind.INT else "uitofp"
        result = a.convert(opcode, elem)
        # bf16 has all integers of eight bits.
        return result if target is BF16 and source.bits <= 8 else round_to(result, target)
    if a.reg.elem == elem:
        return round_to(a, target)
    if elem == "double":
        return a.convert("fpext", elem)
    narrow = a.convert("fptrunc", elem)
    return round_to(_to_odd(a, narrow) if target is F16 else narrow, target)


def _to_odd(exact: LlvmValue, narrow: LlvmValue) -> LlvmValue:
    """Returns `exact` (f64) rounded to odd in f32.

    Rounding the result to f16 then gives the same as rounding `exact` to f16 at once.
    """
    widened = narrow.convert("fpext", "double")
    bits = narrow.bitcast("i32")
    even = (bits & 1).eq(0)
    inexact = widened.compare("fcmp one", exact)
    low = abs(widened) < abs(exact)
    stepped = bits + low.select(bits.constant(1), -1)
    return (even & inexact).select(stepped, bits).bitcast("float")
