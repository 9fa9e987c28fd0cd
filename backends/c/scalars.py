"""Prints scalar expressions as C.

Integers wrap, because they are added and multiplied as unsigned integers. f16, bf16 and narrower
floats are computed as float, and each function rounds once. If C has no operator for a function, a
function of `support.c` or of <math.h> is called.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from types import MappingProxyType

from tcc.backends.c.indices import IndexText
from tcc.backends.c.types import literal, value_type, wrapped
from tcc.errors import InternalError
from tcc.ir.expr.scalar import (
    COMPARISONS,
    EXACT,
    OF_BOOLS,
    Apply,
    Arg,
    Cast,
    Const,
    IndexValue,
    Scalar,
    children,
    walk,
)
from tcc.ir.types import BOOL, F16, F32, F64, I64, DType, DTypeKind, integer_limits
from tcc.zipped import zip_equal

_SIGN = MappingProxyType(
    {"add": "+", "sub": "-", "mul": "*", "bit_and": "&", "bit_or": "|", "bit_xor": "^"}
)
_LOGIC = MappingProxyType({"and": "&&", "or": "||", "xor": "!="})
_FLOAT_NAMES = MappingProxyType({"abs": "fabs", "round": "nearbyint", "rem": "fmod"})
_SUPPORT = frozenset({"max", "min", "sign", "mod"})


def scalar_text(
    root: Scalar, args: Sequence[str], indices: IndexText, temporary: Callable[[str, str], str]
) -> str:
    """Returns the C text of the value of `root`; `args` are the texts of its operands.

    `temporary(type, text)` declares a variable for a value that is used several times, and returns
    its name.
    """
    uses = Counter(child for node in walk(root) for child in children(node))
    texts: dict[Scalar, str] = {}
    for node in walk(root):
        match node:
            case Const():
                texts[node] = literal(node.value, node.dtype)
            case IndexValue():
                index = f"(int64_t)({indices(node.index)})"
                texts[node] = _converted(index, I64, node.dtype)
            case Arg():
                texts[node] = args[node.number]
            case Cast():
                texts[node] = _converted(texts[node.arg], node.arg.dtype, node.dtype)
            case Apply():
                texts[node] = _applied(node, [texts[a] for a in node.args])
            case _:
                raise InternalError("a scalar of a kernel reads memory", where="backends/c")
        if uses[node] > 1 and isinstance(node, Apply | Cast):
            texts[node] = temporary(value_type(node.dtype), bare(texts[node]))
    return bare(texts[root])


def bare(text: str) -> str:
    """Returns `text` without parentheses that enclose all of it."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and place < len(text) - 1:
            return text
    return text[1:-1] if text.startswith("(") else text


def _applied(node: Apply, args: Sequence[str]) -> str:
    kind, name = node.args[-1].dtype, node.function
    if name == "select":
        return f"({args[0]} ? {args[1]} : {args[2]})"
    if name in COMPARISONS:
        return f"({args[0]} {COMPARISONS[name]} {args[1]})"
    if name in ("is_nan", "is_inf"):
        return f"(is{name[3:]}({args[0]}) != 0)"
    if node.dtype is BOOL or kind is BOOL:
        pairs = zip_equal(args, node.args)
        return _boolean(name, [a if n.dtype is BOOL else f"({a} != 0)" for a, n in pairs])
    if kind.is_float:
        text = _float(name, args, kind)
        return text if name in EXACT else rounded_to(text, node.dtype)
    return _integer(name, args, kind)


def _listed(args: Sequence[str]) -> str:
    return ", ".join(map(bare, args))


def _boolean(name: str, args: Sequence[str]) -> str:
    if name in ("not", "bit_not"):
        return f"!{args[0]}"
    if name not in OF_BOOLS:
        raise InternalError(f"no function {name} of bool", where="backends/c")
    return f"({args[0]} {_LOGIC[OF_BOOLS[name]]} {args[1]})"


def _float(name: str, args: Sequence[str], dtype: DType) -> str:
    suffix = "" if dtype is F64 else "f"
    if name in ("add", "sub", "mul", "div"):
        return f"({args[0]} {'/' if name == 'div' else _SIGN[name]} {args[1]})"
    if name == "neg":
        return f"(-({args[0]}))" if args[0].startswith("-") else f"(-{args[0]})"
    if name in _SUPPORT:
        return f"{name}_{'f64' if dtype is F64 else 'f32'}({_listed(args)})"
    return f"{_FLOAT_NAMES.get(name, name)}{suffix}({_listed(args)})"


def rounded_to(text: str, dtype: DType) -> str:
    """Returns C text that rounds a float to a narrower type; for other types, `text` itself."""
    if dtype in (F32, F64):
        return text
    return f"{dtype.name}_value({dtype.name}_bits({bare(text)}))"


def _integer(name: str, args: Sequence[str], dtype: DType) -> str:
    c_type = value_type(dtype)
    signed = dtype.kind is DTypeKind.INT
    bits, sign = max(32, dtype.bits), "i" if signed else "u"
    if name in _SIGN:
        return f"({c_type})((uint{bits}_t){args[0]} {_SIGN[name]} (uint{bits}_t){args[1]})"
    if name in ("max", "min", "div", "mod", "rem", "pow"):
        return f"({c_type}){name}_{sign}64({_listed(args)})"
    if name in ("shift_left", "shift_right"):
        kind = name if name == "shift_left" else f"{name}_{sign}64"
        return f"({c_type}){kind}({args[0]}, (uint{dtype.bits}_t){args[1]}, {dtype.bits})"
    match name:
        case "neg":
            return f"({c_type})(0 - (uint{bits}_t){args[0]})"
        case "abs" if signed:
            return f"({c_type})abs_i64({args[0]})"
        case "sign" if signed:
            return f"({c_type})(({args[0]} > 0) - ({args[0]} < 0))"
        case "sign":
            return f"({c_type})({args[0]} != 0)"
        case "bit_not":
            return f"({c_type})~(uint{bits}_t){args[0]}"
        case "abs" | "floor" | "ceil" | "round" | "trunc":
            return args[0]
    raise InternalError(f"no function {name} of {dtype.name}", where="backends/c")


def _converted(text: str, source: DType, target: DType) -> str:
    """Returns C text that converts a value from `source` to `target`.

    Floats are truncated to integers and saturated; NaN gives 0.
    """
    if source is target:
        return text
    if target is BOOL:
        return f"({text} != 0)"
    c_type = value_type(target)
    if target.is_float:
        if target is F16 and source is F64:
            text = f"odd_f32({text})"
        elif value_type(source) != c_type:
            text = f"({c_type}){text}"
        return rounded_to(text, target)
    if source.is_float:
        if target.bits == 64:
            return f"to_{target.name}({text})"
        low, high = (literal(float(end), F64) for end in integer_limits(target))
        return f"({c_type})truncated({text}, {low}, {high})"
    if target.is_packed and source is not BOOL:
        return wrapped(text, target)
    return f"({c_type}){text}"
