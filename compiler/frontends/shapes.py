"""Arithmetic on tensors of sizes, so that sizes that a model computes from shapes stay symbolic.

A tensor of sizes is a NumPy object array of `Index`.  `propagate` computes an op's results on
tensors of sizes.  It returns None where the results are not integer expressions; then the op runs
like any other.
"""

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
from tcc.errors import UserError
from tcc.frontends.elements import LARGEST_TENSOR, elements_of
from tcc.frozen import frozen
from tcc.ir.index import (
    Index,
    as_int,
    const,
    divisor_of,
    floordiv,
    maximum,
    minimum,
    mod,
)
from tcc.ir.index.compare import ends, is_equal, is_less, is_unequal
from tcc.ir.op import Array
from tcc.ir.types import BOOL, TensorType
from tcc.known import all_known
from tcc.ops import OPS

MAX_SIZES = 64  # tensors of more elements are data, not shapes
_LARGEST = (1 << 62) - 1  # larger numbers are data, whose arithmetic wraps


class _Undecided(Exception):
    """The result is not an integer expression, or depends on a comparison that is undecided."""


def is_small(type: TensorType) -> bool:
    """True if a tensor is small enough to be kept as sizes."""
    shape = type.static_shape
    return shape is not None and math.prod(shape) <= MAX_SIZES


def sizes_of_array(array: Array) -> Array | None:
    """Returns the elements as constant indices; None if one of them is not an integer."""
    if array.dtype.kind == "f" and not np.all(np.isfinite(array) & (array == np.trunc(array))):
        return None
    out = np.empty(array.size, object)
    out[:] = [const(int(v)) for v in array.reshape(-1)]
    return out.reshape(array.shape)


def check_types(types: Iterable[TensorType]) -> None:
    """Raises `UserError` for a negative size, or a tensor too large for any machine's memory."""
    for type in types:
        sizes = type.static_shape
        if sizes is not None and any(size < 0 for size in sizes):
            raise UserError("a tensor has a negative size", why=repr(type))
        count = elements_of([_least(size) for size in type.shape])
        if count > LARGEST_TENSOR:
            raise UserError(
                "a tensor is too large",
                why=f"{type!r} has {count} elements or more where none of its sizes is zero; "
                f"{LARGEST_TENSOR} are the most",
                hint="check the sizes that the model computes",
            )


def _least(size: Index) -> int:
    """Returns a lower bound above zero of a size; 1 if it has negative terms."""
    numbers = (size.const, *(coeff for _, coeff in size.terms))
    return max(1, *numbers) if min(numbers) >= 0 else 1


# ---- conditions that the import has to decide ---------------------------------------------------


def _decided(answer: bool | None) -> Index:
    if answer is None:
        raise _Undecided
    return const(int(answer))


def _truth(index: Index) -> bool:
    value = as_int(index)
    if value is None:
        raise _Undecided
    return bool(value)


def _non_negative(*indices: Index) -> None:
    if any(ends(index)[0] < 0 for index in indices):
        raise _Undecided


def _divisor(num: Index, den: Index) -> Index:
    """Returns the divisor; at least 1 if it may be zero, because a division by zero has no defined
    result."""
    _non_negative(num, den)
    return den if mod(num, den) is const(0) else maximum(den, const(1))


# ---- the ops -----------------------------------------------------------------------------------

Elements: TypeAlias = Array


@frozen
class _Call:
    """A call of one op on tensors of sizes; `types` are the types of its results."""

    inputs: Sequence[Elements]
    attrs: Any
    types: Sequence[TensorType]


Rule: TypeAlias = Callable[[_Call], Sequence[Elements]]


def _objects(array: Any) -> Elements:
    """Converts a result of NumPy to an object array; NumPy returns rank zero as a bare element."""
    if isinstance(array, np.ndarray):
        return array.astype(object)
    out = np.empty((), object)
    out[()] = array
    return out


def _pointwise(function: Callable[..., Index]) -> Rule:
    def rule(call: _Call) -> Sequence[Elements]:
        return [_objects(np.frompyfunc(function, len(call.inputs), 1)(*call.inputs))]

    return rule


def _folded(function: Callable[[Index, Index], Index]) -> Rule:
    def rule(call: _Call) -> Sequence[Elements]:
        return [_objects(reduce(np.frompyfunc(function, 2, 1), call.inputs))]

    return rule


def _div(call: _Call) -> Sequence[Elements]:
    exact = call.types[0].dtype.is_float

    def divide(a: Index, b: Index) -> Index:
        by = as_int(b)
        if by and not divisor_of(a) % by:
            return floordiv(a, b) if by > 0 else floordiv(-a, -b)
        quotient = floordiv(a, _divisor(a, b))
        if exact and quotient * b is not a:
            raise _Undecided
        return quotient

    return _pointwise(divide)(call)


def _mod(call: _Call) -> Sequence[Elements]:
    def remainder(a: Index, b: Index) -> Index:
        return mod(a, _divisor(a, b))

    return _pointwise(remainder)(call)


def _abs(index: Index) -> Index:
    if ends(index)[1] <= 0:
        return -index
    _non_negative(index)
    return index


def _cast(call: _Call) -> Sequence[Elements]:
    if call.types[0].dtype is BOOL:
        return _pointwise(lambda x: _decided(is_unequal(x, const(0))))(call)
    return call.inputs


def _static(sizes: Iterable[Any]) -> tuple[int, ...]:
    numbers = all_known(map(as_int, sizes))
    if numbers is None:
        raise _Undecided
    return numbers


def _moved(op: str) -> Rule:
    """Returns a rule for ops that only move elements; symbolic positions raise ValueError."""

    def rule(call: _Call) -> Sequence[Elements]:
        return [_objects(part) for part in OPS[op].reference(call.inputs, call.attrs)]

    return rule


def _gather(call: _Call) -> Sequence[Elements]:
    x, at = call.inputs
    places = np.array(_static(at.reshape(-1)), np.int64).reshape(at.shape)
    return _moved("gather")(_Call([x, places], call.attrs, call.types))


def _reduce(function: Callable[[Index, Index], Index], identity: Index | None) -> Rule:
    def rule(call: _Call) -> Sequence[Elements]:
        out = call.inputs[0]
        combine = np.frompyfunc(function, 2, 1)
        for axis in sorted(call.attrs.axes, reverse=True):
            if not out.shape[axis] and identity is None:
                raise _Undecided
            start: Any = {} if identity is None else {"initial": identity}
            out = _objects(combine.reduce(out, axis=axis, **start))
        return [out.reshape(_static(call.types[0].shape))]

    return rule


def _where(call: _Call) -> Sequence[Elements]:
    def choose(cond: Index, a: Index, b: Index) -> Index:
        return a if a is b or _truth(cond) else b

    return _pointwise(choose)(call)


def _range(call: _Call) -> Sequence[Elements]:
    (size,) = _static(call.types[0].shape)
    start, delta = call.inputs[0].item(), call.inputs[2].item()
    out = np.empty(size, object)
    out[:] = [start + delta * n for n in range(size)]
    return [out]


_RULES: Mapping[str, Rule] = {
    "div": _div,
    "mod": _mod,
    "abs": _pointwise(_abs),
    "max": _folded(maximum),
    "min": _folded(minimum),
    **dict.fromkeys(("floor", "ceil", "round", "identity"), lambda call: call.inputs[:1]),
    "cast": _cast,
    "equal": _pointwise(lambda a, b: _decided(is_equal(a, b))),
    "less": _pointwise(lambda a, b: _decided(is_less(a, b))),
    "greater": _pointwise(lambda a, b: _decided(is_less(b, a))),
    "less_or_equal": _pointwise(lambda a, b: _decided(is_less(a, b + 1))),
    "greater_or_equal": _pointwise(lambda a, b: _decided(is_less(b, a + 1))),
    "not": _pointwise(lambda a: const(int(not _truth(a)))),
    "and": _pointwise(lambda a, b: const(int(_truth(a) and _truth(b)))),
    "or": _pointwise(lambda a, b: const(int(_truth(a) or _truth(b)))),
    "where": _where,
    **{
        op: _moved(op)
        for op in "add sub mul neg reshape transpose expand tile concat slice split".split()
    },
    "gather": _gather,
    "reduce_sum": _reduce(operator.add, const(0)),
    "reduce_prod": _reduce(operator.mul, const(1)),
    "reduce_max": _reduce(maximum, None),
    "reduce_min": _reduce(minimum, None),
    "range": _range,
}


def propagate(
    op: str, inputs: Sequence[Elements | None], attrs: Any, types: Sequence[TensorType]
) -> Sequence[Elements] | None:
    """Returns the results of `op` on tensors of sizes, or None if they are not integer expressions.

    `types` are the results' types, of static shape.
    """
    rule = _RULES.get(op)
    present = [i for i in inputs if i is not None]
    if rule is None or len(present) != len(inputs):
        return None
    try:
        results = rule(_Call(present, attrs, types))
    except (_Undecided, ValueError, IndexError):
        return None
    numbers = (
        n for e in results for i in e.reshape(-1) for n in (i.const, *dict(i.terms).values())
    )
    return None if any(abs(n) > _LARGEST for n in numbers) else results
