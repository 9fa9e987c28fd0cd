"""Arithmetic on tensors of sizes: what a model computes from shapes stays symbolic.

A tensor of sizes is a NumPy object array of `Index`.  `propagate` gives an op's results on such
tensors, or None where they are no longer integer expressions (then the op runs as any other).
"""

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
from tcc.errors import UserError
from tcc.frontends.onnx.tensors import LARGEST_TENSOR, elements_of
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
from tcc.record import record

MAX_SIZES = 64  # tensors of more elements are data, not shapes
_LARGEST = (1 << 62) - 1  # what is computed with larger numbers is data, whose arithmetic wraps


class _Undecided(Exception):
    """The result is not an integer expression, or depends on a comparison of unknown outcome."""


def is_small(type: TensorType) -> bool:
    """Whether a tensor may be kept as sizes."""
    shape = type.static_shape
    return shape is not None and math.prod(shape) <= MAX_SIZES


def sizes_of_array(array: Array) -> Array | None:
    """The elements as constants, or None where they are not all integers."""
    if array.dtype.kind == "f" and not np.all(np.isfinite(array) & (array == np.trunc(array))):
        return None
    out = np.empty(array.size, object)
    out[:] = [const(int(v)) for v in array.reshape(-1)]
    return out.reshape(array.shape)


def check_types(types: Iterable[TensorType], loc: str) -> None:
    """Raises `UserError` for a negative size, and for a tensor that no machine has memory for."""
    for type in types:
        sizes = type.static_shape
        if sizes is not None and any(size < 0 for size in sizes):
            raise UserError("a tensor has a negative size", where=loc, why=repr(type))
        count = elements_of([_least(size) for size in type.shape])
        if count > LARGEST_TENSOR:
            raise UserError(
                "a tensor is too large",
                where=loc,
                why=f"{type!r} has {count} elements or more where none of its sizes is zero; "
                f"{LARGEST_TENSOR} are the most",
                hint="check the sizes that the model computes",
            )


def _least(size: Index) -> int:
    """The least number above zero that a size is known to be, where nothing is taken away."""
    numbers = (size.const, *(coeff for _, coeff in size.terms))
    return max(1, *numbers) if min(numbers) >= 0 else 1


# ---- decisions -------------------------------------------------------------------------------


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
    """What to divide by, which is never zero: what a division by zero gives is not defined."""
    _non_negative(num, den)
    return den if mod(num, den) is const(0) else maximum(den, const(1))


# ---- the ops -----------------------------------------------------------------------------------

Elements: TypeAlias = Array


@record
class _Call:
    """One op on tensors of sizes; `types` are those of its results."""

    inputs: Sequence[Elements]
    attrs: Any
    types: Sequence[TensorType]


Rule: TypeAlias = Callable[[_Call], Sequence[Elements]]


def _objects(array: Any) -> Elements:
    """NumPy gives a bare element where an operation leaves rank zero; this gives the array."""
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
    known = all_known(map(as_int, sizes))
    if known is None:
        raise _Undecided
    return known


def _moved(op: str) -> Rule:
    """What only moves elements moves these too; symbolic places raise ValueError."""

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
    "add": _pointwise(operator.add),
    "sub": _pointwise(operator.sub),
    "mul": _pointwise(operator.mul),
    "div": _div,
    "mod": _mod,
    "neg": _pointwise(operator.neg),
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
    **{op: _moved(op) for op in "reshape transpose expand tile concat slice split".split()},
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
    """The results of `op` on tensors of sizes, or None where they are not integer expressions.

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
