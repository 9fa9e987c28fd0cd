"""Scalar functions and casts on registers of any width.

Functions of f16 and bf16 are computed in f32, and each result is rounded once.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tcc.backends.cpu.llvm import integers
from tcc.backends.cpu.llvm.blocks import register_element
from tcc.backends.cpu.llvm.narrow import wrapped
from tcc.backends.cpu.llvm.storage import literal, round_to
from tcc.backends.cpu.llvm.text import Code, Reg, int_const, number
from tcc.backends.cpu.math.code import MathFunction, lane_by_lane
from tcc.backends.cpu.math.erf import one_plus_erf
from tcc.backends.cpu.math.table import MATH
from tcc.errors import InternalError
from tcc.ir.expr.scalar import COMPARISONS, Apply, Cast, Const, Scalar
from tcc.ir.types import BOOL, F16, F32, F64, DType, DTypeKind, integer_limits

# Functions whose result a narrow float type can represent if it can represent the arguments. The
# result needs no rounding.
_EXACT = frozenset("max min neg abs sign floor ceil round trunc select rem".split())


def emit_scalar(code: Code, node: Scalar, args: Sequence[Reg], width: int) -> Reg:
    """Returns the value of `node`; `args` are the values of its operands, of `width` lanes each."""
    match node:
        case Const():
            return literal(node.value, node.dtype, width)
        case Cast():
            return convert(code, args[0], node.arg.dtype, node.dtype)
        case Apply():
            return _applied(code, node, args)
        case _:
            raise InternalError(f"a {type(node).__name__} inside a tile body", where="backends/cpu")


def _applied(code: Code, node: Apply, args: Sequence[Reg]) -> Reg:
    kind = node.args[-1].dtype
    name = node.function
    if name == "select":
        return code.select(*args)
    if name in COMPARISONS:
        return _compare(code, name, kind, *args)
    if node.dtype is BOOL or kind is BOOL:
        return _boolean(code, name, args, kind)
    if kind.is_float:
        result = _float(code, node, args)
        return result if name in _EXACT else round_to(code, result, node.dtype)
    return _integer(code, name, args, kind)


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


def _compare(code: Code, what: str, dtype: DType, a: Reg, b: Reg) -> Reg:
    if dtype.is_float:
        return code.compare(f"fcmp {'une' if what == 'ne' else 'o' + what}", a, b)
    if what in ("eq", "ne"):
        return code.compare(f"icmp {what}", a, b)
    return code.compare(f"icmp {'s' if dtype.kind is DTypeKind.INT else 'u'}{what}", a, b)


def _boolean(code: Code, name: str, args: Sequence[Reg], kind: DType) -> Reg:
    a = args[0]
    if name == "is_nan":
        return code.compare("fcmp uno", a, a)
    if name == "is_inf":
        size = code.intrinsic("fabs", a)
        return code.compare("fcmp oeq", size, float("inf"))
    truth = [arg if arg.elem == "i1" else to_bool(code, arg) for arg in args]
    if name in ("not", "bit_not"):
        return code.op("xor", truth[0], 1)
    opcode = _BOOLEAN.get(name)
    if opcode is None:
        raise InternalError(f"no function {name} of {kind.name}", where="backends/cpu/scalars")
    return code.op(opcode, *truth)


_BOOLEAN = MappingProxyType(
    {
        "and": "and",
        "or": "or",
        "xor": "xor",
        "bit_and": "and",
        "bit_or": "or",
        "bit_xor": "xor",
        "max": "or",
        "add": "or",
        "min": "and",
        "mul": "and",
    }
)


def to_bool(code: Code, a: Reg) -> Reg:
    """Returns an i1 that is true if a value is not zero; NaN is not zero."""
    if a.elem in ("float", "double"):
        return code.compare("fcmp une", a, 0.0)
    return code.compare("icmp ne", a, 0)


def _integer(code: Code, name: str, args: Sequence[Reg], dtype: DType) -> Reg:
    signed, a = dtype.kind is DTypeKind.INT, args[0]
    if len(args) == 2 and name in integers.BINARY:
        return integers.BINARY[name](code, a, args[1], signed)
    match name:
        case "neg":
            return code.op("sub", 0, a)
        case "abs":
            if not signed:
                return a
            negative = code.compare("icmp slt", a, 0)
            return code.select(negative, code.op("sub", 0, a), a)
        case "sign":
            return integers.sign(code, a, signed)
        case "bit_not":
            return code.op("xor", a, -1)
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


def _float(code: Code, node: Apply, args: Sequence[Reg]) -> Reg:
    name, a = node.function, args[0]
    if name == "rem":
        return per_lane(code, "fmod", args)
    if name in _ARITHMETIC:
        return code.op(_ARITHMETIC[name], *args)
    if name in _INTRINSIC:
        return code.intrinsic(_INTRINSIC[name], a)
    if name in ("max", "min"):
        return _float_extremum(code, name, node.args, args)
    if name in _FLOAT:
        return _FLOAT[name](code, *args)
    if a.elem == "float" and name in MATH:
        return MATH[name](code, *args)
    return per_lane(code, name, args)


def _float_extremum(code: Code, name: str, nodes: Sequence[Scalar], args: Sequence[Reg]) -> Reg:
    # x86-64 has no instruction that returns NaN if an operand is NaN
    if code.module.profile.arch != "x86-64":
        return code.intrinsic("maximum" if name == "max" else "minimum", *args)
    predicate = "fcmp ogt" if name == "max" else "fcmp olt"
    # `x > y ? x : y` gives y if either is NaN. This is right if x cannot be NaN.
    a, b = args
    for first, x, y in ((nodes[0], a, b), (nodes[1], b, a)):
        if isinstance(first, Const) and first.value == first.value:
            return code.select(code.compare(predicate, x, y), x, y)
    # Reductions carry `a` from iteration to iteration. The NaN test is on `b`, so that it does not
    # lengthen this chain of dependent instructions.
    extremum = _extremum_instruction(code, name, b, a)
    if extremum is None:
        extremum = code.select(code.compare(predicate, b, a), b, a)
    return code.select(code.compare("fcmp ord", b, b), extremum, b)


def _extremum_instruction(code: Code, name: str, x: Reg, y: Reg) -> Reg | None:
    """Returns `x > y ? x : y` (or with `<`) as one instruction of x86-64, or None if there is none.

    LLVM selects the instruction for a compare and a select, but not after it has merged them with a
    test for NaN.
    """
    prefix = _EXTREMUM_PREFIX.get((x.elem, x.width))
    if prefix is None or prefix[1] > code.module.profile.vector_bits:
        return None
    kind = "ps" if x.elem == "float" else "pd"
    tail = "" if prefix[1] == 128 else f".{prefix[1]}"
    rounding = [int_const(4, "i32")] if prefix[1] == 512 else []
    return code.call(f"llvm.x86.{prefix[0]}.{name}.{kind}{tail}", x.elem, x.width, x, y, *rounding)


# Maps (element type, lanes) to the instruction set and the vector bits of the extremum instruction.
_EXTREMUM_PREFIX = MappingProxyType(
    {
        ("float", 4): ("sse", 128),
        ("float", 8): ("avx", 256),
        ("float", 16): ("avx512", 512),
        ("double", 2): ("sse2", 128),
        ("double", 4): ("avx", 256),
        ("double", 8): ("avx512", 512),
    }
)


def _float_sign(code: Code, a: Reg) -> Reg:
    signed_one = code.intrinsic("copysign", 1.0, a)
    nonzero = code.compare("fcmp one", a, 0.0)
    # For a zero or NaN, the result is the argument itself.
    return code.select(nonzero, signed_one, a)


def _float_mod(code: Code, a: Reg, b: Reg) -> Reg:
    leftover = per_lane(code, "fmod", (a, b))
    is_zero = code.compare("fcmp oeq", leftover, 0.0)
    signed_zero = code.intrinsic("copysign", 0.0, b)
    below = code.compare("fcmp olt", leftover, 0.0)
    other_sign = code.op("xor", below, code.compare("fcmp olt", b, 0.0))
    shifted = code.select(other_sign, code.op("fadd", leftover, b), leftover)
    finite_divisor = code.compare("fcmp one", b, 0.0)
    signed = code.select(code.op("and", is_zero, finite_divisor), signed_zero, shifted)
    nan = code.compare("fcmp uno", leftover, leftover)
    return code.select(nan, leftover, signed)


_FLOAT: Mapping[str, MathFunction] = MappingProxyType(
    {"neg": Code.negate, "sign": _float_sign, "mod": _float_mod}
)


def per_lane(code: Code, name: str, args: Sequence[Reg]) -> Reg:
    """Calls the C library's function `name` (of f32 or f64) for each lane."""
    return lane_by_lane(code, name + ("f" if args[0].elem == "float" else ""), args)


# ---- casts --------------------------------------------------------------------------------------


def convert(code: Code, a: Reg, source: DType, target: DType) -> Reg:
    """Returns values of `source` converted to `target`.

    Floats are truncated to integers and saturated; NaN gives 0.
    """
    if source is target:
        return a
    if target is BOOL:
        return to_bool(code, a)
    if target.is_float:
        return _to_float(code, a, source, target)
    elem = register_element(target)
    if source.is_float:
        return _to_integer(code, a, elem, target)
    if target.is_packed and source is not BOOL:
        low_byte = a if source.bytes == 1 else code.convert("trunc", a, elem)
        return wrapped(code, low_byte, target)
    if source.bytes > target.bytes:
        return code.convert("trunc", a, elem)
    if a.elem == elem:
        return a
    return code.convert("sext" if source.kind is DTypeKind.INT else "zext", a, elem)


def _to_integer(code: Code, a: Reg, elem: str, target: DType) -> Reg:
    """Returns floats truncated to an integer type.

    A value outside the type's range gives the nearest limit; NaN gives 0.
    """
    low, high = integer_limits(target)
    if target.bits <= 16:
        return _to_narrow_integer(code, a, elem, low, high)
    truncated = code.to_integer(a, elem, "fptosi" if target.kind is DTypeKind.INT else "fptoui")
    # `high` + 1 is a power of two and so exact as a float. Any smaller float truncates to at most
    # `high`.
    over = code.compare("fcmp oge", a, high + 1)
    under = code.compare("fcmp ole", a, low)
    value = code.select(over, high, truncated)
    value = code.select(under, low, value)
    return code.select(code.compare("fcmp uno", a, a), 0, value)


def _to_narrow_integer(code: Code, a: Reg, elem: str, low: int, high: int) -> Reg:
    """Returns floats truncated to an integer type whose limits `low` and `high` are exact floats.

    The float is clamped before it is truncated.
    """
    nan = None if low == 0 else code.compare("fcmp uno", a, a)
    for predicate, end in (("fcmp ogt", low), ("fcmp olt", high)):  # NaN becomes `low`
        a = code.select(code.compare(predicate, a, end), a, end)
    result = code.convert("trunc", code.convert("fptosi", a, "i32"), elem)
    return result if nan is None else code.select(nan, 0, result)


def _to_float(code: Code, a: Reg, source: DType, target: DType) -> Reg:
    elem = register_element(target)
    if not source.is_float:
        opcode = "sitofp" if source.kind is DTypeKind.INT else "uitofp"
        return round_to(code, code.convert(opcode, a, elem), target)
    if a.elem == elem:
        return round_to(code, a, target)
    if elem == "double":
        return code.convert("fpext", a, elem)
    narrow = code.convert("fptrunc", a, elem)
    if target is F16 and source is F64:
        narrow = _to_odd(code, a, narrow)
    return round_to(code, narrow, target)


def _to_odd(code: Code, exact: Reg, narrow: Reg) -> Reg:
    """Returns `exact` (f64) rounded to odd in f32.

    Rounding the result to f16 then gives the same as rounding `exact` to f16 at once.
    """

    widened = code.convert("fpext", narrow, "double")
    bits = code.bitcast(narrow, "i32")
    even = code.compare("icmp eq", code.op("and", bits, 1), 0)
    inexact = code.compare("fcmp one", widened, exact)
    sizes = [code.intrinsic("fabs", x) for x in (widened, exact)]
    low = code.compare("fcmp olt", sizes[0], sizes[1])
    stepped = code.op("add", bits, code.select(low, number(bits, 1), -1))
    odd_bits = code.select(code.op("and", even, inexact), stepped, bits)
    return code.bitcast(odd_bits, "float")
