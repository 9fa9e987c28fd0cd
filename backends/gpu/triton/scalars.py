"""Prints scalar bodies as Triton expressions.

f16 and bf16 are computed in f32 and rounded after each function, as the IR defines. Some functions
of Triton are inexact on devices, or differ between devices. Functions of `functions.triton` take
their place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import assert_never

from tcc.backends.gpu.triton.dtypes import (
    NARROW_FLOATS,
    arithmetic,
    format_fields,
    literal_text,
    type_name,
)
from tcc.backends.gpu.triton.writer import PyExpr, Writer
from tcc.errors import InternalError, UserError
from tcc.frozen import entity
from tcc.ir.expr.scalar import (
    COMPARISONS,
    OF_BOOLS,
    Apply,
    Arg,
    Cast,
    Const,
    IndexValue,
    Read,
    Scalar,
    children,
    walk,
)
from tcc.ir.index import Index
from tcc.ir.narrow import FORMATS
from tcc.ir.types import BOOL, F32, F64, DType, DTypeKind, integer_limits
from tcc.zipped import zip_equal

_FLOAT_SIGNS = MappingProxyType({**COMPARISONS, "add": "+", "sub": "-", "mul": "*"})
_INTEGER_SIGNS = MappingProxyType({**_FLOAT_SIGNS, "bit_and": "&", "bit_or": "|", "bit_xor": "^"})
_LOGIC = MappingProxyType({"and": "&", "or": "|", "xor": "^"})
_FLOAT_CALLS = {
    **{name: f"tl.{name}" for name in ("floor", "ceil", "abs")},
    **{name: name for name in ("is_nan", "is_inf", "trunc", "sign")},
    **{"max": "maximum", "min": "minimum"},
}
_F64_CALLS = MappingProxyType(
    _FLOAT_CALLS | {name: f"tl.{name}" for name in ("sqrt", "exp", "log", "sin", "cos", "erf")}
)
_F32_FUNCTIONS = (
    "exp expm1 tanh log log1p erf sin cos tan asin acos atan sinh cosh asinh acosh atanh pow atan2 "
    "rem mod round"
)
_F32_CALLS = MappingProxyType(
    _FLOAT_CALLS
    | {name: name for name in _F32_FUNCTIONS.split()}
    | {"div": "tl.div_rn", "sqrt": "tl.sqrt_rn"}
)
_INT_CALLS = MappingProxyType(
    {"max": "tl.maximum", "min": "tl.minimum", "abs": "tl.abs", "sign": "int_sign"}
    | {name: f"int_{name}" for name in ("div", "rem", "mod", "pow")}
    | {"shift_left": "shift_left", "shift_right": "shift_right"}
)
_UINT_CALLS = MappingProxyType(
    dict(_INT_CALLS)
    | {"div": "uint_div", "rem": "uint_rem", "mod": "uint_rem", "pow": "int_power"}
    | {"shift_right": "uint_shift_right"}
)
_TAKE_WIDTH = frozenset({"int_pow", "int_power", "shift_left", "shift_right", "uint_shift_right"})
# A longer expression inside another becomes a line of its own.
_LONG = 64


@entity
class Scalars:
    """Prints bodies over the values of their arguments.

    `index` prints an index expression for the block that is being computed. `used` collects the
    library functions that are called. `rounded`: the results are rounded to bf16 or f16, for which
    some functions of f32 take fewer instructions.
    """

    _writer: Writer
    _args: Sequence[PyExpr]
    _index: Callable[[Index], PyExpr]
    _used: dict[str, None]
    rounded: bool = False
    _known: dict[Scalar, PyExpr] = field(default_factory=dict)

    def values(self, bodies: Sequence[Scalar]) -> list[PyExpr]:
        """Returns an expression for each body; shared subexpressions become lines before it."""
        uses = Counter(c for node in walk(*bodies) for c in children(node))
        for node in walk(*bodies):
            value = self._value(node)
            leaf = isinstance(node, Const | Arg)
            if not leaf and (uses[node] > 1 or (uses[node] and len(value.text) > _LONG)):
                value = self._writer.define("t", value.text)
            self._known[node] = value
        return [self._known[b] for b in bodies]

    def _value(self, node: Scalar) -> PyExpr:
        match node:
            case Const():
                return PyExpr(_constant(node))
            case Arg():
                return self._args[node.number]
            case IndexValue():
                return self._index_value(node)
            case Cast():
                text = self.converted(self._known[node.arg], node.arg.dtype, node.dtype)
                return PyExpr(text, atomic=not text.startswith("-") and " " not in text)
            case Apply():
                return self._apply(node)
            case Read():
                raise InternalError("a read in a block's body", where="backends/gpu/scalars")
            case _:
                assert_never(node)

    def _index_value(self, node: IndexValue) -> PyExpr:
        value = self._index(node.index)
        if node.dtype in NARROW_FLOATS:
            return PyExpr(f"tl.cast({value.text}, tl.float32).to({type_name(node.dtype)})")
        return PyExpr(f"tl.cast({value.text}, {type_name(node.dtype)})")

    # ---- functions ---------------------------------------------------------------------------

    def _apply(self, node: Apply) -> PyExpr:
        if node.function == "select":
            return self._select(node)
        dtype = node.args[0].dtype
        if dtype is BOOL or node.function in (*_LOGIC, "not"):
            return self._of_bools(node)
        wide = arithmetic(dtype)
        result = self._float(node, wide) if dtype.is_float else self._integer(node, dtype)
        if node.dtype in NARROW_FLOATS:
            return PyExpr(f"{result.operand}.to({type_name(node.dtype)})")
        return result

    def _select(self, node: Apply) -> PyExpr:
        condition, *branches = node.args
        peers = [b for b in branches if not isinstance(b, Const)]
        texts = [self._plain(b) if peers else self._known[b].text for b in branches]
        return PyExpr(f"tl.where({self._truth(condition)}, {', '.join(texts)})")

    def _truth(self, node: Scalar) -> str:
        return self.converted(self._known[node], node.dtype, BOOL)

    def _of_bools(self, node: Apply) -> PyExpr:
        """Returns a function of bools, or a logical function of any operands."""
        name, parts = node.function, [self._known[a] for a in node.args]
        if name in COMPARISONS:
            a, b = (f"{p.operand}.to(tl.int8)" for p in parts)
            return PyExpr(f"{a} {COMPARISONS[name]} {b}", atomic=False)
        texts = [
            part.operand if arg.dtype is BOOL else self._truth(arg)
            for part, arg in zip_equal(parts, node.args)
        ]
        if name in ("not", "bit_not"):
            return PyExpr(f"{texts[0]} == 0", atomic=False)
        if name not in OF_BOOLS:
            raise _refusal(name, BOOL)
        return PyExpr(f" {_LOGIC[OF_BOOLS[name]]} ".join(texts), atomic=False)

    def _float(self, node: Apply, dtype: DType) -> PyExpr:
        name = node.function
        if name in _FLOAT_SIGNS or (name == "div" and dtype is F64):
            return self._signed(node, _FLOAT_SIGNS.get(name, "/"))
        if name == "neg":
            return PyExpr(f"-{self._widened(node.args[0]).operand}", atomic=False)
        call = (_F32_CALLS if dtype is F32 else _F64_CALLS).get(name)
        if call is None:
            raise _refusal(name, dtype)
        if self.rounded and name == "exp" and dtype is F32:
            # It takes fewer instructions, and is exact enough for a result in bf16 or f16.
            call = "exp_rounded"
        return self._call(call, [self._widened(a).text for a in node.args])

    def _integer(self, node: Apply, dtype: DType) -> PyExpr:
        name = node.function
        if name in _INTEGER_SIGNS:
            return self._signed(node, _INTEGER_SIGNS[name])
        args = [self._known[a] for a in node.args]
        if name in ("floor", "ceil", "round", "trunc"):
            return args[0]
        if name in ("neg", "bit_not"):
            minuend = 0 if name == "neg" else -1  # the complement of a signed integer x is -1 - x
            if name == "bit_not" and dtype.kind is DTypeKind.UINT:
                minuend = integer_limits(dtype)[1]
            return PyExpr(f"{minuend} - {args[0].operand}", atomic=False)
        calls = _INT_CALLS if dtype.kind is DTypeKind.INT else _UINT_CALLS
        if name not in calls:
            raise _refusal(name, dtype)
        call = calls[name]
        width = [str(dtype.bits)] if call in _TAKE_WIDTH else []
        value = self._call(call, [*(a.text for a in args), *width])
        if dtype.bits < 32 or call == "int_sign":
            return PyExpr(f"{value.text}.to({type_name(dtype)})")
        return value

    def _call(self, name: str, args: Sequence[str]) -> PyExpr:
        if not name.startswith("tl."):
            self._used[name] = None
        return PyExpr(f"{name}({', '.join(args)})")

    def _signed(self, node: Apply, sign: str) -> PyExpr:
        """Returns the operator `sign` between the operands of `node`.

        A constant is a plain literal if an operand is no constant, because the literal then takes
        the type of that operand.
        """
        constants = all(isinstance(arg, Const) for arg in node.args)
        texts = []
        for arg in node.args:
            if isinstance(arg, Const) and not constants:
                text = self._plain(arg)
                texts.append(f"({text})" if text.startswith("-") else text)
            else:
                texts.append(self._widened(arg).operand)
        return PyExpr(f" {sign} ".join(texts), atomic=False)

    def _plain(self, node: Scalar) -> str:
        if isinstance(node, Const):
            return literal_text(node.value, node.dtype)
        return self._known[node].text

    def _widened(self, node: Scalar) -> PyExpr:
        """Returns a float converted to the type in which it is computed."""
        value = self._known[node]
        if node.dtype not in NARROW_FLOATS:
            return value
        return PyExpr(f"{value.operand}.to(tl.float32)")

    # ---- conversions -------------------------------------------------------------------------

    def converted(self, value: PyExpr, source: DType, target: DType) -> str:
        """Returns the text of a value converted from type `source` to `target`."""
        if source is target:
            return value.text
        if (source.is_narrow and source.is_float) or (target.is_narrow and target.is_float):
            return self._between_codes(value, source, target)
        text = f"{value.operand}.to(tl.float32)" if source in NARROW_FLOATS else value.operand
        if target is BOOL:
            return f"({text} != 0)"
        name = type_name(target)
        if source.is_float and target.is_integer:
            low, high = integer_limits(target)
            self._used["to_integer"] = None
            return f"to_integer({text}, {name}, {low}, {high})"
        if target.is_packed and source is not BOOL:
            return self._call("lowest_bits", [text, name, str(target.bits)]).text
        if target in NARROW_FLOATS and source not in NARROW_FLOATS and source is not F32:
            direct = source is F64 and target.name == "f16"
            return f"{text}.to({name})" if direct else f"{text}.to(tl.float32).to({name})"
        return text if source in NARROW_FLOATS and target is F32 else f"{text}.to({name})"

    def _between_codes(self, value: PyExpr, source: DType, target: DType) -> str:
        """Returns the text of a conversion from or to a narrow float, through f32."""
        if source.is_narrow and source.is_float:
            wide = PyExpr(self._coded("value", value.text, source))
            return self.converted(wide, F32, target)
        wide = PyExpr(self.converted(value, source, F32), atomic=False)
        return self._coded("code", wide.text, target)

    def _coded(self, what: str, text: str, dtype: DType) -> str:
        form = FORMATS.get(dtype)
        if form is None:
            return self._call(f"power_{what}", [text]).text
        return self._call(f"narrow_{what}", [text, *format_fields(form)]).text


def _constant(node: Const) -> str:
    """Returns a literal that keeps its type next to any operand."""
    return f"tl.full([], {literal_text(node.value, node.dtype)}, {type_name(node.dtype)})"


def _refusal(name: str, dtype: DType) -> UserError:
    return UserError(
        f"there is no function {name} of {dtype.name} for GPUs",
        hint="compile for a CPU, or use another element type",
    )


def combine_function(
    name: str, bodies: Sequence[Scalar], count: int, functions: dict[str, None]
) -> list[str]:
    """Returns the lines of a function for `tl.reduce`.

    Its parameters are the components of the first element, then those of the second.
    """
    writer = Writer()
    params = [f"{side}{n}" for side in ("a", "b") for n in range(count)]
    arguments = [PyExpr(writer.name(p)) for p in params]
    with writer.scope() as lines:
        scalars = Scalars(writer, arguments, _no_index, functions)
        writer.line(f"return {', '.join(v.text for v in scalars.values(bodies))}")
    writer.block(f"def {name}({', '.join(params)}):", lines)
    return ["@triton.jit", *writer.lines()]


def _no_index(index: Index) -> PyExpr:
    raise InternalError(f"a combination that depends on {index.key}", where="backends/gpu/scalars")
