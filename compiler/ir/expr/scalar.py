"""Scalar bodies: the computation of one element of a stage.

    scalar = Const | IndexValue | Read | Apply | Cast | Arg

Nodes are interned: equal scalars are one object, so equality is identity, and a walk visits each
node of the DAG once.  `FUNCTIONS` is the table of scalar functions: arity, operands, result, NumPy
meaning.

Semantics.  Integers wrap.  Division by zero gives 0 for integers (never a trap) and IEEE results
for floats; `div` of integers truncates, `mod` has the sign of the divisor, `rem` of the dividend.
`max` and `min` propagate NaN.  `round` rounds to nearest even.  Comparisons give bool.  `select` is
lazy for reads: a read under a false condition may be out of bounds and is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from tcc.frozen import entity, frozen
from tcc.ir.index import (
    Index,
    IndexLike,
    Indices,
    Substitution,
    Var,
    as_index,
    free_vars,
    substitute,
)
from tcc.ir.index.interned import intern
from tcc.ir.types import BOOL, DType, DTypeKind


def _operator(function: str, swapped: bool = False) -> Callable[[Any, Term], Scalar]:
    """Returns a method of scalars for a binary operator that applies `function`.

    An operand that is a number or an index is converted to the element type of `self`. With
    `swapped`, `self` is the right operand, as for `__radd__`.
    """

    def write(x: Scalar, y: Term) -> Scalar:
        other = lifted(y, x.dtype)
        return apply(function, *((other, x) if swapped else (x, other)))

    return write


class _Arithmetic:
    """The Python operators of scalars, so that code reads like formulas.

    `==` compares the nodes themselves, so `apply("eq", a, b)` compares values. `&` and `|` combine
    conditions.
    """

    __slots__ = ()

    __add__, __sub__, __mul__, __truediv__ = map(_operator, ("add", "sub", "mul", "div"))
    __radd__, __rsub__, __rmul__, __rtruediv__ = (
        _operator(function, True) for function in ("add", "sub", "mul", "div")
    )
    __lt__, __le__, __gt__, __ge__ = map(_operator, ("lt", "le", "gt", "ge"))
    __and__, __or__ = map(_operator, ("and", "or"))

    def __neg__(self: Any) -> Scalar:
        return apply("neg", self)

    def __abs__(self: Any) -> Scalar:
        return apply("abs", self)


@entity
class Const(_Arithmetic):
    """A literal of `dtype`: a Python bool, int or float, also NaN and infinity."""

    value: bool | int | float
    dtype: DType


@entity
class IndexValue(_Arithmetic):
    """The value of an index expression of iterators and sizes, as an element of `dtype`."""

    index: Index
    dtype: DType


@frozen
class StageRef:
    """Component `component` of stage `stage` of the same expression."""

    stage: int
    component: int = 0


Source: TypeAlias = "int | StageRef"  # an int is the position of an operand of the node


@entity
class Read(_Arithmetic):
    """`source[indices]`, or `fill` where an index lies outside the source's extent.

    With `fill` None, every index is inside (the verifier or an earlier check proved it); otherwise
    `fill` is a literal of `dtype`.  `indirect` binds each data-dependent variable of `indices` to a
    scalar: `x[idx[i], j]` reads with indices `(t, j)` and indirect `((t, Read(idx, (i,))),)`.
    """

    source: Source
    indices: Indices
    dtype: DType
    fill: bool | int | float | None
    indirect: Bindings


@entity
class Apply(_Arithmetic):
    """An application of the scalar function named `function`, a key of `FUNCTIONS`."""

    function: str
    args: Scalars
    dtype: DType


@entity
class Cast(_Arithmetic):
    """A conversion of a value to `dtype`.

    Floats become integers by truncation and saturation, and NaN becomes 0.  A value becomes bool by
    `!= 0`.  A rewrite moves operations across a cast only where its rule says so.
    """

    arg: Scalar
    dtype: DType


@entity
class Arg(_Arithmetic):
    """An operand that the scalar's user supplies, by its number.

    In a monoid's `combine`, 0..n-1 are the accumulated components and n..2n-1 the next ones.
    """

    number: int
    dtype: DType


Scalar: TypeAlias = Const | IndexValue | Read | Apply | Cast | Arg
Term: TypeAlias = "Scalar | Index | bool | int | float"  # accepted by Python's operators on scalars
Scalars: TypeAlias = tuple[Scalar, ...]
Bindings: TypeAlias = tuple[tuple[Var, Scalar], ...]  # the values of data-dependent index variables


# ---- the function table -----------------------------------------------------------------------


@frozen
class Function:
    """A row of the function table.

    `takes` lists the kinds of types that operands may have; the condition of `select` is always
    bool.  `result` is the result's type, or None where it is the type of the last argument.
    """

    arity: int
    takes: tuple[DTypeKind, ...]
    result: DType | None
    numpy: Callable[..., Any]


def _quotient(a: Any, b: Any) -> Any:
    if np.asarray(a).dtype.kind in "iu":
        return (a - np.fmod(a, b)) // b  # no remainder is left, so `//` does not round
    return np.true_divide(a, b)


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(a: Any, b: Any) -> Any:
        if np.asarray(a).dtype.kind in "iu":
            return np.where(b == 0, 0, function(a, np.where(b == 0, 1, b)))
        return function(a, b)

    return apply


def _pow(a: Any, b: Any) -> Any:
    x = np.asarray(a)
    if x.dtype.kind in "iu":
        # A power with a negative exponent is the real power truncated towards zero. It is 0 unless
        # the base is 1 or -1, whose powers depend only on the parity of the exponent.
        negative = np.asarray(b) < 0
        power = x ** np.where(negative, np.asarray(b) & 1, b)
        return np.where(negative & (np.abs(x) != 1), 0, power)
    return np.power(a, b)


_ANY = tuple(DTypeKind)
_FLOAT, _BOOL = (DTypeKind.FLOAT,), (DTypeKind.BOOL,)
_INTEGER = (DTypeKind.INT, DTypeKind.UINT)
# A row: arity, kinds of operands, type of the result (None: the last operand's), and the NumPy
# meaning of each function by name.
_TABLE: tuple[
    tuple[int, tuple[DTypeKind, ...], DType | None, Mapping[str, Callable[..., Any]]], ...
] = (
    (
        1, _ANY, None,
        {
            "neg": np.negative, "abs": np.abs, "sign": np.sign, "floor": np.floor,
            "ceil": np.ceil, "round": np.rint, "trunc": np.trunc,
        },
    ),
    (
        2, _ANY, None,
        {
            "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _guarded(_quotient),
            "mod": _guarded(np.mod), "rem": _guarded(np.fmod), "pow": _pow,
            "max": np.maximum, "min": np.minimum,
        },
    ),
    (3, _ANY, None, {"select": np.where}),
    (
        2, _ANY, BOOL,
        {
            "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
            "gt": np.greater, "ge": np.greater_equal,
        },
    ),
    (
        1, _FLOAT, None,
        {
            "sqrt": np.sqrt, "exp": np.exp, "log": np.log, "log1p": np.log1p, "expm1": np.expm1,
            "sin": np.sin, "cos": np.cos, "tan": np.tan,
            "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
            "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
            "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
            "erf": np.vectorize(math.erf, otypes="d"),
        },
    ),
    (2, _FLOAT, None, {"atan2": np.arctan2}),
    (1, _FLOAT, BOOL, {"is_nan": np.isnan, "is_inf": np.isinf}),
    (1, _INTEGER, None, {"bit_not": np.invert}),
    (
        2, _INTEGER, None,
        {
            "bit_and": np.bitwise_and, "bit_or": np.bitwise_or, "bit_xor": np.bitwise_xor,
            "shift_left": np.left_shift, "shift_right": np.right_shift,
        },
    ),
    (1, _BOOL, BOOL, {"not": np.logical_not}),
    (2, _BOOL, BOOL, {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}),
)  # fmt: skip
# The operator of each comparison in C, in Triton and in the text of expressions.
COMPARISONS = MappingProxyType(
    {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
)
# The logical function that computes each function of two bools, arithmetic ones included.
OF_BOOLS = MappingProxyType(
    {
        name: logical
        for logical, names in (
            ("and", "and bit_and min mul"),
            ("or", "or bit_or max add"),
            ("xor", "xor bit_xor"),
        )
        for name in names.split()
    }
)
# Functions whose result a narrow float type can represent if it can represent the arguments. The
# result needs no rounding.
EXACT = frozenset("max min neg abs sign floor ceil round trunc rem".split())
FUNCTIONS = MappingProxyType(
    {
        name: Function(arity, takes, result, numpy)
        for arity, takes, result, functions in _TABLE
        for name, numpy in functions.items()
    }
)


# ---- constructors ----------------------------------------------------------------------------


def literal(value: bool | int | float, dtype: DType) -> Const:
    """Returns `value` as an element of `dtype`; distinguishes -0.0 from 0.0 and keeps NaN."""
    if dtype.kind is DTypeKind.FLOAT:
        value = float(value)
        key: Any = math.copysign(1.0, value), value if value == value else "nan"
    else:
        value = bool(value) if dtype is BOOL else int(value)
        key = value
    return intern(("const", type(value), key, dtype.name), lambda: Const(value, dtype))


def index_value(index: IndexLike, dtype: DType) -> IndexValue:
    x = as_index(index)
    return intern(("index", x, dtype.name), lambda: IndexValue(x, dtype))


def lifted(term: Term, dtype: DType) -> Scalar:
    """Returns a number or an index as an element of `dtype`; returns a scalar unchanged."""
    if isinstance(term, Index):
        return index_value(term, dtype)
    return literal(term, dtype) if isinstance(term, int | float) else term


def read(
    source: Source,
    indices: tuple[IndexLike, ...] | list[Index],
    dtype: DType,
    *,
    fill: bool | int | float | None = None,
    indirect: Bindings = (),
) -> Read:
    at = tuple(as_index(i) for i in indices)
    outside = None if fill is None else literal(fill, dtype)
    value = None if outside is None else outside.value
    return intern(
        ("read", source, at, dtype.name, outside, indirect),
        lambda: Read(source, at, dtype, value, indirect),
    )


def read_from(node: Read, source: Source, dtype: DType | None = None) -> Read:
    """Returns a read of `source` at the indices of `node`, with its fill value.

    `dtype` is the element type of the read; None keeps the type of `node`.
    """
    kind = node.dtype if dtype is None else dtype
    return read(source, node.indices, kind, fill=node.fill, indirect=node.indirect)


def read_at(node: Read, indices: Indices, indirect: Bindings) -> Read:
    """Returns the read `node` at the indices `indices`.

    `indirect` binds the data-dependent variables of `indices` to scalars.
    """
    return read(node.source, indices, node.dtype, fill=node.fill, indirect=indirect)


def apply(function: str, *args: Scalar) -> Apply:
    """Returns `function(args)`; raises KeyError for an unknown name, ValueError for a wrong
    arity."""
    row = FUNCTIONS[function]
    if row.arity != len(args):
        raise ValueError(f"{function} takes {row.arity} arguments, not {len(args)}")
    dtype = row.result or args[-1].dtype
    return intern(("apply", function, args), lambda: Apply(function, args, dtype))


def cast(arg: Scalar, dtype: DType) -> Scalar:
    return (
        arg if arg.dtype is dtype else intern(("cast", arg, dtype.name), lambda: Cast(arg, dtype))
    )


def argument(number: int, dtype: DType) -> Arg:
    return intern(("arg", number, dtype.name), lambda: Arg(number, dtype))


# ---- walking -----------------------------------------------------------------------------------


def children(scalar: Scalar) -> Scalars:
    match scalar:
        case Apply():
            return scalar.args
        case Cast():
            return (scalar.arg,)
        case Read():
            return tuple(s for _, s in scalar.indirect)
        case Const() | IndexValue() | Arg():
            return ()


def indices_in(scalar: Scalar) -> Indices:
    """Returns the indices of a read or of an `IndexValue`, without the indices in its operands."""
    match scalar:
        case Read():
            return scalar.indices
        case IndexValue():
            return (scalar.index,)
    return ()


@lru_cache(4096)  # cached, because many passes walk the same bodies
def walk(*roots: Scalar) -> Scalars:
    """Returns the distinct scalars under `roots`, roots included, operands before users."""
    order: dict[Scalar, None] = {}
    stack: list[tuple[Scalar, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        scalar, visited = stack.pop()
        if visited:
            order[scalar] = None
        elif scalar not in order:
            stack.append((scalar, True))
            stack.extend((child, False) for child in reversed(children(scalar)))
    return tuple(order)


def index_values(*roots: Scalar) -> list[Index]:
    """Returns the index of every `IndexValue` under `roots`, each node once."""
    return [node.index for node in walk(*roots) if isinstance(node, IndexValue)]


@lru_cache(4096)
def reads_of_stages(*roots: Scalar) -> tuple[tuple[Read, StageRef], ...]:
    """Returns the distinct pairs (read, source) of reads under `roots` whose source is a stage."""
    reads = ((node, node.source) for node in walk(*roots) if isinstance(node, Read))
    return tuple((node, source) for node, source in reads if isinstance(source, StageRef))


def rebuild(scalar: Scalar, replace: Callable[[Scalar], Scalar]) -> Scalar:
    """Returns `scalar` with every operand `c` replaced by `replace(c)`."""
    match scalar:
        case Apply():
            args = tuple(map(replace, scalar.args))
            return scalar if args == scalar.args else apply(scalar.function, *args)
        case Cast():
            return cast(replace(scalar.arg), scalar.dtype)
        case Read() if scalar.indirect:
            indirect = tuple((v, replace(s)) for v, s in scalar.indirect)
            return read_at(scalar, scalar.indices, indirect)
        case _:
            return scalar


def uncast(node: Scalar) -> Scalar:
    """Returns the operand of the casts around a value; `node` itself if it is no cast."""
    return uncast(node.arg) if isinstance(node, Cast) else node


def replaced(scalar: Scalar, values: Mapping[Scalar, Scalar]) -> Scalar:
    """Returns `scalar` with each scalar in it that is a key of `values` replaced by its value."""
    rebuilt: dict[Scalar, Scalar] = {}
    for node in walk(scalar):
        rebuilt[node] = values.get(node) or rebuild(node, rebuilt.__getitem__)
    return rebuilt[scalar]


def transform(scalar: Scalar, leaf: Callable[[Scalar], Scalar]) -> Scalar:
    """Returns `scalar` rebuilt bottom up.

    `leaf(node)` returns the replacement of each node, whose operands are replaced already.
    """
    return transform_all((scalar,), leaf)[0]


def transform_all(roots: Scalars, leaf: Callable[[Scalar], Scalar]) -> Scalars:
    """Returns each root rebuilt as `transform` does; a node that roots share is rebuilt once."""
    rebuilt: dict[Scalar, Scalar] = {}
    for node in walk(*roots):
        rebuilt[node] = leaf(rebuild(node, rebuilt.__getitem__))
    return tuple(rebuilt[root] for root in roots)


def substitute_indices(scalar: Scalar, mapping: Substitution) -> Scalar:
    """Returns `scalar` with iterators and sizes replaced in every index."""
    return substitute_all((scalar,), mapping)[0]


def substitute_all(roots: Scalars, mapping: Substitution) -> Scalars:
    """Returns `roots` with variables replaced in every index.

    A data-dependent variable may only be replaced by another variable, which then takes its place
    in the bindings too.
    """
    return _substituted(roots, tuple(mapping.items())) if mapping else roots


@lru_cache(4096)  # cached, because many passes substitute in the same bodies
def _substituted(roots: Scalars, replacements: tuple[tuple[Var, Index], ...]) -> Scalars:
    mapping = dict(replacements)

    def leaf(node: Scalar) -> Scalar:
        match node:
            case Read():
                at = tuple(substitute(i, mapping) for i in node.indices)
                if at == node.indices:
                    return node
                bound = tuple(
                    (free_vars(mapping[v])[0] if v in mapping else v, s) for v, s in node.indirect
                )
                return read_at(node, at, bound)
            case IndexValue():
                return index_value(substitute(node.index, mapping), node.dtype)
            case _:
                return node

    return transform_all(roots, leaf)
